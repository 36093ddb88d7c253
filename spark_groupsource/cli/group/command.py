"""`group`: show any group as its coordinator describes it, with the lag of each partition, without joining it."""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.cli.arguments import GroupCommand, shown_time
from spark_groupsource.cli.group.describe import DescriberPort
from spark_groupsource.cli.group.view import GroupDescription, GroupReport, json_line, lines
from spark_groupsource.clock import Clock
from spark_groupsource.errors import CommandError
from spark_groupsource.lag.measure import StandingsPort
from spark_groupsource.lag.model import Standing, lag_of
from spark_groupsource.model.offsets import TopicPartition


def report_group(
    command: GroupCommand,
    describer: DescriberPort,
    standings: StandingsPort,
    clock: Clock,
    *,
    say: Callable[[str], object],
    pause: Callable[[float], object],
) -> None:
    """Print the group, repeatedly with `watch_s`. Raises errors of the catalogue."""
    while True:
        report = look(command, describer, standings)
        now_ms = int(clock.epoch_s() * 1000)
        if command.as_json:
            say(json_line(report, now_ms))
        else:
            if command.watch_s is not None:
                say(shown_time(now_ms))
            for line in lines(report):
                say(line)
        if command.watch_s is None:
            return
        if not command.as_json:
            say("")
        pause(command.watch_s)


def look(command: GroupCommand, describer: DescriberPort, standings: StandingsPort) -> GroupReport:
    """Return the current state of the group.

    Steps: 1. the group, 2. its offsets on all topics, 3. the ends of the logs: after the offsets, so no lag is below 0.
    """
    group = command.connection.group
    description = describer.describe()
    topics = standings.topics()
    every = [TopicPartition(topic, number) for topic, count in sorted(topics.items()) for number in range(count)]
    committed = standings.committed(group, every)
    if description is None:
        if not committed:
            servers = command.connection.bootstrap_servers
            raise CommandError(errors.GROUP_NOT_FOUND, group=group, servers=servers)
        description = GroupDescription(group)
    wanted = set(committed)
    for member in description.members:
        wanted |= member.partitions | member.standby
    there = sorted(partition for partition in wanted if partition.partition < topics.get(partition.topic, 0))
    lags = {
        partition: lag_of(Standing(partition, committed.get(partition), beginning, end), now_ms=0)
        for partition, (beginning, end) in standings.bounds(there).items()
    }
    return GroupReport(description, lags)
