"""A consumer that reads assigned ranges and stays where it is between batches.

It never takes part in a group: partitions are assigned by hand, nothing is committed. What it has fetched beyond
a range is kept for the next one, because the next batch most often starts there.

Invariant: for every assigned partition, `kept` followed by what the client still delivers is the log from
`position` on; `eof` is the furthest end-of-partition event, which stands behind all that was delivered before. A
partition in `lost` delivers nothing more until `skip` moves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.client import LastTransportError, base_settings, creating_client
from spark_groupsource.errors import AccessError, ReadError
from spark_groupsource.executor.collector import collector_paused
from spark_groupsource.offsets import OffsetRange, TopicPartition
from spark_groupsource.options import SourceOptions

# The client insists on a group id; nothing is ever asked of or told to that group.
_UNUSED_GROUP = "groupkafka-executor"
_GROUP_SETTINGS = (
    "group.protocol",
    "group.instance.id",
    "group.remote.assignor",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "heartbeat.interval.ms",
)
# Bounds of one `consume` call: enough records to pay for the call, few enough bytes to stay small. 5,000 to 20,000
# records take the same time each; at 2,000 and at 30,000 they take a tenth more.
_MAX_MESSAGES = 10_000
_MAX_BYTES = 32 * 1024 * 1024
_FIRST_MESSAGES = 1_000
# How long a moved consumer may wait for what the cluster says about a new topic; by itself it waits up to 1 s.
_METADATA_TIMEOUT_S = 1.0


class OutOfRange(Exception):
    """The log no longer has (or does not have yet) the offset that a partition is positioned at."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(str(partition))
        self.partition = partition


def executor_settings(options: SourceOptions) -> dict[str, Any]:
    """Return the client's settings for reading."""
    settings = base_settings(options, "executor")
    for name in _GROUP_SETTINGS:
        settings.pop(name, None)
    settings |= {
        "group.id": _UNUSED_GROUP,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "allow.auto.create.topics": False,
        "check.crcs": True,
    }
    # The default of 1,000 ms stalls a consumer whose queue is full: measured five times slower.
    settings.setdefault("fetch.queue.backoff.ms", "1")
    # How long an end-of-partition event may take; a range that ends with a transaction marker waits for it.
    settings.setdefault("fetch.wait.max.ms", "100")
    return settings


