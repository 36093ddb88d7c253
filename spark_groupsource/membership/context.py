"""Hold what the parts of a member have in common: options, client, state machine and report. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_groupsource.clock import Clock
from spark_groupsource.membership.machine import MemberMachine
from spark_groupsource.membership.port import GroupPort
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.options.model import SourceOptions


@dataclass(frozen=True, slots=True)
class MemberContext:
    """What the parts of a member share. `Member` makes it. Event thread only.

    `serve_commands(wait_s)` runs the commands of other threads, and waits for the first one.
    """

    options: SourceOptions
    port: GroupPort
    clock: Clock
    machine: MemberMachine
    report: MemberReport
    length: SessionLength
    serve_commands: Callable[[float], None]
