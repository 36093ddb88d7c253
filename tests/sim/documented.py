"""What limits.md excepts from the promises: the simulation checks this page, too.

Each exception names the sentence that allows it, and is counted, so that one that hides a defect is seen by its number.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spark_groupsource import errors
from spark_groupsource.model.offsets import TopicPartition
from tests.faults.history import Commit, Completed
from tests.sim.faults import Planned
from tests.sim.simulation import Simulation
from tests.sim.spark.checkpoint import Store
from tests.sim.world import BEGIN_S

_SILENCE = {
    "network-cut", "coordinator-killed", "reader-paused", "app-paused", "machine-suspended", "answers-slow",
    "requests-lost", "answers-lost", "broker-killed",
}  # fmt: skip
# Seconds for which a KIP-848 member may plan on what it has not heard to be another's: a session and a heartbeat.
_ZOMBIE_MARGIN_S = 4.0
# Seconds until a client has refreshed its metadata.
_REFRESH_S = 5.0
# Seconds for which what a member knows of the group's starts counts, when it stores those of others.
_FRESH_S = 3.0
# Seconds that a batch waits for the commit of the batch before.
_COMMIT_WAIT_S = 1.0

_NOT_REPORTED = "deleted before it was read, and not reported"
_BATCH = re.compile(r"batch (\d+) of (\S+) \(lineage (\S+), planned")


@dataclass(frozen=True, slots=True)
class _Planned:
    """A range that a query planned, and when."""

    query: str
    at: float
    topic_id: str
    partition: tuple[str, int]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Exception:
    """`name` for the count, and when it holds for a problem's text."""

    name: str
    holds: Callable[[Documented, str], bool]


class Documented:
    """The exceptions of one run. `seen` counts those that were needed."""

    def __init__(self, sim: Simulation, faults: Sequence[Planned]) -> None:
        self.sim, self.faults = sim, faults
        self.kinds = {planned.kind for planned in faults}
        self.seen: Counter[str] = Counter()

    @property
    def recreated(self) -> bool:
        """Whether a topic was deleted."""
        return any(life.deleted_at is not None for life in self.sim.cluster.lives)

    @property
    def starts_at_latest(self) -> bool:
        """Whether a query has had startingOffsets=latest."""
        changed = (options.get("starting") for options in self.sim.changed.values())
        return "latest" in (self.sim.configuration.starting, *changed)

    def has_read_another(self, commit: Commit, topic_id: str) -> bool:
        """Return whether the query of a commit had planned a batch of a topic of this name with another id before."""
        query = json.loads(commit.metadata)["l"].split("-")[0] if commit.metadata else ""
        return any(
            (plan.query, plan.partition[0]) == (query, commit.topic)
            and plan.topic_id != topic_id
            and plan.at < commit.at
            for plan in self.planned(kept=True)
        )

    def explains(self, problem: str) -> bool:
        """Return whether a documented exception explains the problem."""
        for one in _EXCEPTIONS:
            if one.holds(self, problem):
                self.seen[one.name] += 1
                return True
        return False

    def zombies(self) -> list[str]:
        """Return batches planned long after the coordinator had given a partition of theirs to another query.

        The judge finds what a zombie commits or repeats; this finds that it plans.
        """
        group = self.sim.configuration.group
        # limits.md, "While commits are not accepted": batches go on for a session. Else librdkafka checks a classic
        # session every second (rd_kafka_cgrp_session_timeout_check).
        is_long = group.protocol == "kip848" or bool(_SILENCE & self.kinds)
        allowed_s = group.session_s + _ZOMBIE_MARGIN_S if is_long else 2.0
        found = []
        late: Counter[tuple[str, float]] = Counter()
        for plan in self.planned():
            newest = self._owner(plan) if plan.end > plan.start else None
            if newest is None or newest[1] == plan.query:
                continue
            given_at, owner = newest
            since_s = plan.at - given_at
            late[plan.query, given_at] += 1
            if since_s > allowed_s and late[plan.query, given_at] > 4:
                topic, number = plan.partition
                found.append(f"ZOMBIE {plan.query} plans {topic}-{number} {since_s:.1f} s after {owner} got it")
        return found[:3]

    def planned(self, *, kept: bool = False) -> Iterator[_Planned]:
        """Yield what the queries have planned, range by range; with `kept` without lost or replaced checkpoints."""
        for app in self.sim.sources:
            for one in app.completed():
                if kept and one.checkpoint != app.checkpoint.life:
                    continue
                for topic, entry in one.end["topics"].items():
                    for number, (start, end) in entry["ranges"].items():
                        yield _Planned(app.name, one.planned_at, entry["id"], (topic, int(number)), start, end)

    def _owner(self, plan: _Planned) -> tuple[float, str] | None:
        parts, part = self.sim.group.parts, (plan.topic_id, plan.partition[1])
        records = [
            record
            for record in self.sim.group.records
            if record.at <= plan.at
            and record.event == "owns"
            and plan.partition in record.partitions
            # A KIP-848 group knows topics by their ids.
            and (record.position not in parts or part in parts[record.position])
        ]
        return (records[-1].at, records[-1].query) if records else None


