"""Parse the command line's arguments and the client properties file."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from spark_groupsource import errors
from spark_groupsource._version import __version__
from spark_groupsource.cli import help_texts as helptexts
from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import CommandError
from spark_groupsource.lag.model import CLOCK_SKEW_MS
from spark_groupsource.model.names import GROUP_NAME, PORT_MAX, group_name
from spark_groupsource.model.offsets import TIME_MAX_MS
from spark_groupsource.options.client_settings import (
    CLIENT_PREFIX,
    EXECUTOR_PREFIX,
    UNSAFE_SETTINGS,
    shown_value,
    warn_of_unused,
)
from spark_groupsource.options.model import Reads, SourceOptions
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import EVERYTHING
from spark_groupsource.options.table import OPTIONS
from spark_groupsource.options.times import MOMENTS, NotBetweenYearsError, moment_ms, shown_time
from spark_groupsource.options.token_login import OPTION as TOKEN_PROVIDER
from spark_groupsource.options.token_login import REGION_OPTION
from spark_groupsource.options.values import broker_list

# Default pause of `--watch`, in seconds: a rebalance takes some seconds.
WATCH_S = 2.0
# Defaults of `exporter`: the port of kafka-lag-exporter, this machine only, and seconds between two rounds.
EXPORTER_PORT = 8000
EXPORTER_ADDRESS = "127.0.0.1"
EXPORTER_INTERVAL_S = 15.0
# Numbers with fewer digits are not accepted as milliseconds since 1970.
_TIME_DIGITS = 12
# Options of a query that are about its login, which the commands share.
_LOGIN = {TOKEN_PROVIDER.lower(), REGION_OPTION.lower()}
# Names of client properties. Other text may be a part of a value (`sasl.password: secret==`), which errors must not
# show.
_PROPERTY_NAME = re.compile(r"[A-Za-z0-9._-]+")


class TargetKind(Enum):
    """Destination of a reset."""

    INITIAL = "initial"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    SAVEPOINT = "savepoint"
    CHECKPOINT = "checkpoint"


# What the targets need that are a place.
_PLACES = {TargetKind.SAVEPOINT: "FILE", TargetKind.CHECKPOINT: "LOCATION"}


@dataclass(frozen=True, slots=True)
class Target:
    """A reset's destination: `time_ms` (since the epoch) for TIME, `place` for SAVEPOINT and CHECKPOINT."""

    kind: TargetKind
    time_ms: int = 0
    place: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """Brokers, group and client properties of a command."""

    bootstrap_servers: str
    group: str
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class ResetCommand:
    """Arguments of `reset`. Without `topics` it resets all topics of the group."""

    connection: Connection
    target: Target
    topics: tuple[str, ...] = ()
    execute: bool = False


@dataclass(frozen=True, slots=True)
class SavepointCommand:
    """Arguments of `savepoint`."""

    connection: Connection
    path: Path


@dataclass(frozen=True, slots=True)
class LagCommand:
    """Arguments of `lag`. Without `topics` it shows all topics for which the group has offsets.

    The exit code is 3 if the total lag exceeds `max_lag`, or the age of any unread record exceeds `max_behind_s`.
    """

    connection: Connection
    topics: tuple[str, ...] = ()
    as_json: bool = False
    watch_s: float | None = None
    max_lag: int | None = None
    max_behind_s: float | None = None


@dataclass(frozen=True, slots=True)
class AdoptCommand:
    """Arguments of `adopt`: a checkpoint of Spark's own source, or another group.

    Without `topics` it adopts all topics. `source` is the source's id in the offset log, needed if there are several.
    """

    connection: Connection
    checkpoint: str | None = None
    from_group: str = ""
    source: str | None = None
    topics: tuple[str, ...] = ()
    overwrite: bool = False
    execute: bool = False


@dataclass(frozen=True, slots=True)
class GroupCommand:
    """Arguments of `group`."""

    connection: Connection
    as_json: bool = False
    watch_s: float | None = None


@dataclass(frozen=True, slots=True)
class DoctorCommand:
    """Arguments of `doctor`. The connection's group is empty if none is given."""

    connection: Connection
    topics: tuple[str, ...] = ()
    checkpoint: str | None = None
    master: str | None = None
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class ExporterCommand:
    """`exporter`: of the named groups, and of those whose whole name matches `pattern`; the connection has no group."""

    connection: Connection
    groups: tuple[str, ...]
    pattern: str | None
    address: str
    port: int
    interval_s: float
    cluster_name: str


