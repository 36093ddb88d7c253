"""Define the checked options. No I/O, no parsing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import (
    CLIENT_PREFIX,
    EXECUTOR_PREFIX,
    GroupProtocol,
    librdkafka_has,
    merged_executor_settings,
)
from spark_groupsource.options.offset_spec import Starting
from spark_groupsource.options.permissions import Permissions
from spark_groupsource.options.token_login import TokenLogin


class Reads(Enum):
    """Use of the options: a streaming query, or one batch read of a range."""

    STREAM = "a streaming query"
    BATCH = "a batch read"


class NoMatchStrategy(Enum):
    """Meaning of a starting time for a partition without a record at or after it (as in Spark)."""

    ERROR = "error"
    LATEST = "latest"


class OnPartitionsLost(Enum):
    """Reaction of the query when it lost partitions without a handover."""

    CONTINUE = "continue"
    FAIL = "fail"


class OnConflict(Enum):
    """Reaction of the query when the group's offsets and its checkpoint disagree."""

    GROUP = "group"
    FAIL = "fail"


class OnSharedState(Enum):
    """Reaction of the query when it shares partitions with another one, and one of the two has state."""

    FAIL = "fail"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to read: a list, all topics whose whole name matches a pattern, or single partitions."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def option(self) -> str:
        """Name of the option that set it, for errors."""
        return "assign" if self.partitions else "subscribe" if self.pattern is None else "subscribePattern"

    @property
    def value(self) -> str:
        """The option's value, for errors."""
        if self.partitions:
            return ",".join(map(str, self.partitions))
        return ",".join(self.topics) if self.pattern is None else self.pattern

    def includes(self, topic: str) -> bool:
        """Return whether it includes a topic of this name. A pattern never matches internal topics (`__...`)."""
        if self.pattern is None:
            return topic in self.topics
        return re.fullmatch(self.pattern, topic) is not None and not topic.startswith("__")


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Limits of a batch; None means no limit. `max_bytes` is approximate, the others are exact."""

    max_rows: int | None = None
    min_rows: int | None = None
    max_bytes: int | None = None


UNBOUNDED = ReadBounds()


class NextTrigger(Enum):
    """Whether a later trigger of this run reads what this one leaves.

    Guards against (no later trigger):
    1. A job with Trigger.Once is killed, and started again. The group still waits for the dead member's session.
    2. The only trigger has no partitions. It would end as if there was nothing to read, and the job succeeds.
    """

    COMES = "yes: this trigger may leave to it what would make it wait"
    NONE = "no: Trigger.AvailableNow or Once"
    UNKNOWN = "Spark does not say: the first trigger before Spark 4.2"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All checked options of one reader. Durations are in seconds."""

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
    # A URI may contain credentials: show it only with `checkpoint.location.shown_location`.
    checkpoint_location: str | None = field(repr=False)
    drain_timeout_s: float
    max_batch_s: float | None
    on_partitions_lost: OnPartitionsLost
    # None: not given. Another program's offset is followed then, but a query behind its own commits fails.
    on_conflict: OnConflict | None
    on_shared_state: OnSharedState
    metrics_path: str | None
    metrics_lag_interval_s: float
    # None: no port is opened. 0: a free one.
    metrics_port: int | None
    metrics_address: str
    poll_timeout_s: float
    fetch_retries: int | None
    fetch_retry_interval_s: float
    fast_lane_max_offsets: int
    prefetch_memory_bytes: int
    session_timeout_s: float
    heartbeat_interval_s: float
    # How long a rebalance waits for members that drain a batch.
    rebalance_timeout_s: float
    group_protocol: GroupProtocol
    # Empty: the client's own strategies, set by kafka.partition.assignment.strategy.
    assignors: tuple[str, ...]
    # None: the number of the driver machine's cores that the reader process may use.
    member_weight: int | None
    member_redundancy: int
    # Values may contain secrets: never in a repr.
    client_settings: Mapping[str, str] = field(repr=False)
    # The executors' own settings, without a prefix. Values may contain secrets: never in a repr.
    executor_settings: Mapping[str, str] = field(repr=False)
    # The provider of the tokens that clients log in with; None: they need none, or librdkafka fetches them itself.
    token_login: TokenLogin | None = None
    # The executors' provider, which is the common one unless they have an identity of their own.
    executor_token_login: TokenLogin | None = None
    # What the driver permits options to name; executors receive it too.
    permissions: Permissions = field(default_factory=Permissions)

    def for_reading(self) -> SourceOptions:
        """Return the executors' options: with their own settings, and without options that concern only the driver."""
        settings = merged_executor_settings(self.client_settings, self.executor_settings)
        return replace(
            self,
            bootstrap_servers=settings.pop("bootstrap.servers", self.bootstrap_servers),
            client_settings=settings,
            token_login=self.executor_token_login,
            checkpoint_location=None,
            metrics_path=None,
            metrics_port=None,
        )

    def option_name(self, setting: str) -> str:
        """Return the name of the option that set a client setting, for errors."""
        own = self.executor_settings.get(setting)
        is_own = own is not None and own == self.client_settings.get(setting)
        return (EXECUTOR_PREFIX if is_own else CLIENT_PREFIX) + setting

    @property
    def read_committed(self) -> bool:
        """Whether records of aborted and open transactions are skipped."""
        return self.client_settings.get("isolation.level", "read_uncommitted") == "read_committed"

    @property
    def is_member(self) -> bool:
        """Whether the query is a member of its group. With option assign it is none, and there are no others."""
        return not self.subscription.partitions

    @property
    def on_librdkafka(self) -> bool:
        """Whether the member's client is librdkafka, which has all strategies that it offers; else kafka-python."""
        return librdkafka_has(self.assignors)

    @property
    def assigned_by_id(self) -> bool:
        """Whether the coordinator assigns partitions by topic id: in a KIP-848 group, without option assign."""
        return self.group_protocol is GroupProtocol.CONSUMER and self.is_member

    @property
    def client_id(self) -> str | None:
        """The value of kafka.client.id, if given."""
        return self.client_settings.get("client.id")

    @property
    def instance_id(self) -> str | None:
        """The id of the static member (kafka.group.instance.id), if given."""
        return self.client_settings.get("group.instance.id")
