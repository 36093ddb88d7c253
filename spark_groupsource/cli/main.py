"""The command line: `python -m spark_groupsource COMMAND`.

Exit codes: 0 done, 1 refused (doctor: problems found), 2 wrong arguments, 3 a lag beyond its bound, 130 interrupted.
A command that did not finish never returns 0. --watch finishes only by an interrupt, or when its output is closed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from spark_groupsource.cli.admin import LibrdkafkaGroupAdmin
from spark_groupsource.cli.adopt_origins import Origin, checkpoint_origin, group_origin
from spark_groupsource.cli.arguments import (
    AdoptCommand,
    Command,
    DoctorCommand,
    GroupCommand,
    LagCommand,
    ResetCommand,
    SavepointCommand,
    client_options,
    parse_arguments,
)
from spark_groupsource.cli.doctor.broker_facts import LibrdkafkaFacts
from spark_groupsource.cli.doctor.command import Doctor, report_doctor
from spark_groupsource.cli.doctor.machine_facts import facts_here
from spark_groupsource.cli.group.command import report_group
from spark_groupsource.cli.group.describe import GroupDescriber, RawGroups, live_members
from spark_groupsource.cli.group.view import Member
from spark_groupsource.cli.lag_command import report_lag
from spark_groupsource.cli.offset_commands import Commands
from spark_groupsource.cli.output import Output, OutputClosedError, warn
from spark_groupsource.client.errors import WAITING
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.lag.measure import LibrdkafkaStandings
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.spark.probe import survey

# The exit code of shells for a program that SIGINT has ended.
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; errors go to stderr."""
    command = parse_arguments(arguments)
    # The clients' own log repeats the error many times.
    logging.getLogger("spark_groupsource").addHandler(logging.NullHandler())
    if not WAITING.handlers:
        WAITING.addHandler(_ToStderr())
    output = Output(rest_to_stderr=_changes_something(command))
    try:
        return _carry_out(command, client_options(command.connection), output)
    except GroupKafkaError as error:
        warn(str(error))
        return 1
    except OutputClosedError:
        return 0
    except KeyboardInterrupt:
        if output.used and isinstance(command, LagCommand | GroupCommand) and command.watch_s is not None:
            return 0
        warn("interrupted")
        return INTERRUPTED


def _changes_something(command: Command) -> bool:
    if isinstance(command, ResetCommand | AdoptCommand):
        return command.execute
    return isinstance(command, SavepointCommand)


def _carry_out(command: Command, options: SourceOptions, output: Output) -> int:
    if isinstance(command, LagCommand):
        return _lag(command, options, output)
    if isinstance(command, GroupCommand):
        return _group(command, options, output)
    if isinstance(command, DoctorCommand):
        return _doctor(command, options, output)
    clock = SystemClock()
    cluster = LibrdkafkaCluster(options, clock, time.sleep)
    commands = Commands(LibrdkafkaGroupAdmin(options, clock, time.sleep), cluster, clock, output.say, warn)
    if isinstance(command, ResetCommand):
        commands.reset(command)
    elif isinstance(command, AdoptCommand):
        commands.adopt(command, _origin(command, options, clock))
    else:
        commands.savepoint(command)
    return 0


def _lag(command: LagCommand, options: SourceOptions, output: Output) -> int:
    clock = SystemClock()
    standings = LibrdkafkaStandings(options, clock, time.sleep)

    def members() -> Sequence[Member]:
        # A separate client, because it is rarely needed.
        return live_members(LibrdkafkaGroupAdmin(options, clock, time.sleep))

    try:
        return report_lag(command, standings, clock, members=members, say=output.say, warn=warn, pause=output.pause)
    finally:
        standings.close()


def _doctor(command: DoctorCommand, options: SourceOptions, output: Output) -> int:
    doctor = Doctor(
        command, options.group_protocol, lambda: LibrdkafkaFacts(options), facts_here, survey, SystemClock()
    )
    return 1 if report_doctor(doctor, output.say) else 0


def _group(command: GroupCommand, options: SourceOptions, output: Output) -> int:
    clock = SystemClock()
    standings = LibrdkafkaStandings(options, clock, time.sleep)
    admin = LibrdkafkaGroupAdmin(options, clock, time.sleep)
    describer = GroupDescriber(admin, options.group_id, RawGroups(options))
    try:
        report_group(command, describer, standings, clock, say=output.say, pause=output.pause)
    finally:
        describer.close()
        standings.close()
    return 0


class _ToStderr(logging.Handler):
    """Print a log's lines to the current stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _origin(command: AdoptCommand, options: SourceOptions, clock: Clock) -> Origin:
    if command.checkpoint is not None:
        return checkpoint_origin(command.checkpoint, command.source)
    other = replace(options, group_id=command.from_group)
    return group_origin(other.group_id, LibrdkafkaGroupAdmin(other, clock, time.sleep))
