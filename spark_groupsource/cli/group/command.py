"""`group`: show any group as its coordinator describes it, with the lag of each partition, without joining it."""

from __future__ import annotations

from spark_groupsource import errors
from spark_groupsource.cli.arguments import GroupCommand
from spark_groupsource.cli.group.describe import GroupDescriber
from spark_groupsource.cli.group.view import GroupDescription, GroupReport, group_json, group_lines
from spark_groupsource.cli.output import Output
from spark_groupsource.clock import Clock
from spark_groupsource.errors import CommandError
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.lag.model import LagInput, lag_of
from spark_groupsource.model.offsets import every_partition
from spark_groupsource.options.times import shown_time


def report_group(
    command: GroupCommand,
    describer: GroupDescriber,
    requests: LagRequests,
    clock: Clock,
    output: Output,
) -> None:
    """Print the group, repeatedly with `watch_s`. Raises errors of the catalogue."""
    while True:
        report = read_report(command, describer, requests, output)
        now_ms = int(clock.epoch_s() * 1000)
        if command.as_json:
            output.print_line(group_json(report, now_ms))
        else:
            if command.watch_s is not None:
                output.print_line(shown_time(now_ms))
            for line in group_lines(report):
                output.print_line(line)
        if command.watch_s is None:
            return
        if not command.as_json:
            output.print_line("")
        output.pause(command.watch_s)


def read_report(command: GroupCommand, describer: GroupDescriber, requests: LagRequests, output: Output) -> GroupReport:
    """Return the current state of the group.

    Steps: 1. the group, 2. its offsets on all topics, 3. the ends of the logs: after the offsets, so no lag is below 0.
    """
    group = command.connection.group
    output.step(f"reading the members of group {group}")
    description = describer.describe_group()
    topics = requests.topics()
    partitions = every_partition(topics)
    output.step(f"reading the offsets of group {group} on {len(partitions):,} partitions")
    committed = requests.group_offsets(group, partitions)
    if description is None:
        if not committed:
            servers = command.connection.bootstrap_servers
            raise CommandError(errors.GROUP_NOT_FOUND, group=group, servers=servers)
        description = GroupDescription(group)
    wanted = sorted(committed.keys() | description.partitions)
    existing = [partition for partition in wanted if partition.partition < topics.get(partition.topic, 0)]
    output.step(f"reading the log ends of {len(existing):,} partitions")
    bounds = requests.log_bounds(existing)
    lags = {
        partition: lag_of(LagInput(partition, committed.get(partition), *bounds.get(partition, ())), now_ms=0)
        for partition in existing
    }
    return GroupReport(description, lags)