@dataclass(frozen=True, slots=True)
class StartupCommand:
    """`doctor --fix-startup`, with or without --undo."""

    undo: bool


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Arguments of `stop`. Without `wait_s` it does not wait for the answer."""

    location: str
    wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class TimelineCommand:
    """Arguments of `timeline`."""

    files: tuple[Path, ...]
    output: Path


ConnectedCommand = (
    ResetCommand | SavepointCommand | LagCommand | AdoptCommand | GroupCommand | DoctorCommand | ExporterCommand
)
Command = ConnectedCommand | StartupCommand | StopCommand | TimelineCommand


class _ProgramParser(argparse.ArgumentParser):
    """Parser of the program. The error for a misspelt command suggests one."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        super().error(message + (_suggestion(found[1], re.findall("[a-z]+", found[2])) if found else ""))


class _CommandParser(argparse.ArgumentParser):
    """Parser of one command. A misspelt flag is reported before missing ones."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        known = self._option_string_actions
        for word in args or ():
            flag = word.partition("=")[0]
            if flag == "--":
                break
            if flag.startswith("--") and flag not in known:
                self.error(f"unrecognized arguments: {flag}{_suggestion(flag, known)}")
        return super().parse_known_args(args, namespace)


def _suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error that suggests what was probably meant; empty if nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {near[0]}?" if near else ""


def command_parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the program's parser, and each command's parser by name."""
    parser = _ProgramParser(prog="groupkafka", description=helptexts.ABOUT)
    parser.add_argument("--version", action="version", version=f"groupkafka {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser)

    by_name: dict[str, argparse.ArgumentParser] = {}

    def add(name: str, summary: str, about: str, more: str, *, groups: str = "one") -> argparse.ArgumentParser:
        by_name[name] = added = commands.add_parser(
            name, help=summary, description=about, epilog=more, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if groups != "none":
            _add_connection(added, groups)
        return added

    reset = add("reset", "move the group's offsets", helptexts.RESET, helptexts.RESET_MORE)
    reset.add_argument("--to", nargs="+", required=True, metavar=("TARGET", "FILE"), help="see the targets below")
    _add_topics(reset, "reset this topic only")
    reset.add_argument("--execute", action="store_true", help="commit the new offsets (default: a dry run)")
    savepoint = add("savepoint", "save the group's offsets", helptexts.SAVEPOINT, helptexts.SAVEPOINT_MORE)
    savepoint.add_argument("file", type=Path, metavar="FILE", help="file to write; an existing one is replaced")
    _add_lag(add("lag", "show the lag of any group", helptexts.LAG, helptexts.LAG_MORE))
    _add_adopt(add("adopt", "commit another query's offsets", helptexts.ADOPT, helptexts.ADOPT_MORE))
    _add_group(add("group", "show any group and its members", helptexts.GROUP, helptexts.GROUP_MORE))
    _add_doctor(add("doctor", "check a setup for problems", helptexts.DOCTOR, helptexts.DOCTOR_MORE, groups="any"))
    _add_exporter(
        add("exporter", "serve metrics for Prometheus", helptexts.EXPORTER, helptexts.EXPORTER_MORE, groups="many")
    )
    _add_stop(add("stop", "stop a query between two batches", helptexts.STOP, helptexts.STOP_MORE, groups="none"))
    _add_timeline(add("timeline", "draw a group's life", helptexts.TIMELINE, helptexts.TIMELINE_MORE, groups="none"))
    return parser, by_name


def _with_relative_times(arguments: Sequence[str]) -> list[str]:
    """Join `--to -24h` to one word: argparse would take -24h for a flag."""
    found: list[str] = []
    for word in arguments:
        # Also with a misspelt unit, so that the error is about the time.
        if found and found[-1] == "--to" and re.match(r"-\d", word):
            found[-1] = f"--to={word}"
        else:
            found.append(word)
    return found


def parse_arguments(arguments: Sequence[str] | None = None) -> Command:  # noqa: PLR0911 - one for each command
    """Parse the command line. Ends the program with exit code 2 and a usage text if it is invalid."""
    parser, by_name = command_parsers()
    given = parser.parse_args(_with_relative_times(sys.argv[1:] if arguments is None else arguments))
    if given.command == "stop":
        return StopCommand(given.checkpoint_location, given.wait)
    if given.command == "timeline":
        return TimelineCommand(tuple(dict.fromkeys(given.files)), given.output)
    if given.command == "exporter":
        return _exporter_command(by_name["exporter"], given)
    if given.command == "doctor" and (given.fix_startup or given.undo):
        if not given.fix_startup:
            by_name["doctor"].error("argument --undo: only with --fix-startup")
        return StartupCommand(given.undo)
    if given.bootstrap_servers is None:
        by_name[given.command].error("the following arguments are required: --bootstrap-servers")
    connection = Connection(given.bootstrap_servers, given.group or "", given.config)
    if given.command == "savepoint":
        return SavepointCommand(connection, given.file)
    if given.command == "group":
        return GroupCommand(connection, given.json, given.watch)
    topics = tuple(dict.fromkeys(given.topic))
    if given.command == "doctor":
        return DoctorCommand(connection, topics, given.checkpoint_location, given.master, given.json)
    if given.command == "lag":
        return LagCommand(connection, topics, given.json, given.watch, given.max_lag, given.max_behind)
    if given.command == "adopt":
        return _adopt_command(by_name["adopt"], given, connection)
    try:
        target = parse_target(given.to)
    except ValueError as error:
        by_name["reset"].error(f"argument --to: {error}")
    return ResetCommand(connection, target, topics, given.execute)


def _exporter_command(parser: argparse.ArgumentParser, given: argparse.Namespace) -> ExporterCommand:
    groups = tuple(dict.fromkeys(given.group))
    if not groups and given.group_pattern is None:
        parser.error("one of the arguments --group --group-pattern is required")
    servers = given.bootstrap_servers
    return ExporterCommand(
        Connection(servers, "", given.config), groups, given.group_pattern, given.address, given.port, given.interval,
        given.cluster_name or servers,
    )  # fmt: skip


def _add_exporter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group-pattern", type=_regular_expression, metavar="REGEX",
        help="also every group whose whole name matches, new ones included",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=_port, default=EXPORTER_PORT, metavar="N",
        help=f"port to serve the metrics on (default: {EXPORTER_PORT}); 0 takes a free one, which is printed",
    )  # fmt: skip
    parser.add_argument(
        "--address", type=_some_text, default=EXPORTER_ADDRESS, metavar="HOST",
        help=f"address to listen on (default: {EXPORTER_ADDRESS}, this machine only); 0.0.0.0 for all addresses: every"
        " host that can connect can then read the metrics, which have no TLS and no password",
    )  # fmt: skip
    parser.add_argument(
        "--interval", type=_positive_s, default=EXPORTER_INTERVAL_S, metavar="SECONDS",
        help=f"pause between two measurements of all groups (default: {EXPORTER_INTERVAL_S:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--cluster-name", type=_some_text, metavar="NAME",
        help="value of the label cluster_name (default: the value of --bootstrap-servers)",
    )  # fmt: skip


def _add_timeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="metrics file of a query (option metricsPath)"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PAGE", help="page to write; an existing one is replaced"
    )


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    _add_topics(parser, "a topic to read")
    parser.add_argument(
        "--checkpoint-location", type=_some_text, metavar="LOCATION",
        help="checkpointLocation of the query's writer: a path, or a URI (hdfs:, s3a:, gs: ...)",
    )  # fmt: skip
    parser.add_argument(
        "--master", type=_some_text, metavar="URL",
        help="Spark's master (spark://host:7077, yarn, local[2] ...): checks every executor, with a small application",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--fix-startup", action="store_true",
        help="check nothing; put bytecode into PySpark's archive, so that each Python process of Spark starts faster",
    )  # fmt: skip
    parser.add_argument("--undo", action="store_true", help="with --fix-startup: put the original archive back")