def _partition(problem: str, text: str = "") -> tuple[str, int] | None:
    """Return the partition that a problem of this beginning is about, "P8 orders-0: ..."; None for other problems."""
    found = re.match(rf"P\d (\S+)-(\d+): {text}", problem)
    return None if found is None else (found[1], int(found[2]))


def _batches_without_commits(run: Documented, problem: str) -> bool:
    """Whether the batches went on because an end was not accepted: of the first of these batches, or of one before.

    The batch after that was planned a second after its end, and the last of these within a session. A query whose
    checkpoint is in a store, or that does not see it, learns of the end at the trigger that plans the next batch.
    """
    if "more than the last batch after checkpoint-lost" in problem:
        return bool(_SILENCE & run.kinds)
    found = _BATCH.findall(problem) if "batches of one stay" in problem else []
    if not found:
        return False
    numbers, (_, checkpoint, lineage) = sorted(int(number) for number, *_ in found), found[0]
    batches = [one for app in run.sim.sources for one in app.completed() if one.checkpoint == checkpoint]
    last = next(one for one in batches if one.batch == numbers[-1])
    longest_s = run.sim.configuration.group.session_s + _ZOMBIE_MARGIN_S
    # The end that was not accepted may be that of another partition of the query.
    for topic, entry in last.end["topics"].items():
        for number in map(int, entry["ranges"]):
            commits = [c for c in run.sim.group.commits if (c.topic, c.partition) == (topic, number)]
            commits = [c for c in commits if c.at < last.planned_at and _lineage(c).startswith(lineage)]
            accepted = max((c.at for c in commits), default=0.0)
            behind = [one for one in batches if _has_rows(one, topic, number) and accepted < (one.at or 0.0)]
            if not behind or behind[0].batch > numbers[0]:
                continue
            second = next(one for one in batches if one.batch > behind[0].batch)
            began = behind[0].at or 0.0
            if run.sim.configuration.query.store is not Store.LOCAL:
                began = second.planned_at - _COMMIT_WAIT_S
            if second.planned_at - began >= _COMMIT_WAIT_S and last.planned_at - began <= longest_s:
                return True
    return False


def _has_rows(batch: Completed, topic: str, number: int) -> bool:
    start, end = batch.end["topics"].get(topic, {"ranges": {}})["ranges"].get(str(number), (0, 0))
    return bool(start < end)


def _gave_up(run: Documented, problem: str) -> bool:
    """Whether a member gave a batch up (maxBatchMs, which counts from the plan; Spark may log the plan much later)."""
    is_limited = run.sim.configuration.max_batch_s is not None and run.sim.world.coverage["event gave-up"] > 0
    return is_limited and problem.startswith("P6") and "with nothing unclean between" in problem


