"""The options: one table makes the parser, the errors and the option reference.

Duty: turn Spark's string options into one frozen `SourceOptions`, or raise an `OptionError` that names the
option, the value and what is allowed. No I/O, no Kafka client, no Spark.

Client settings (`kafka.*`) pass through to librdkafka, apart from those of `REFUSED_CLIENT_SETTINGS`, which
would break a promise. Durations are milliseconds in options and seconds inside; they are converted here only.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.options_client import (
    CLIENT_PREFIX,
    GroupProtocol,
    check_client_settings,
    shown_value,
)

INT64_MAX = 2**63 - 1


class StartingPosition(Enum):
    """Where a partition starts that the group has no committed offset for."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"


class NoMatchStrategy(Enum):
    """What `startingTimestamp` means for a partition without a record at or after it (as in Spark)."""

    ERROR = "error"
    LATEST = "latest"


class OnPartitionsLost(Enum):
    """What the query does when the group took partitions without a handover."""

    CONTINUE = "continue"
    FAIL = "fail"


class OnConflict(Enum):
    """Who is right when the group's offsets were moved by somebody else."""

    CHECKPOINT = "checkpoint"
    GROUP = "group"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One row of the option table; `allowed` and `doc` are for people, `parse` raises ValueError."""

    name: str
    parse: Callable[[str], object]
    default: object
    allowed: str
    doc: str
    required: bool = False
    since: str = "0.1.0"


@dataclass(frozen=True, slots=True)
class Subscription:
    """What the member subscribes to: topic names, or one pattern that a whole topic name must match."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    @property
    def option(self) -> str:
        """Name of the option it came from, for errors."""
        return "subscribe" if self.pattern is None else "subscribePattern"

    @property
    def value(self) -> str:
        """The option's value, for errors."""
        return ",".join(self.topics) if self.pattern is None else self.pattern


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one reader, checked. Durations in seconds."""

    bootstrap_servers: str
    group_id: str
    subscription: Subscription
    starting_position: StartingPosition
    starting_timestamp_ms: int | None
    no_match_strategy: NoMatchStrategy
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    # A URI may hold credentials: shown by `locations.shown_location` only.
    checkpoint_location: str | None = field(repr=False)
    drain_timeout_s: float
    on_partitions_lost: OnPartitionsLost
    on_conflict: OnConflict
    metrics_path: str | None
    poll_timeout_s: float
    fast_lane_max_offsets: int
    prefetch_memory_bytes: int
    session_timeout_s: float
    heartbeat_interval_s: float
    group_protocol: GroupProtocol
    # Secrets may be among the values: never in a repr.
    client_settings: Mapping[str, str] = field(repr=False)

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted and open transactions are left out."""
        return self.client_settings.get("isolation.level", "read_uncommitted") == "read_committed"

    @property
    def client_id(self) -> str | None:
        """What kafka.client.id names this query."""
        return self.client_settings.get("client.id")

    @property
    def instance_id(self) -> str | None:
        """The static member's id, if it is one."""
        return self.client_settings.get("group.instance.id")


# --- parsers of single values


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError
    return value.strip()


def _topics(value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not names or not all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) for name in names):
        raise ValueError
    return names


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError from error
    return _text(value)


