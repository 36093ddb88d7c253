"""What a run of the rig leaves behind: values, and the files that hold them. The checker needs nothing else.

    run.json         Run: seed, protocol, group, topics, session timeout
    topics.jsonl     TopicLife: every topic that the rig created, with its id, and when it was deleted
    starts.jsonl     Start: where the group may begin in a partition, by the start option and the log at that time
    runs.jsonl       QueryRun: when the rig started a query, and when and how that run ended
    group.jsonl      GroupRecord: what the coordinator wrote and logged about the group's members
    faults.jsonl     Fault: what was done to whom, when, and when all was well again
    produced.jsonl   Produced: records whose write the broker acknowledged
    log.jsonl        Logged: the content of the topics, read at the end by a client of its own
    commits.jsonl    Commit: every offset commit of the group, in order, from __consumer_offsets
    watch.jsonl      Watched: the group's offset of a partition, seen to change by a poll every 50 ms
    members.jsonl    MemberEvent: the lines that the queries wrote to `metricsPath`
    batches.jsonl    SinkBatch: every run of a batch that reached the sink, with its rows
    completed.jsonl  Completed: the entries of Spark's offset and commit logs

All times are seconds since the epoch, of one machine. An offset is the next record to read; ranges are half-open.
`checkpoint` names one life of a checkpoint directory: a directory that was deleted, or restored from a copy, goes on
under a new name (`q1#2`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
Row = tuple[int, str, int, int, str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """The run's settings."""

    seed: int
    protocol: str  # a key of rig.PROTOCOLS
    group: str
    topics: tuple[str, ...]
    session_timeout_s: float
    started_at: float
    ended_at: float = 0.0
    kafka: str = ""
    drain_timeout_s: float = 5.0
    starting: str = "earliest"
    flavour: str = ""  # the mix of options, for the table


@dataclass(frozen=True, slots=True)
class TopicLife:
    """A topic from its creation to its deletion. One name may have several lives, each with an id of its own."""

    topic: str
    id: str
    created_at: float
    deleted_at: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Where the group may begin in a partition: at `low` or above, and not above `high`.

    Both come from the start option and from the log's ends as the rig saw them before and after the group began. They
    are equal unless records were written in between. A partition without one appeared later: it begins at 0.
    """

    topic: str
    id: str
    partition: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class QueryRun:
    """One run of a query, from the rig's command to start it until its processes had ended."""

    query: str
    run: int
    started_at: float
    ended_at: float
    how: str  # "stopped", "killed", "failed", "dead", "ended"


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What the coordinator says of a member; `position` is the record's offset in the group's log, -1 of a log line.

    Events: "owns" (these partitions are assigned to the member, and no others), "gone" (it is no member any more),
    "expired" (the coordinator removed it: it was silent, or too slow).
    """

    position: int
    at: float
    query: str
    member: str
    event: str
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `clean` says that it takes nothing from a member without a handover.

    `ended_at` is when the fault itself was over (process back, network healed), `recovered_at` when the group read
    on everywhere. `target` is a query's name, a broker or a topic. `details`: e.g. {"partition": 3, "offset": 100}
    for a rewound group, {"old": "q1#1", "new": "q1#2"} for a lost or restored checkpoint.
    """

    number: int
    kind: str
    target: str
    started_at: float
    ended_at: float
    recovered_at: float
    clean: bool
    details: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Produced:
    """A record that the broker acknowledged; `id` is unique in the run and is the record's value."""

    topic: str
    partition: int
    offset: int
    id: str
    topic_id: str = ""  # of the only topic of this name, if empty
    at: float = 0.0  # when it was acknowledged


@dataclass(frozen=True, slots=True)
class Logged:
    """A record that is in the topic at the end of the run, or was there before its topic was deleted."""

    topic: str
    partition: int
    offset: int
    id: str
    topic_id: str = ""  # of the only topic of this name, if empty


@dataclass(frozen=True, slots=True)
class Commit:
    """One offset commit that the coordinator took; `metadata` as committed (JSON text of this package, or else)."""

    at: float
    topic: str
    partition: int
    offset: int
    metadata: str
    position: int = -1  # its offset in the group's log


@dataclass(frozen=True, slots=True)
class Watched:
    """The group's offset of a partition has changed; `asked_at` is when the request was sent."""

    asked_at: float
    at: float
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """A line of a query's metrics file. `partitions` are those that the event is about.

    `member` tells the runs of a query apart (two at once use one checkpoint); empty when it is not known.
    Events: started, assigned, revoked, lost, left, failed, fixed, completed, replayed, committed, refused, doubted,
    proven, conflict, reset, data_lost.
    """

    at: float
    query: str
    lineage: str
    event: str
    partitions: tuple[tuple[str, int], ...] = ()
    details: Json = field(default_factory=dict)
    member: str = ""


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A run of a batch that the sink has written. `rows`: (Spark task, topic, partition, offset, id), as collected.

    `again` are the rows of a second evaluation of the same plan, as Spark makes one when it reruns tasks; None when the
    sink evaluated the batch once.
    """

    query: str
    checkpoint: str
    batch: int
    attempt: int
    started_at: float
    at: float
    rows: tuple[Row, ...]
    again: tuple[Row, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """A batch that Spark planned. `at` is when its entry of the commit log was written, None when it never was.

    `end` is the source's offset JSON in the offset log: {"lineage", "topics": {topic: {"id", "ranges", "done"}}, "v"}.
    """

    query: str
    checkpoint: str
    batch: int
    planned_at: float
    at: float | None
    end: Json


FILES: Mapping[str, type] = {
    "faults": Fault,
    "topics": TopicLife,
    "starts": Start,
    "runs": QueryRun,
    "group": GroupRecord,
    "produced": Produced,
    "log": Logged,
    "commits": Commit,
    "watch": Watched,
    "members": MemberEvent,
    "batches": SinkBatch,
    "completed": Completed,
}


@dataclass(frozen=True, slots=True)
class History:
    """All of a run."""

    run: Run
    faults: tuple[Fault, ...] = ()
    topics: tuple[TopicLife, ...] = ()
    starts: tuple[Start, ...] = ()
    runs: tuple[QueryRun, ...] = ()
    group: tuple[GroupRecord, ...] = ()
    produced: tuple[Produced, ...] = ()
    log: tuple[Logged, ...] = ()
    commits: tuple[Commit, ...] = ()
    watch: tuple[Watched, ...] = ()
    members: tuple[MemberEvent, ...] = ()
    batches: tuple[SinkBatch, ...] = ()
    completed: tuple[Completed, ...] = ()


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Write values as JSON lines, over what the file held."""
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(asdict(value), separators=(",", ":"), sort_keys=True) + "\n")


def read_lines(path: Path, kind: type[T]) -> tuple[T, ...]:
    """Read JSON lines back; a file that is not there holds nothing."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8") as file:
        return tuple(kind(**{name: _frozen(item) for name, item in json.loads(line).items()}) for line in file)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def save(folder: Path, history: History) -> None:
    """Write a whole history."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(asdict(history.run), indent=1, sort_keys=True) + "\n")
    for name in FILES:
        write_lines(folder / f"{name}.jsonl", getattr(history, name))


def load(folder: Path) -> History:
    """Read a whole history."""
    run = Run(**{name: _frozen(value) for name, value in json.loads((folder / "run.json").read_text()).items()})
    return History(run, **{name: read_lines(folder / f"{name}.jsonl", kind) for name, kind in FILES.items()})