def _late_commit_by_name(run: Documented, problem: str) -> bool:
    """Whether this is a commit for a topic that was deleted before, and has a successor of that name."""
    found = re.match(r"P5 (\S+)-(\d+): commit (\d+) at (\S+) by", problem)
    found = found or re.match(r"P1 (\S+)-(\d+): pinned at (\d+)()", problem)
    if found is None:
        return False
    deleted = {life.id: life.deleted_at for life in run.sim.cluster.lives if life.deleted_at is not None}
    return any(
        (c.topic, c.partition, c.offset) == (found[1], int(found[2]), int(found[3]))
        and found[4] in ("", f"{c.at:.3f}")
        and deleted.get(json.loads(c.metadata)["t"], math.inf) < c.at
        for c in run.sim.group.commits
        if c.metadata
    )


def _begins_again_after_a_late_commit(run: Documented, problem: str) -> bool:
    """Whether the next commit after a late one by name is that of a start at 0 in the recreated topic."""
    goes_back = problem.startswith("P6") or (" commit 0 at " in problem and "goes back" in problem)
    partition = _partition(problem) if goes_back else None
    deleted = {life.id: life.deleted_at for life in run.sim.cluster.lives if life.deleted_at is not None}
    commits = [c for c in run.sim.group.commits if (c.topic, c.partition) == partition and c.metadata]
    return any(
        deleted.get(json.loads(late.metadata)["t"], math.inf) < late.at and after.offset == 0 and _is_start(after)
        for late, after in pairwise(commits)
    )


def _deadline_of_a_stop(run: Documented, problem: str) -> bool:
    """Whether the earlier batch ended after drainTimeoutMs had passed since its query was asked to stop."""
    found = _BATCH.search(problem) if problem.startswith("P6") and "with nothing unclean between" in problem else None
    if found is None:
        return False
    batches = [(app, one) for app in run.sim.sources for one in app.completed() if one.checkpoint == found[2]]
    app, batch = next((app, one) for app, one in batches if one.batch == int(found[1]))
    drain_s = run.sim.configuration.drain_timeout_s
    return any(
        fault.kind == "query-stopped"
        and fault.target == app.name
        and batch.at is not None
        and fault.started_at + drain_s <= batch.at <= fault.started_at + drain_s + _ZOMBIE_MARGIN_S
        for fault in run.sim.faults
    )


def _joined_again_for_new_partitions(run: Documented, problem: str) -> bool:
    """Whether a classic member joined again in a rebalance, because partitions were added when it had this batch."""
    found = re.findall(r"planned (\d+\.\d+)", problem) if problem.startswith("P6") else []
    if len(found) != 2 or run.sim.configuration.group.protocol == "kip848":
        return False
    first, second = map(float, found)
    return any(first - _REFRESH_S <= at <= second for at in run.sim.grown_at)


def _older_commit_read_late(run: Documented, problem: str) -> bool:
    return problem.startswith("P5") and "the group's offset goes back" in problem and bool(_SILENCE & run.kinds)


def _removed_before_the_group_began(run: Documented, problem: str) -> bool:
    partition = _partition(problem, _NOT_REPORTED)
    if partition is None:
        return "pinned at" in problem and "records-deleted" in run.kinds
    first = next((c.at for c in run.sim.group.commits if (c.topic, c.partition) == partition), math.inf)
    removed = [f.started_at for f in run.sim.faults for span in f.details.get("deleted", ()) if span[:2] == partition]
    return bool(removed) and max(removed) < first


def _taken_unasked(run: Documented, problem: str) -> bool:
    """Whether the coordinator had taken the partition from a KIP-848 member whose client still had it."""
    found = re.match(
        r"P5 (\S+)-(\d+): commit \d+ at ([\d.]+) by lineage ([^-]+)-\S+ .*"
        r"(?:another lineage|after the coordinator gave the partition)",
        problem,
    )
    return found is not None and _was_taken(run, TopicPartition(found[1], int(found[2])), float(found[3]), found[4])