def _boolean(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def _integer(low: int, high: int = INT64_MAX) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not re.fullmatch(r"\+?[0-9]{1,19}", value.strip()):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _choice(kind: type[Enum], *members: Enum) -> Callable[[str], Enum]:
    allowed = members or tuple(kind)

    def parse(value: str) -> Enum:
        member = kind(value.strip().lower())
        if member not in allowed:
            raise ValueError
        return member

    return parse


# --- the table

OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "kafka.bootstrap.servers", _text, None, "host:port, comma separated",
        "Brokers to start from.", required=True,
    ),
    OptionSpec("kafka.group.id", _text, None, "a group name", "The consumer group to join.", required=True),
    OptionSpec(
        "subscribe", _topics, None, "topic names, comma separated",
        "Topics to read. Exactly one of `subscribe` and `subscribePattern` is needed.",
    ),
    OptionSpec(
        "subscribePattern", _pattern, None, "a regular expression",
        "Read every topic whose whole name matches; new topics are picked up.",
    ),
    OptionSpec(
        "startingOffsets",
        _choice(StartingPosition, StartingPosition.EARLIEST, StartingPosition.LATEST),
        StartingPosition.LATEST, "earliest, latest",
        "Where a partition starts that the group has no offset for. It is pinned in the group once."
        " Partitions and topics that appear later start at their beginning.",
    ),
    OptionSpec(
        "startingTimestamp", _integer(0), None, "milliseconds since the epoch, 0 or more",
        "Start at the first record at or after this time; takes precedence over `startingOffsets`.",
    ),
    OptionSpec(
        "startingOffsetsByTimestampStrategy", _choice(NoMatchStrategy), NoMatchStrategy.ERROR,
        "error, latest",
        "What `startingTimestamp` does for a partition without a record at or after it.",
    ),
    OptionSpec(
        "maxOffsetsPerTrigger", _integer(1), None, "an integer from 1",
        "Upper bound of offsets per batch, shared out in proportion to the partitions' backlogs.",
    ),
    OptionSpec(
        "minPartitions", _integer(1, 2**31 - 1), None, "an integer from 1",
        "Smallest number of Spark tasks per batch: large ranges are split.",
    ),
    OptionSpec(
        "maxRecordsPerPartition", _integer(1), None, "an integer from 1",
        "Largest number of offsets per Spark task: larger ranges are split.",
    ),
    OptionSpec(
        "failOnDataLoss", _boolean, True, "true, false",
        "Fail the query when unread records are gone from the broker; false skips and reports them.",
    ),
    OptionSpec(
        "includeHeaders", _boolean, False, "true, false",
        "Adds the column `headers`: `array<struct<key string, value binary>>`.",
    ),
    OptionSpec(
        "checkpointLocation", _text, None, "the path given to the writer",
        "Lets the source see in Spark's commit log that a batch is complete: a handover then waits for the"
        " batch's end only, and the last batch before a stop is committed.",
    ),
    OptionSpec(
        "drainTimeoutMs", _integer(0), None, "0 to kafka.max.poll.interval.ms",
        "How long a revoke waits for the batch in flight. Default: 0.8 x kafka.max.poll.interval.ms.",
    ),
    OptionSpec(
        "onPartitionsLost", _choice(OnPartitionsLost), OnPartitionsLost.CONTINUE, "continue, fail",
        "What to do when the group took partitions without a handover (session expired, fenced).",
    ),
    OptionSpec(
        "onConflict", _choice(OnConflict), OnConflict.CHECKPOINT, "checkpoint, group, fail",
        "Who is right when the group's offset was moved by somebody who is no query of this source.",
    ),
    OptionSpec(
        "metricsPath", _text, None, "a path on the driver's machine",
        "Append a JSON line per event of the member to this file: state, partitions, rebalances and how they ended,"
        " drain times, commits, repeats.",
    ),
    OptionSpec(
        "kafkaConsumer.pollTimeoutMs", _integer(1, 2**31 - 1), 120_000, "an integer from 1",
        "How long an executor waits for the next record of a range before the task fails.",
    ),
    OptionSpec(
        "fastLaneMaxOffsets", _integer(0), 2_000, "an integer from 0",
        "Largest batch that the driver reads itself, which saves a Spark Python task; 0: the executors read all.",
    ),
    OptionSpec(
        "kafkaConsumer.prefetchMemoryBytes", _integer(1024 * 1024, 2**40), 64 * 1024 * 1024,
        "bytes, an integer from 1048576",
        "About how much a Python worker may hold of fetched records; one answer of a broker may go beyond it.",
    ),
)  # fmt: skip

_BY_KEY = {spec.name.lower(): spec for spec in OPTIONS}
# Options that Spark itself puts among a source's options.
_IGNORED_KEYS = frozenset({"path"})


# --- parsing


def parse_options(raw: Mapping[str, str]) -> SourceOptions:
    """Check all options of a reader; names are case-insensitive, as in Spark.

    Raises `OptionError` for the first option that is missing, unknown, malformed, out of range or refused.
    """
    given = {key.lower(): value for key, value in raw.items() if key.lower() not in _IGNORED_KEYS}
    for key in given:
        if key not in _BY_KEY and not key.startswith(CLIENT_PREFIX):
            raise _unknown_option(key)
    values = {spec.name: _parse_one(spec, given.get(spec.name.lower())) for spec in OPTIONS}
    client = check_client_settings(
        {
            key[len(CLIENT_PREFIX) :]: value
            for key, value in given.items()
            if key.startswith(CLIENT_PREFIX) and key not in _BY_KEY
        }
    )
    return _assemble(values, client)


