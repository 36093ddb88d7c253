"""The command line: `groupkafka COMMAND`.

Exit codes: 0 done, 1 refused (doctor: problems found), 2 wrong arguments, 3 a lag beyond its bound, 130 interrupted.
A command that did not finish never returns 0. --watch finishes only by an interrupt, or when its output is closed.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spark_groupsource.checkpoint.location import shown_location
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.adopt_origins import Origin, checkpoint_origin, group_origin
from spark_groupsource.cli.arguments import (
    AdoptCommand,
    Command,
    ConnectedCommand,
    DoctorCommand,
    ExporterCommand,
    GroupCommand,
    LagCommand,
    ResetCommand,
    SavepointCommand,
    StartupCommand,
    StopCommand,
    TimelineCommand,
    client_options,
    parse_arguments,
)
from spark_groupsource.cli.doctor.broker_facts import ClusterFacts
from spark_groupsource.cli.doctor.command import Doctor, report_doctor
from spark_groupsource.cli.doctor.machine_facts import add_pyspark_of_spark_home, facts_here
from spark_groupsource.cli.doctor.startup import archives, fix_startup, undo_startup
from spark_groupsource.cli.exporter.command import serve_metrics
from spark_groupsource.cli.exporter.rounds import Exporter
from spark_groupsource.cli.group.command import report_group
from spark_groupsource.cli.group.describe import GroupDescriber, without_data
from spark_groupsource.cli.group.view import DescribedMember
from spark_groupsource.cli.lag_command import report_lag
from spark_groupsource.cli.offset_commands import OffsetCommands
from spark_groupsource.cli.output import Output, OutputClosedError, in_flags, warn
from spark_groupsource.cli.progress import Progress
from spark_groupsource.cli.stop_command import stop_query
from spark_groupsource.cli.timeline_command import write_timeline
from spark_groupsource.client.errors import WAITING
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.redaction import MaskSecrets
from spark_groupsource.spark.executor_facts import probe_executors

# The exit code of shells for a program that SIGINT has ended.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; errors go to stderr."""
    command = parse_arguments(arguments)
    # The clients' own log repeats the error many times.
    logging.getLogger("spark_groupsource").addHandler(logging.NullHandler())
    if not WAITING.handlers:
        WAITING.addHandler(_ToStderr())
    progress = Progress()
    output = Output(progress.step, rest_to_stderr=_changes_something(command))
    try:
        with progress:
            return _carry_out(command, output)
    except GroupKafkaError as error:
        warn(in_flags(str(error)))
        return 1
    except OutputClosedError as closed:
        return 1 if closed.failed else 0
    except KeyboardInterrupt:
        if isinstance(command, ExporterCommand) or (output.used and _is_watching(command)):
            return 0
        warn("interrupted")
        return INTERRUPTED


def _is_watching(command: Command) -> bool:
    return isinstance(command, LagCommand | GroupCommand) and command.watch_s is not None


def _changes_something(command: Command) -> bool:
    if isinstance(command, ResetCommand | AdoptCommand):
        return command.execute
    return isinstance(command, SavepointCommand | StopCommand)


def _carry_out(command: Command, output: Output) -> int:
    if isinstance(command, TimelineCommand):
        write_timeline(command, output)
    elif isinstance(command, StopCommand):
        stop_query(command, SystemClock(), output, time.sleep)
    elif isinstance(command, StartupCommand):
        with archives() as paths:
            (undo_startup if command.undo else fix_startup)(paths, output)
    else:
        return _carry_out_with_brokers(command, client_options(command.connection), output)
    return 0


def _carry_out_with_brokers(command: ConnectedCommand, options: SourceOptions, output: Output) -> int:
    if isinstance(command, LagCommand):
        return _lag(command, options, output)
    if isinstance(command, GroupCommand):
        return _group(command, options, output)
    if isinstance(command, DoctorCommand):
        return _doctor(command, options, output)
    if isinstance(command, ExporterCommand):
        return _exporter(command, options, output)
    clock = SystemClock()
    cluster = LibrdkafkaCluster(options, clock, time.sleep)
    admin = GroupAdmin(options, clock, time.sleep)
    commands = OffsetCommands(admin, cluster, clock, output)
    if isinstance(command, ResetCommand):
        commands.reset(command)
    elif isinstance(command, AdoptCommand):
        origin = command.from_group if command.checkpoint is None else shown_location(command.checkpoint)
        output.step(f"reading the offsets of {origin}")
        commands.adopt(command, _origin(command, options, clock))
    else:
        commands.savepoint(command)
    return 0


def _lag(command: LagCommand, options: SourceOptions, output: Output) -> int:
    clock = SystemClock()
    requests = LagRequests(options, clock, time.sleep)

    def members() -> Sequence[DescribedMember]:
        # A separate client, because it is rarely needed.
        found = without_data(GroupAdmin(options, clock, time.sleep), options.group_id)
        return () if found is None else found.members

    try:
        return report_lag(command, requests, clock, members, output)
    finally:
        requests.close()


def _doctor(command: DoctorCommand, options: SourceOptions, output: Output) -> int:
    add_pyspark_of_spark_home()
    doctor = Doctor(
        command, options.group_protocol, lambda: ClusterFacts(options), facts_here, probe_executors, SystemClock(),
        output,
    )  # fmt: skip
    return 1 if report_doctor(doctor) else 0


def _group(command: GroupCommand, options: SourceOptions, output: Output) -> int:
    clock = SystemClock()
    requests = LagRequests(options, clock, time.sleep)
    admin = GroupAdmin(options, clock, time.sleep)
    describer = GroupDescriber(admin, options)
    try:
        report_group(command, describer, requests, clock, output)
    finally:
        describer.close()
        requests.close()
    return 0


def _exporter(command: ExporterCommand, options: SourceOptions, output: Output) -> int:
    # A supervisor's SIGTERM ends it like an interrupt. Without a handler, the first process of a container ignores it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    clock = SystemClock()
    admin = GroupAdmin(options, clock, time.sleep)
    requests = LagRequests(options, clock, time.sleep, abandoned=lambda: exporter.is_late)
    exporter = Exporter(
        command.cluster_name, command.groups, command.pattern,
        requests=requests, names=admin.group_names, describe=partial(without_data, admin), clock=clock, output=output,
    )  # fmt: skip
    try:
        serve_metrics(command, exporter, output, time.sleep)
    finally:
        requests.close()
    return 0


class _ToStderr(logging.Handler):
    """Print a log's lines to the current stderr, without secrets."""

    def __init__(self) -> None:
        super().__init__()
        # The client's last error may contain a part of a setting.
        self.addFilter(MaskSecrets())

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _origin(command: AdoptCommand, options: SourceOptions, clock: Clock) -> Origin:
    if command.checkpoint is not None:
        return checkpoint_origin(command.checkpoint, command.source)
    other = replace(options, group_id=command.from_group)
    return group_origin(other.group_id, GroupAdmin(other, clock, time.sleep))