def _was_taken(run: Documented, partition: TopicPartition, at: float, query: str) -> bool:
    if run.sim.configuration.group.protocol != "kip848":
        return False
    records = [r for r in run.sim.group.records if r.query == query and r.at <= at]
    app = next(app for app in run.sim.sources if app.name == query)
    held = any(watch.held(partition, at) for watch in app.watches)
    return held and bool(records) and records[-1].event == "owns" and tuple(partition) not in records[-1].partitions


def _moved_back_at_the_end(run: Documented, problem: str) -> bool:
    """Whether the last commit of these partitions is that of such a member: their owner has committed nothing since."""
    if not problem.startswith(("P4", "STUCK", "ANSWER")):
        return False
    found = {TopicPartition(topic, int(number)) for topic, number in re.findall(r"\b([a-z]+)-(\d+)\b", problem)}
    last = {TopicPartition(c.topic, c.partition): c for c in run.sim.group.commits}
    return bool(found) and all(
        p in last and _was_taken(run, p, last[p].at, _lineage(last[p]).split("-")[0]) for p in found
    )


def _topics_changed_twice(run: Documented, problem: str) -> bool:
    """Whether topics changed twice in the rebalance in which a classic group gave the partition to another member."""
    found = re.match(r"P5 .*: commit \d+ at ([\d.]+) by .* gave the partition to \S+ at ([\d.]+)", problem)
    group = run.sim.configuration.group
    if found is None or group.protocol == "kip848":
        return False
    lives = run.sim.cluster.lives
    changes = [
        *run.sim.grown_at,
        *(at for life in lives for at in (life.created_at, life.deleted_at) if at is not None),
    ]
    began_at = max(BEGIN_S, float(found[2]) - group.rebalance_s)
    return sum(began_at < at <= float(found[1]) for at in changes) >= 2


def _in_no_batch(run: Documented, problem: str) -> bool:
    """Whether no checkpoint that was kept had planned records of the deleted partition: nobody can know what it had."""
    partition = _partition(problem, f"(?:its topic was deleted with|{_NOT_REPORTED})")
    if partition is None:
        return False
    lives = run.sim.cluster.lives
    deleted = {life.id for life in lives if life.name == partition[0] and life.deleted_at is not None}
    plans = (plan for plan in run.planned(kept=True) if plan.partition == partition and plan.topic_id in deleted)
    return bool(deleted) and not any(plans)


def _between_two_owners(run: Documented, problem: str) -> bool:
    """Whether the topic was deleted when its reader had handed the partition over, and no other had planned it."""
    partition = _partition(problem)
    if partition is None or not problem.startswith("P8") or "report" not in problem:
        return False
    for life in run.sim.cluster.lives:
        if life.name != partition[0] or life.deleted_at is None:
            continue
        plans = [(p.at, p.query) for p in run.planned() if (p.partition, p.topic_id) == (partition, life.id)]
        records = [r for r in run.sim.group.records if r.at <= life.deleted_at and plans and r.query == max(plans)[1]]
        # It may have got the partition back, and not have planned it since.
        since = [*records[-1:], *(record for record in records if record.at > max(plans)[0])]
        if any(partition not in record.partitions for record in since):
            return True
    return False


def _end_not_known(run: Documented, problem: str) -> bool:
    """Whether a query that was started after the topic's deletion has reported the partition: not to the log's end."""
    partition = _partition(problem, _NOT_REPORTED)
    if partition is None:
        return False
    ends = [life.deleted_at for life in run.sim.cluster.lives if life.name == partition[0] and life.deleted_at]
    reported = any(
        event.event == "data_lost" and partition in event.partitions for app in run.sim.sources for event in app.events
    )
    return reported and any(one.started_at > end for end in ends for app in run.sim.sources for one in app.runs)