def _parse_one(spec: OptionSpec, value: str | None) -> object:
    if value is None:
        if spec.required:
            raise OptionError(errors.OPTION_MISSING, option=spec.name, meaning=spec.doc)
        return spec.default
    try:
        return spec.parse(value)
    except ValueError:
        raise invalid_option(spec.name, value, spec.allowed) from None


def invalid_option(name: str, value: str, allowed: str) -> OptionError:
    """Build the error of a malformed or out-of-range value; a secret value is masked."""
    return OptionError(errors.OPTION_INVALID, option=name, value=shown_value(name, value), allowed=allowed)


def _unknown_option(key: str) -> OptionError:
    near = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.6)
    suggestion = f" Did you mean '{_BY_KEY[near[0]].name}'?" if near else ""
    return OptionError(errors.OPTION_UNKNOWN, option=key, suggestion=suggestion)


def _subscription(values: Mapping[str, object]) -> Subscription:
    topics, pattern = values["subscribe"], values["subscribePattern"]
    if topics is None and pattern is None:
        raise OptionError(
            errors.OPTION_MISSING,
            option="subscribe",
            meaning="the topics to read; 'subscribePattern' is the alternative.",
        )
    if topics is not None and pattern is not None:
        raise OptionError(
            errors.OPTION_CONFLICT,
            options="'subscribe' and 'subscribePattern'",
            reason="a member has one subscription.",
        )
    if isinstance(topics, tuple):
        return Subscription(topics=topics)
    return Subscription(pattern=str(pattern))


def _assemble(values: Mapping[str, object], client: Mapping[str, str]) -> SourceOptions:
    max_poll_interval_ms = int(client.get("max.poll.interval.ms", "300000"))
    drain_timeout_ms = values["drainTimeoutMs"]
    if isinstance(drain_timeout_ms, int) and drain_timeout_ms > max_poll_interval_ms:
        raise invalid_option("drainTimeoutMs", str(drain_timeout_ms), f"0 to {max_poll_interval_ms}")
    timestamp_ms = values["startingTimestamp"]
    typed: dict[str, object] = {
        "bootstrap_servers": values["kafka.bootstrap.servers"],
        "group_id": values["kafka.group.id"],
        "subscription": _subscription(values),
        "starting_position": values["startingOffsets"] if timestamp_ms is None else StartingPosition.TIMESTAMP,
        "starting_timestamp_ms": timestamp_ms,
        "no_match_strategy": values["startingOffsetsByTimestampStrategy"],
        "max_offsets_per_trigger": values["maxOffsetsPerTrigger"],
        "min_partitions": values["minPartitions"],
        "max_records_per_partition": values["maxRecordsPerPartition"],
        "fail_on_data_loss": values["failOnDataLoss"],
        "include_headers": values["includeHeaders"],
        "checkpoint_location": values["checkpointLocation"],
        "drain_timeout_s": 0.8 * max_poll_interval_ms / 1000
        if drain_timeout_ms is None
        else float(str(drain_timeout_ms)) / 1000,
        "on_partitions_lost": values["onPartitionsLost"],
        "on_conflict": values["onConflict"],
        "metrics_path": values["metricsPath"],
        "poll_timeout_s": float(str(values["kafkaConsumer.pollTimeoutMs"])) / 1000,
        "fast_lane_max_offsets": values["fastLaneMaxOffsets"],
        "prefetch_memory_bytes": values["kafkaConsumer.prefetchMemoryBytes"],
        "session_timeout_s": int(client.get("session.timeout.ms", "45000")) / 1000,
        "heartbeat_interval_s": int(client.get("heartbeat.interval.ms", "3000")) / 1000,
        "group_protocol": GroupProtocol(client.get("group.protocol", "classic").lower()),
        "client_settings": dict(client),
    }
    return SourceOptions(**typed)  # type: ignore[arg-type]


def option_reference() -> str:
    """Return the option table of the README, in Markdown."""
    lines = ["| option | allowed | default | meaning |", "|---|---|---|---|"]
    for spec in OPTIONS:
        default = "(required)" if spec.required else _shown_default(spec.default)
        lines.append(f"| `{spec.name}` | {spec.allowed} | {default} | {spec.doc} |")
    return "\n".join(lines)


def _shown_default(default: object) -> str:
    if default is None:
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default.value if isinstance(default, Enum) else default}`"