def _add_stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint-location", type=_some_text, required=True, metavar="LOCATION",
        help="checkpointLocation of the query's source: a path, or a URI (hdfs:, s3a:, gs: ...)",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=_positive_s, metavar="SECONDS",
        help="wait at most this long until the query's member has left the group (default: do not wait)",
    )  # fmt: skip


def _add_adopt(parser: argparse.ArgumentParser) -> None:
    origin = parser.add_mutually_exclusive_group(required=True)
    origin.add_argument(
        "--from-checkpoint", type=_some_text, metavar="LOCATION",
        help="checkpointLocation of the old query's writer: a path, or a URI (hdfs:, s3a:, gs: ...)",
    )  # fmt: skip
    origin.add_argument("--from-group", type=_group, metavar="OTHER", help="the other group, which is only read")
    parser.add_argument(
        "--source", type=_some_text, metavar="N",
        help="source id, if the checkpoint has several Kafka sources: 0, 1 ..., or its name",
    )  # fmt: skip
    _add_topics(parser, "adopt this topic only", "all topics that the old query has read")
    parser.add_argument("--overwrite", action="store_true", help="also replace offsets that the group already has")
    parser.add_argument("--execute", action="store_true", help="commit the offsets (default: a dry run)")


def _add_lag(parser: argparse.ArgumentParser) -> None:
    _add_topics(parser, "this topic only")
    parser.add_argument("--json", action="store_true", help="print one line of JSON; durations in seconds")
    _add_watch(parser)
    parser.add_argument(
        "--max-lag", type=_count, metavar="N", help="exit with 3 if more than N records are unread in total"
    )
    parser.add_argument(
        "--max-behind", type=_positive_s, metavar="SECONDS",
        help="exit with 3 if an unread record is older than this, or its age is not known",
    )  # fmt: skip


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one line of JSON, with whole member ids")
    _add_watch(parser)


