"""Build the errors of a task that cannot read, from the error catalogue."""

from __future__ import annotations

from spark_groupsource import errors
from spark_groupsource.client.errors import topics_denied
from spark_groupsource.errors import GroupKafkaError, ReadError
from spark_groupsource.executor.clients.port import (
    Damaged,
    Misfit,
    PositionLost,
    TopicForbidden,
)
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.client_settings import RECEIVED_MAX_BYTES, RECEIVED_SETTING
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.secrets import setting_of


class OutOfRange(Exception):
    """The log does not have the partition's position, or not yet, or the partition itself is missing."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(str(partition))
        self.partition = partition


def unreadable(partition: TopicPartition, offset: int, reason: str) -> ReadError:
    """Return the error for a partition that cannot be read at `offset`."""
    return ReadError(
        errors.READ_FAILED,
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        reason=reason,
    )


def _too_large(options: SourceOptions, limit: str, event: Damaged, offset: int) -> ReadError:
    """Return the error for a batch that may be too large for the user's limit, which has the name `limit`."""
    return ReadError(
        errors.BATCH_TOO_LARGE,
        topic=event.partition.topic,
        partition=event.partition.partition,
        offset=offset,
        option=options.option_name(limit),
        value=options.client_settings[limit],
        largest=RECEIVED_MAX_BYTES,
        reason=event.reason,
    )


def misfit_error(item: Misfit) -> ReadError:
    """Return the error for a record that no row can hold."""
    topic, partition = item.partition
    return ReadError(item.condition, topic=topic, partition=partition, offset=item.offset, value=item.value_ms)


_NO_REASON = (
    "the Kafka client reported no reason (if kafka.isolation.level was changed to read_committed, an open transaction"
    " may hold these records back)"
)


def stalled(item: OffsetRange, offset: int, timeout_s: float, reason: str) -> ReadError:
    """Return the error for a range without new records at `offset` for `timeout_s` seconds.

    `reason` is the last one that the client reported, empty if it reported none.

    It reports none for a batch that was planned with read_uncommitted, is run again with read_committed, and ends
    behind the start of an open transaction.
    """
    return ReadError(
        errors.READ_STALLED,
        topic=item.partition.topic,
        partition=item.partition.partition,
        timeout_s=timeout_s,
        offset=offset,
        start=item.start,
        end=item.end,
        reason=reason or _NO_REASON,
    )


def end_of(
    options: SourceOptions, event: PositionLost | TopicForbidden | Damaged, offset: int
) -> GroupKafkaError | OutOfRange:
    """Return the error that ends reading a partition at `offset`."""
    if isinstance(event, TopicForbidden):
        return topics_denied(options, [event.partition.topic])
    if isinstance(event, Damaged):
        limit = next((name for name in options.client_settings if setting_of(name) == RECEIVED_SETTING), None)
        if event.limited and limit is not None:
            return _too_large(options, limit, event, offset)
        return unreadable(event.partition, offset, event.reason)
    return OutOfRange(event.partition)
