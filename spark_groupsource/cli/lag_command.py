"""`lag`: show the lag of any group, and how long its unread records are safe, without joining it.

Exit codes: see the help of `lag`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from spark_groupsource import errors
from spark_groupsource.cli.arguments import LagCommand
from spark_groupsource.cli.group.view import DescribedMember, total_note
from spark_groupsource.cli.offset_moves import partition_names
from spark_groupsource.cli.output import Output
from spark_groupsource.cli.text_table import aligned
from spark_groupsource.clock import Clock
from spark_groupsource.errors import CommandError
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.lag.model import Lag, lag_of, shown_duration, shown_note, shown_number, total
from spark_groupsource.model.offsets import every_partition
from spark_groupsource.options.times import shown_time

Members = Callable[[], Sequence[DescribedMember]]

# The last column has notes.
_HEADER = ("topic", "partition", "committed", "end", "lag", "behind", "safe for", "")
BEYOND = 3
AGE_UNKNOWN = (
    "--max-behind: the age of the next unread record is not known, which counts as beyond the bound (it needs the right"
    " READ on the topic, a record that arrives within 10 s, and a record with a timestamp that is not in the future)"
)
LAG_UNKNOWN = (
    "--max-lag, --max-behind: the lag of partitions that have no leader, or whose committed offset is beyond the log's"
    " end, is not known, which counts as beyond the bound"
)


def report_lag(
    command: LagCommand,
    requests: LagRequests,
    clock: Clock,
    members: Members,
    output: Output,
) -> int:
    """Print the lag, repeatedly with `watch_s`. Return the exit code. Raises errors of the catalogue.

    `members` is called only if nothing is committed.
    """
    while True:
        lags = measured_lags(command, requests, clock, members, output)
        now_ms = int(clock.epoch_s() * 1000)
        if command.as_json:
            output.print_line(lag_json(command.connection.group, now_ms, lags))
        else:
            if command.watch_s is not None:
                output.print_line(f"{shown_time(now_ms)}  group {command.connection.group}")
            for line in lag_table(lags):
                output.print_line(line)
        unknown = list(unknown_lines(command, lags))
        for line in unknown:
            output.warn(line)
        if unknown or is_beyond(command, lags):
            return BEYOND
        if command.watch_s is None:
            return 0
        output.pause(command.watch_s)


def measured_lags(
    command: LagCommand,
    requests: LagRequests,
    clock: Clock,
    members: Members,
    output: Output,
) -> list[Lag]:
    """Return the lag of all partitions of the group's topics, or of the topics that the user named.

    Steps: 1. all topics, 2. the group's offsets on them; without any, its members' topics, 3. the lag inputs.
    """
    group = command.connection.group
    output.step("reading the list of topics")
    topics = requests.topics()
    missing = [topic for topic in command.topics if topic not in topics]
    if missing:
        raise CommandError(errors.COMMAND_TOPIC_UNKNOWN, topics=", ".join(missing), group=group)
    partitions = every_partition(topics)
    output.step(f"reading the offsets of group {group} on {len(partitions):,} partitions")
    committed = requests.group_offsets(group, partitions)
    read = {partition.topic for partition in committed}
    if not committed:
        output.step(f"reading the members of group {group}")
        live = members()
        if not live:
            raise CommandError(errors.GROUP_UNKNOWN, group=group, servers=command.connection.bootstrap_servers)
        # A consumer that has not committed (yet). A monitor must not treat it as a wrong group name.
        count = f"{len(live)} member{'' if len(live) == 1 else 's'}"
        output.warn(f"group {group} has {count} and has committed nothing yet")
        read = {partition.topic for member in live for partition in member.partitions} & topics.keys()
    wanted = command.topics or read
    chosen = every_partition({topic: topics[topic] for topic in wanted})
    output.step(f"reading the log ends and next records of {len(chosen):,} partitions")
    found = requests.lag_inputs({partition: committed.get(partition) for partition in chosen})
    now_ms = int(clock.epoch_s() * 1000)
    return sorted((lag_of(lag_input, now_ms) for lag_input in found), key=lambda lag: lag.partition)


def unknown_lines(command: LagCommand, lags: list[Lag]) -> Iterator[str]:
    """Yield a line for each kind of what is not known of the lag, and counts as beyond a bound that the user gave."""
    unmeasured = [lag.partition for lag in lags if _is_unmeasured(lag)]
    if unmeasured and (command.max_lag is not None or command.max_behind_s is not None):
        yield f"{LAG_UNKNOWN}: {partition_names(unmeasured)}"
    ageless = [lag.partition for lag in lags if not lag.age_known and not _is_unmeasured(lag)]
    if ageless and command.max_behind_s is not None:
        yield f"{AGE_UNKNOWN}: {partition_names(ageless)}"


def _is_unmeasured(lag: Lag) -> bool:
    return lag.end is None or lag.is_ahead


def is_beyond(command: LagCommand, lags: list[Lag]) -> bool:
    """Return whether the known lag exceeds a bound that the user gave."""
    records, _, behind_s, _ = total(lags)
    too_many = command.max_lag is not None and records > command.max_lag
    return too_many or (command.max_behind_s is not None and (behind_s or 0.0) > command.max_behind_s)


def lag_table(lags: list[Lag]) -> list[str]:
    """Return the lag as aligned lines, with the total and notes at the end."""
    records, _, behind_s, safe_s = total(lags)
    note = total_note(lags)
    last = ("total", "", "", "", str(records), shown_duration(behind_s), shown_duration(safe_s), note)
    lines = aligned([_HEADER, *map(_cells, lags), last], left={0, 7})
    unknown = sorted({lag.partition.topic for lag in lags if not lag.retention.known})
    if unknown:
        takes = "a real Kafka broker, and the right DESCRIBE_CONFIGS on the topic"
        lines.append(f"retention not known (needs {takes}): {', '.join(unknown)}")
    return lines


def _cells(lag: Lag) -> tuple[str, ...]:
    topic, number = lag.partition
    numbers = map(shown_number, (lag.committed, lag.end, lag.records))
    return topic, str(number), *numbers, shown_duration(lag.behind_s), shown_duration(lag.safe_s), shown_note(lag)


def lag_json(group: str, now_ms: int, lags: list[Lag]) -> str:
    """Return the lag as one line of JSON; durations in seconds, null for none or not known."""
    records, lost, behind_s, safe_s = total(lags)
    rows = [
        {
            "topic": lag.partition.topic, "partition": lag.partition.partition, "committed": lag.committed,
            "end": lag.end, "lag": lag.records, "lost": lag.lost, "behind_s": lag.behind_s, "safe_s": lag.safe_s,
            "retention_ms": lag.retention.after_ms, "retention_bytes": lag.retention.above_bytes,
        }
        for lag in lags
    ]  # fmt: skip
    value = {
        "group": group,
        "at_ms": now_ms,
        "partitions": rows,
        "total": {"lag": records, "lost": lost, "behind_s": behind_s, "safe_s": safe_s},
    }
    return json.dumps(value, separators=(",", ":"))
