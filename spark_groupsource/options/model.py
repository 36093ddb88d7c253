"""What options are once they are checked. No I/O, no parsing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import CLIENT_PREFIX, EXECUTOR_PREFIX, GroupProtocol, reading_settings
from spark_groupsource.options.offset_spec import Starting
from spark_groupsource.options.permissions import Permissions


class Reads(Enum):
    """What options are for: a streaming query, or one read of a range."""

    STREAM = "a streaming query"
    BATCH = "a batch read"


class NoMatchStrategy(Enum):
    """What a starting time means for a partition without a record at or after it (as in Spark)."""

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
class Subscription:
    """What is read: topics, or all topics whose whole name matches a pattern, or only some partitions of topics."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def option(self) -> str:
        """Name of the option it came from, for errors."""
        return "assign" if self.partitions else "subscribe" if self.pattern is None else "subscribePattern"

    @property
    def value(self) -> str:
        """The option's value, for errors."""
        if self.partitions:
            return ",".join(map(str, self.partitions))
        return ",".join(self.topics) if self.pattern is None else self.pattern


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """What a batch is limited by; None: by nothing. `max_bytes` is met about, the others exactly."""

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None


UNBOUNDED = ReadBounds()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of one reader, checked. Durations in seconds."""

    bootstrap_servers: str
    group_id: str
    subscription: Subscription
    starting: Starting
    ending: Starting
    no_match_strategy: NoMatchStrategy
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    # A URI may hold credentials: shown by `locations.shown_location` only.
    checkpoint_location: str | None = field(repr=False)
    drain_timeout_s: float
    max_batch_s: float | None
    on_partitions_lost: OnPartitionsLost
    on_conflict: OnConflict
    metrics_path: str | None
    metrics_lag_interval_s: float
    poll_timeout_s: float
    fetch_retries: int | None
    fetch_retry_interval_s: float
    fast_lane_max_offsets: int
    prefetch_memory_bytes: int
    session_timeout_s: float
    heartbeat_interval_s: float
    group_protocol: GroupProtocol
    # Empty: the client's own strategies, by kafka.partition.assignment.strategy.
    assignors: tuple[str, ...]
    # None: as many as the reader process may use cores of the driver's machine.
    member_weight: int | None
    member_redundancy: int
    # Secrets may be among the values: never in a repr.
    client_settings: Mapping[str, str] = field(repr=False)
    # What executors have of their own; without a prefix, as above.
    executor_settings: Mapping[str, str] = field(repr=False)
    # What the driver permits options to name; executors get it too.
    permissions: Permissions = field(default_factory=Permissions)

    def for_reading(self) -> SourceOptions:
        """Return what the executors get: with settings of their own, and without what concerns the driver alone."""
        settings = reading_settings(self.client_settings, self.executor_settings)
        return replace(
            self,
            bootstrap_servers=settings.pop("bootstrap.servers", self.bootstrap_servers),
            client_settings=settings,
            checkpoint_location=None,
            metrics_path=None,
        )

    def option_name(self, setting: str) -> str:
        """Return the option that a client setting came from, for errors."""
        own = self.executor_settings.get(setting)
        is_own = own is not None and own == self.client_settings.get(setting)
        return (EXECUTOR_PREFIX if is_own else CLIENT_PREFIX) + setting

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