def _add_topics(
    parser: argparse.ArgumentParser, what: str, default: str = "all topics with offsets of the group"
) -> None:
    parser.add_argument(
        "--topic", type=_some_text, action="append", default=[], metavar="T",
        help=f"{what}; may be given more than once (default: {default})",
    )  # fmt: skip


def _add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--watch", type=_positive_s, nargs="?", const=WATCH_S, metavar="SECONDS",
        help=f"repeat, with a pause of this many seconds (default: {WATCH_S:.0f})",
    )  # fmt: skip


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer from 0")
    return int(text)


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port, 0 to {PORT_MAX}")
    return int(text)


def _servers(text: str) -> str:
    _some_text(text)
    try:
        return broker_list(text)
    except ValueError:
        shown = shown_value("kafka.bootstrap.servers", text)
        raise argparse.ArgumentTypeError(f"'{shown}' is not a list of host:port, comma separated") from None


def _group(text: str) -> str:
    """Return a group's name unchanged: a command for the group "orders " must not move the group "orders"."""
    _some_text(text)
    try:
        return group_name(text)
    except ValueError:
        shown = json.dumps(text, ensure_ascii=False)
        raise argparse.ArgumentTypeError(f"{shown} is not {GROUP_NAME}") from None


def _regular_expression(text: str) -> str:
    """Return a pattern of group names: white space is a part of it, as of the names, but not the end of a line."""
    _some_text(text)
    text = text.rstrip("\r\n")
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a regular expression: {error}") from None
    return text


def _some_text(text: str) -> str:
    """Return the text without white space around it, as the options of a query are read."""
    text = text.strip()
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("it is not valid UTF-8") from None
    return text


def _positive_s(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,3})?", text) or float(text) <= 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return float(text)


def _adopt_command(parser: argparse.ArgumentParser, given: argparse.Namespace, connection: Connection) -> AdoptCommand:
    if given.from_group == connection.group:
        parser.error("argument --from-group: it is the same as --group")
    if given.source is not None and given.from_checkpoint is None:
        parser.error("argument --source: it needs --from-checkpoint")
    return AdoptCommand(
        connection, given.from_checkpoint, given.from_group or "", given.source, tuple(dict.fromkeys(given.topic)),
        given.overwrite, given.execute,
    )  # fmt: skip


def _add_connection(parser: argparse.ArgumentParser, groups: str) -> None:
    """Add the arguments of all commands. `groups` is "one" (required), "any" (one or none) or "many"."""
    # `doctor --fix-startup` needs no broker.
    parser.add_argument(
        "--bootstrap-servers", required=groups != "any", type=_servers, metavar="HOST:PORT",
        help="brokers, comma separated",
    )  # fmt: skip
    if groups == "many":
        parser.add_argument(
            "--group", type=_group, action="append", default=[], metavar="GROUP",
            help="a group's id; may be given more than once",
        )  # fmt: skip
    else:
        parser.add_argument(
            "--group", required=groups == "one", type=_group, metavar="GROUP", help="the group's id (kafka.group.id)"
        )
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="client properties (TLS, SASL), one name=value per line: librdkafka's names, with or without 'kafka.';"
        " the file of a query can be used",
    )  # fmt: skip