def _latest_of_a_recreated_topic(run: Documented, problem: str) -> bool:
    """Whether a query without a batch of the deleted topic has stored the start in the recreated one, at its end.

    It was the first one to store a start there, or did so within three seconds.
    """
    partition = _partition(problem) if problem.startswith(("P1", "P4", "P5", "P8")) else None
    if partition is None or not run.recreated or not run.starts_at_latest:
        return False
    for life in run.sim.cluster.lives:
        if life.name != partition[0] or life is run.sim.cluster.first(life.name):
            continue
        commits = [c for c in run.sim.group.commits if (c.topic, c.partition) == partition]
        in_life = [c for c in commits if c.metadata and json.loads(c.metadata)["t"] == life.id]
        starts = [c for c in in_life if c.at <= in_life[0].at + _FRESH_S and _is_start(c)]
        if any(not run.has_read_another(start, life.id) for start in starts):
            return True
    return False


def _lineage(commit: Commit) -> str:
    return str(json.loads(commit.metadata)["l"]) if commit.metadata else ""


def _is_start(commit: Commit) -> bool:
    start, end = json.loads(commit.metadata)["r"] if commit.metadata else (-1, -2)
    return bool(start == end)


def _starts_lost(run: Documented, problem: str) -> bool:
    """Whether another program has replaced the group's starts before this partition, added later, got its own."""
    partition = _partition(problem) if problem.startswith(("P1", "P8")) else None
    if partition is None or "group-rewound" not in run.kinds or run.sim.configuration.starting != "latest":
        return False
    return partition[1] >= dict(run.sim.configuration.topics).get(partition[0], 0)


def _read_by_others(run: Documented, problem: str) -> bool:
    """Whether another checkpoint than that of the reporting query has read some of a deleted topic's lost records."""
    found = re.match(r"P8 (\S+)-(\d+): (\S+) reported \[(\d+), (\d+)\) as lost at \S+, but the group had read", problem)
    if found is None or not run.recreated:
        return False
    name, number, reporter, start, end = found[1], int(found[2]), found[3], int(found[4]), int(found[5])
    own = {app.checkpoint.life for app in run.sim.sources if app.name == reporter}
    return any(
        (row[1], row[2]) == (name, number) and start <= row[3] < end
        for app in run.sim.sources
        for batch in app.batches
        if batch.checkpoint not in own
        for row in batch.rows
    )


def _bound_of_removed_records(run: Documented, problem: str) -> bool:
    """Whether records were removed that a batch has read, right after it."""
    return "records-deleted" in run.kinds and "but the group had read" in problem


def _appeared_in_a_join(run: Documented, problem: str) -> bool:
    """Whether a topic was created while a broker that lags behind may have answered the group's leader."""
    lives = {life.created_at for life in run.sim.cluster.lives if re.search(rf"\b{life.name}-\d", problem)}
    given = [record.at for record in run.sim.group.records if record.event == "owns"]
    lag_s = run.sim.configuration.lag_s
    return any(BEGIN_S < created <= at <= created + lag_s for created in lives for at in given)


def _nobody_is_assigned(run: Documented, problem: str) -> bool:
    """Whether a classic group has left partitions to nobody: static members, or a topic is made (again) in a join."""
    cause = run.recreated or run.sim.configuration.query.instance_ids or _appeared_in_a_join(run, problem)
    is_classic = run.sim.configuration.group.protocol != "kip848"
    return bool(run.sim.stuck) and cause and is_classic and problem.startswith(("STUCK", "P1", "P4", "P8"))


def _has_lost(run: Documented, problem: str) -> bool:
    """Whether failOnDataLoss=true, and each named partition has lost records."""
    named = {(topic, int(number)) for topic, number in re.findall(r"([a-z]+)-(\d+) \[", problem)}
    removed = {span[:2] for fault in run.sim.faults for span in fault.details.get("deleted", ())}
    deleted = {life.name for life in run.sim.cluster.lives if life.deleted_at is not None}
    lost = all(partition in removed or partition[0] in deleted for partition in named)
    return run.sim.configuration.fail_on_data_loss and bool(named) and lost