class RangeConsumer:
    """See the module's head. One thread at a time. `make_client` is for tests."""

    def __init__(self, options: SourceOptions, make_client: Callable[[dict[str, Any]], Consumer] = Consumer) -> None:
        self._options = options
        self._transport = LastTransportError()
        with creating_client(options):
            self._consumer = make_client(executor_settings(options) | {"error_cb": self._transport})
        self._position: dict[TopicPartition, int] = {}
        self._kept: dict[TopicPartition, list[Message]] = {}
        self._eof: dict[TopicPartition, int] = {}
        self._lost: set[TopicPartition] = set()
        self._topics: frozenset[str] = frozenset()
        self._average_bytes = _MAX_BYTES // _FIRST_MESSAGES
        self.reason = ""

    def __repr__(self) -> str:
        return f"RangeConsumer({', '.join(f'{tp}@{offset}' for tp, offset in sorted(self._position.items()))})"

    def positioned_at(self, ranges: Iterable[OffsetRange]) -> bool:
        """Whether the ranges start exactly where this consumer stands."""
        return self._position == {item.partition: item.start for item in ranges}

    def position_at(self, ranges: Iterable[OffsetRange]) -> None:
        """Stand at the start of these ranges; keeps connections, and what was fetched if it fits."""
        wanted = {item.partition: item.start for item in ranges}
        if wanted == self._position:
            return
        self._assign(wanted)
        self._learn_topics(frozenset(tp.topic for tp in wanted))

    def position(self, partition: TopicPartition) -> int:
        """The next offset to take of a partition."""
        return self._position[partition]

    def close(self) -> None:
        """Free the client."""
        self._consumer.close()

    def finished(self, item: OffsetRange) -> bool:
        """Whether all records of the range were taken."""
        partition = item.partition
        if self._position[partition] >= item.end:
            return True
        # An end-of-partition event before the range's end ends nothing: it may come from a leader that lags.
        return not self._kept.get(partition) and self._eof.get(partition, -1) >= item.end

    def take(self, item: OffsetRange, timeout_s: float) -> list[Message]:
        """Return the next records of one range, in order; empty when none came within the timeout.

        Raises `OutOfRange` when the log does not have the position; `skip` is the way on.
        """
        if not self._kept.get(item.partition) and item.partition not in self._lost:
            self._receive([item], timeout_s)
        kept = self._kept.pop(item.partition, [])
        if not kept:
            if item.partition in self._lost:
                raise OutOfRange(item.partition)
            return kept
        if int(kept[-1].offset() or 0) < item.end:
            self._position[item.partition] = int(kept[-1].offset() or 0) + 1
            return kept
        cut = next(index for index, message in enumerate(kept) if int(message.offset() or 0) >= item.end)
        self._kept[item.partition] = kept[cut:]
        self._position[item.partition] = item.end
        return kept[:cut]

    def settle(self, item: OffsetRange) -> None:
        """Stand at the range's end, past offsets that hold no record."""
        self._position[item.partition] = max(self._position[item.partition], item.end)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Go on at another offset of a partition.

        By a new assignment: the client refuses to seek in a partition that it has stopped at an offset out of range.
        """
        self._assign(self._position | {partition: offset})

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the first offset of the log and its end. Raises `ReadError` when the broker does not tell."""
        try:
            bounds = self._consumer.get_watermark_offsets(
                ClientPartition(partition.topic, partition.partition), timeout=timeout_s
            )
        except KafkaException as error:
            raise self._read_error(partition, str(error)) from None
        low, high = bounds
        return int(low), int(high)

    # --- helpers

    def _assign(self, wanted: dict[TopicPartition, int]) -> None:
        """Start anew at these offsets: what was fetched is dropped, what was lost is asked for again."""
        self._kept.clear()
        self._eof.clear()
        self._lost.clear()
        self._position = wanted
        self._consumer.assign([ClientPartition(tp.topic, tp.partition, at) for tp, at in wanted.items()])

    def _learn_topics(self, topics: frozenset[str]) -> None:
        """Make a moved consumer ask for its new topics' leaders at once.

        A client asks for the topics of its first assignment when it connects. For those of a later one it waits
        for its timer of 1 s, in which small batches stand still.
        """
        if self._topics:
            for topic in sorted(topics - self._topics):
                try:
                    self._consumer.list_topics(topic, _METADATA_TIMEOUT_S)
                except KafkaException as error:
                    # The timer asks again, and the task has a deadline.
                    self.reason = str(error)
        self._topics |= topics

    def _receive(self, ranges: Sequence[OffsetRange], timeout_s: float) -> None:
        remaining = sum(max(1, item.end - self._position[item.partition]) for item in ranges)
        fitting = max(1, _MAX_BYTES // max(1, self._average_bytes))
        with collector_paused():
            messages = self._consumer.consume(min(remaining, fitting, _MAX_MESSAGES), timeout_s)
        if not messages:
            return
        failed = [message for message in messages if message.error() is not None]
        if len(self._position) == 1 and not failed:
            self._kept.setdefault(next(iter(self._position)), []).extend(messages)
        else:
            self._sort(messages)
        size = sum(map(len, messages))
        self._average_bytes = max(64, (self._average_bytes + size // len(messages)) // 2)
        for message in failed:
            self._on_error(message)

    def _sort(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.error() is None:
                partition = TopicPartition(message.topic() or "", int(message.partition() or 0))
                self._kept.setdefault(partition, []).append(message)

    def _on_error(self, message: Message) -> None:
        error = message.error()
        if error is None:
            return
        code = error.code()
        partition = TopicPartition(message.topic() or "?", int(message.partition() or 0))
        if code == KafkaError._PARTITION_EOF:
            self._eof[partition] = max(self._eof.get(partition, -1), int(message.offset() or 0))
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            # The client says it once, and it may be about another range of the task: remember it for that one.
            self._lost.add(partition)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            option = self._options.subscription
            raise AccessError(
                errors.TOPIC_ACCESS_DENIED, option=option.option, value=option.value, topic=partition.topic
            )
        elif code in (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION):
            raise self._read_error(partition, error.str())
        elif code != KafkaError.GROUP_AUTHORIZATION_FAILED:
            # Rights on the unused group are not needed; all else may heal until the task's deadline.
            self.reason = self._transport.describe(error.str())

    def _read_error(self, partition: TopicPartition, reason: str) -> ReadError:
        position = self._position.get(partition, 0)
        return ReadError(
            errors.READ_FAILED,
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
            start=position,
            end="?",
            reason=reason,
        )
