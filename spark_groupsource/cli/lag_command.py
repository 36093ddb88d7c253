"""`lag`: show the lag of any group, and how long its unread records are safe, without joining it.

Exit codes: see the help of `lag`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

from spark_groupsource import errors
from spark_groupsource.cli.arguments import LagCommand, shown_time
from spark_groupsource.cli.group.view import Member
from spark_groupsource.clock import Clock
from spark_groupsource.errors import CommandError
from spark_groupsource.lag.measure import StandingsPort
from spark_groupsource.lag.model import Lag, lag_of, shown_duration, shown_note, total
from spark_groupsource.model.offsets import TopicPartition

Say = Callable[[str], object]
Members = Callable[[], Sequence[Member]]

HEADER = ("topic", "partition", "committed", "end", "lag", "behind", "safe for")
BEYOND = 3
AGE_UNKNOWN = (
    "--max-behind: the age of the next unread record is not known, which counts as beyond the bound (it needs the right"
    " READ on the topic, a record that arrives within 10 s, and a record with a timestamp)"
)


def report_lag(
    command: LagCommand,
    standings: StandingsPort,
    clock: Clock,
    *,
    members: Members,
    say: Say,
    warn: Say,
    pause: Callable[[float], object],
) -> int:
    """Print the lag, repeatedly with `watch_s`. Return the exit code. Raises errors of the catalogue.

    `members` is called only if nothing is committed; `warn` prints lines that are not part of the report.
    """
    while True:
        lags = measure(command, standings, clock, members, warn)
        now_ms = int(clock.epoch_s() * 1000)
        if command.as_json:
            say(json_line(command.connection.group, now_ms, lags))
        else:
            if command.watch_s is not None:
                say(f"{shown_time(now_ms)}  group {command.connection.group}")
            for line in table(lags):
                say(line)
        unknown = [str(lag.partition) for lag in lags if not lag.age_known]
        if unknown and command.max_behind_s is not None:
            warn(f"{AGE_UNKNOWN}: {', '.join(unknown)}")
        if is_beyond(command, lags):
            return BEYOND
        if command.watch_s is None:
            return 0
        pause(command.watch_s)


def measure(command: LagCommand, standings: StandingsPort, clock: Clock, members: Members, warn: Say) -> list[Lag]:
    """Return the lag of all partitions of the group's topics, or of the topics that the user named.

    Steps: 1. all topics, 2. the group's offsets on them; without any, its members' topics, 3. the lag inputs.
    """
    group = command.connection.group
    topics = standings.topics()
    gone = [topic for topic in command.topics if topic not in topics]
    if gone:
        raise CommandError(errors.COMMAND_TOPIC_UNKNOWN, topics=", ".join(gone), group=group)
    committed = standings.committed(group, _partitions(topics, topics))
    read = {partition.topic for partition in committed}
    if not committed:
        live = members()
        if not live:
            raise CommandError(errors.GROUP_UNKNOWN, group=group, servers=command.connection.bootstrap_servers)
        # A consumer that has not committed (yet). A monitor must not treat it as a wrong group name.
        warn(f"group {group} has {len(live)} member{'' if len(live) == 1 else 's'} and has committed nothing yet")
        read = {partition.topic for member in live for partition in member.partitions} & topics.keys()
    wanted = command.topics or read
    found = standings.standings({p: committed.get(p) for p in _partitions(wanted, topics)})
    now_ms = int(clock.epoch_s() * 1000)
    return sorted((lag_of(standing, now_ms) for standing in found), key=lambda lag: lag.partition)


def _partitions(names: Iterable[str], counts: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic in sorted(names) for number in range(counts[topic])]


def is_beyond(command: LagCommand, lags: list[Lag]) -> bool:
    """Return whether the lag exceeds a bound that the user gave; an unknown age counts as exceeding it."""
    records, _, behind_s, _ = total(lags)
    too_many = command.max_lag is not None and records > command.max_lag
    if command.max_behind_s is None:
        return too_many
    too_old = (behind_s or 0.0) > command.max_behind_s
    return too_many or too_old or not all(lag.age_known for lag in lags)


def table(lags: list[Lag]) -> list[str]:
    """Return the lag as aligned lines, with the total and notes at the end."""
    records, lost, behind_s, safe_s = total(lags)
    last = ("total", "", "", "", str(records), shown_duration(behind_s), shown_duration(safe_s))
    rows = [HEADER, *map(_cells, lags), last]
    notes = ["", *map(shown_note, lags), f"{lost} lost" if lost else ""]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = []
    for (topic, *numbers), note in zip(rows, notes, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([topic.ljust(widths[0]), *cells, note]).rstrip())
    silent = sorted({lag.partition.topic for lag in lags if not lag.retention.known})
    if silent:
        takes = "a real Kafka broker, and the right DESCRIBE_CONFIGS on the topic"
        lines.append(f"retention not known (needs {takes}): {', '.join(silent)}")
    return lines


def _cells(lag: Lag) -> tuple[str, ...]:
    committed = "-" if lag.committed is None else str(lag.committed)
    behind, safe = shown_duration(lag.behind_s), shown_duration(lag.safe_s)
    return lag.partition.topic, str(lag.partition.partition), committed, str(lag.end), str(lag.records), behind, safe


def json_line(group: str, now_ms: int, lags: list[Lag]) -> str:
    """Return the lag as one line of JSON; durations in seconds, null for none or not known."""
    records, lost, behind_s, safe_s = total(lags)
    value = {
        "group": group,
        "at_ms": now_ms,
        "partitions": [
            {
                "topic": lag.partition.topic, "partition": lag.partition.partition, "committed": lag.committed,
                "end": lag.end, "lag": lag.records, "lost": lag.lost, "behind_s": lag.behind_s, "safe_s": lag.safe_s,
                "retention_ms": lag.retention.after_ms, "retention_bytes": lag.retention.above_bytes,
            }
            for lag in lags
        ],
        "total": {"lag": records, "lost": lost, "behind_s": behind_s, "safe_s": safe_s},
    }  # fmt: skip
    return json.dumps(value, separators=(",", ":"))
