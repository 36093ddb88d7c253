"""The command line: `python -m spark_groupsource COMMAND`.

Exit codes: 0 done, 1 refused, 2 wrong arguments, 3 a lag beyond its bound.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from spark_groupsource.cli.admin import LibrdkafkaGroupAdmin
from spark_groupsource.cli.adopt import Origin, checkpoint_origin, group_origin
from spark_groupsource.cli.arguments import (
    AdoptCommand,
    GroupCommand,
    LagCommand,
    ResetCommand,
    client_options,
    parse_arguments,
)
from spark_groupsource.cli.describer import GroupDescriber, RawGroups
from spark_groupsource.cli.group import report_group
from spark_groupsource.cli.lag import report_lag
from spark_groupsource.cli.reset import Commands
from spark_groupsource.client import WAITING
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.cluster import LibrdkafkaCluster
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.option_types import SourceOptions
from spark_groupsource.standing import LibrdkafkaStandings


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry one command out and return the exit code; what is wrong goes to stderr."""
    command = parse_arguments(arguments)
    # The clients' own log says the same as the error, many times.
    logging.getLogger("spark_groupsource").addHandler(logging.NullHandler())
    if not WAITING.handlers:
        WAITING.addHandler(_ToStderr())
    try:
        options = client_options(command.connection)
        if isinstance(command, LagCommand):
            return _lag(command, options)
        if isinstance(command, GroupCommand):
            return _group(command, options)
        clock = SystemClock()
        cluster = LibrdkafkaCluster(options, clock, time.sleep)
        commands = Commands(LibrdkafkaGroupAdmin(options, clock, time.sleep), cluster, clock, print)
        if isinstance(command, ResetCommand):
            commands.reset(command)
        elif isinstance(command, AdoptCommand):
            commands.adopt(command, _origin(command, options, clock))
        else:
            commands.savepoint(command)
    except GroupKafkaError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Who reads has read enough (`| head`). What is left goes nowhere, also what Python writes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _lag(command: LagCommand, options: SourceOptions) -> int:
    standings = LibrdkafkaStandings(options, SystemClock(), time.sleep)
    try:
        return report_lag(command, standings, SystemClock(), say=_say, warn=_warn, pause=time.sleep)
    except KeyboardInterrupt:
        # The usual end of --watch.
        return 0
    finally:
        standings.close()


def _group(command: GroupCommand, options: SourceOptions) -> int:
    clock = SystemClock()
    standings = LibrdkafkaStandings(options, clock, time.sleep)
    admin = LibrdkafkaGroupAdmin(options, clock, time.sleep)
    describer = GroupDescriber(admin, options.group_id, RawGroups(options))
    try:
        report_group(command, describer, standings, clock, say=_say, pause=time.sleep)
    except KeyboardInterrupt:
        # The usual end of --watch.
        pass
    finally:
        describer.close()
        standings.close()
    return 0


class _ToStderr(logging.Handler):
    """Shows a log's lines as they are, on what is stderr then."""

    def emit(self, record: logging.LogRecord) -> None:
        _warn(record.getMessage())


def _say(line: str) -> None:
    print(line, flush=True)


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _origin(command: AdoptCommand, options: SourceOptions, clock: Clock) -> Origin:
    if command.checkpoint is not None:
        return checkpoint_origin(command.checkpoint, command.source)
    other = replace(options, group_id=command.from_group)
    return group_origin(other.group_id, LibrdkafkaGroupAdmin(other, clock, time.sleep))