def _error(run: Documented, problem: str) -> bool:
    """A query may end with these errors: its page of the error catalogue says when."""
    if not problem.startswith("ERROR"):
        return False
    jobs = {"available-now", "once"} & run.kinds
    allowed = {
        errors.TOPIC_UNKNOWN.id: run.recreated,
        errors.MEMBER_LEFT.id: "(after a request to stop)" in problem,
        errors.NO_ASSIGNMENT.id: bool(jobs),
        errors.CLUSTER_REQUEST_FAILED.id: bool(jobs),
        errors.DATA_LOST.id: _has_lost(run, problem),
        errors.CHECKPOINT_BEHIND.id: "checkpoint-restored" in run.kinds,
        errors.SHARED_STATE.id: run.sim.configuration.stateful > 0,
        # A static member is fenced by its own former run, whose request was on a connection that was cut.
        "FENCED_INSTANCE_ID": run.sim.configuration.query.instance_ids and bool(_SILENCE & run.kinds),
        "TaskFailed": _has_lost(run, problem),
    }
    return any(name in problem and is_allowed for name, is_allowed in allowed.items())


_EXCEPTIONS = (
    # limits.md, "While commits are not accepted": the coordinator is away, or a rebalance stalls.
    _Exception("P6: batches without commits", _batches_without_commits),
    # options.md, maxBatchMs: the next owner reads the batch once more.
    _Exception("P6: a batch was given up", _gave_up),
    # options.md, drainTimeoutMs: a stop waits for the batch in flight no longer.
    _Exception("P6: the deadline of a stop", _deadline_of_a_stop),
    # limits.md, "Classic groups": a topic gets partitions in a rebalance.
    _Exception("P6: joined again for new partitions", _joined_again_for_new_partitions),
    # limits.md, "KIP-848 and a recreated topic": the commit of a batch of a deleted topic, by name.
    _Exception("P5: a late commit by name", _late_commit_by_name),
    # limits.md, there: its owner stops before it has committed its own offset again.
    _Exception("P5, P6: begins again after a late commit by name", _begins_again_after_a_late_commit),
    # limits.md, "KIP-848": an assignment that the client has not applied when it joins, or connects again.
    _Exception("P5: taken without being asked", _taken_unasked),
    # limits.md, there: "the group's offset may go back once".
    _Exception("P4: moved back at the end", _moved_back_at_the_end),
    # limits.md, "Classic groups": topics change twice in one rebalance.
    _Exception("P5: topics changed twice", _topics_changed_twice),
    # Rule R29: an older commit that is read late is committed over within two seconds.
    _Exception("P5: an older commit read late", _older_commit_read_late),
    # limits.md, "What nobody reports": a partition that was in no batch yet, or whose checkpoint is lost.
    _Exception("P8: in no batch of a checkpoint", _in_no_batch),
    # limits.md, "A topic that is deleted or recreated": a partition that is deleted between two owners.
    _Exception("P8: deleted between two owners", _between_two_owners),
    # limits.md, there: the report reaches to the end of the log as it was last planned.
    _Exception("P8: the end is not known after a restart", _end_not_known),
    # limits.md, "A group with startingOffsets=latest": a query that has read nothing of a deleted topic.
    _Exception("P1: latest of a recreated topic", _latest_of_a_recreated_topic),
    # how-to/reset.md: another tool has moved all offsets, and partitions were added.
    _Exception("P1: the group's starts are lost", _starts_lost),
    # limits.md, "A topic that is deleted or recreated": it is deleted while its partition moves, or its readers have
    # left before a restart.
    _Exception("P8: read by others meanwhile", _read_by_others),
    # limits.md, "Records that the brokers remove": what was removed before a batch was complete is an upper bound.
    _Exception("P8: an upper bound", _bound_of_removed_records),
    # limits.md, "Classic groups": partitions that a classic group assigns to nobody until its next rebalance.
    _Exception("stuck: assigned to nobody", _nobody_is_assigned),
    # The rig would not count records that were removed before the group began.
    _Exception("began after the removal", _removed_before_the_group_began),
    _Exception("an error that is documented", _error),
)