def parse_target(words: Sequence[str]) -> Target:
    """Parse the words of `--to`. Raises `ValueError`."""
    name, *rest = words
    # A time is given as such, not as the word "time".
    kind = next((kind for kind in TargetKind if kind.value == name), TargetKind.TIME)
    if kind in _PLACES:
        if len(rest) != 1:
            raise ValueError(f"'{name}' needs one {_PLACES[kind]}")
        return Target(kind, place=rest[0])
    if rest:
        raise ValueError(f"unexpected word '{rest[0]}'")
    return Target(kind, time_ms=_time_ms(name) if kind is TargetKind.TIME else 0)


def _time_ms(text: str) -> int:
    now_s = SystemClock().epoch_s()
    if re.fullmatch(r"[0-9]{1,19}", text):
        value = int(text)
        # Fewer digits are a date, or seconds (10 digits): a time before 1973 is not intended.
        if len(text) < _TIME_DIGITS:
            raise ValueError(
                f"'{text}' is neither milliseconds since 1970 ({_TIME_DIGITS} digits or more; append 000 to seconds)"
                " nor a time such as 2026-01-31T12:00:00Z"
            )
    else:
        try:
            value = moment_ms(text, now_s)
        except NotBetweenYearsError as error:
            raise ValueError(f"'{text}' is {error}") from None
        except ValueError:
            raise ValueError(
                f"'{text}' is not initial, earliest, latest, savepoint FILE, checkpoint LOCATION, milliseconds since"
                f" 1970, or {MOMENTS}"
            ) from None
    if not 0 <= value <= TIME_MAX_MS:
        raise ValueError(f"'{text}' is not between 1970 and 9999")
    # No record has such a time, so all unread records would be skipped. 20260131120000 is meant as a date.
    if value - now_s * 1000 > CLOCK_SKEW_MS:
        raise ValueError(f"'{text}' is {shown_time(value)}, which is in the future; use 'latest' for the logs' ends")
    return value


def client_options(connection: Connection) -> SourceOptions:
    """Return the options of a client for the group.

    Raises `CommandError` or `OptionError` for an invalid file; the errors show no secret.
    """
    raw = {} if connection.config is None else _properties(connection.config)
    group = {"kafka.group.id": connection.group} if connection.group else {}
    options = parse_options(
        raw
        | group
        | {
            "kafka.bootstrap.servers": connection.bootstrap_servers,
            # The command line does not run Spark, which would show a secret.
            "allowedUnsafeSettings": ",".join(UNSAFE_SETTINGS),
            # The commands select topics themselves.
            "subscribePattern": ".*",
        },
        Reads.STREAM if connection.group else None,
        # The caller of a command could read the files without it, and may run programs anyway.
        permissions=EVERYTHING,
    )
    warn_of_unused(options.client_settings, options.executor_settings)
    return options


def _properties(path: Path) -> dict[str, str]:
    """Return the client properties of a file under the source's option names."""
    try:
        # Some editors begin a file with a byte order mark.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CommandError(errors.FILE_FAILED, path=path, verb="read", reason=f"{reason} (--config)") from None
    own = {spec.name.lower() for spec in OPTIONS} - _LOGIN
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, separator, value = (part.strip() for part in text.partition("="))
        # Java continues a line after a backslash; here the rest of the value would look like a name.
        if not separator or not _PROPERTY_NAME.fullmatch(name) or text.endswith("\\"):
            # Without the line itself, which may contain a secret.
            raise CommandError(errors.CONFIG_MALFORMED, path=path, line=number)
        # Skip the query's own options, and those of its executors and its job.
        if name.lower() in own or name.lower().startswith(("job.", EXECUTOR_PREFIX)):
            continue
        option = name.lower().startswith(CLIENT_PREFIX) or name.lower() in _LOGIN
        found[name if option else CLIENT_PREFIX + name] = value
    return {name: value for name, value in found.items() if name.lower() not in own}
