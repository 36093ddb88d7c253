"""Classify refused commits by Kafka's error code, and map those that are refused for good to the catalogue's errors.

Both clients use the codes of the protocol. Rule R19 uses the classes.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError

from spark_groupsource import errors
from spark_groupsource.client.errors import map_group_error, topics_denied
from spark_groupsource.errors import GroupKafkaError, MembershipError
from spark_groupsource.membership.port import Refusal
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.options.model import SourceOptions

_LOST = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError._FENCED,
    KafkaError._ASSIGNMENT_LOST,
}
_REBALANCE = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.STALE_MEMBER_EPOCH,
}
DENIED = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.INVALID_COMMIT_OFFSET_SIZE,
}


def classify_refusal(error: KafkaError) -> Refusal:
    """Return why a commit was refused; `UNCERTAIN` if the error leaves its outcome open.

    Guards against (rule R19):
    1. A cooperative member commits while a rebalance begins. The commit is refused with REBALANCE_IN_PROGRESS.
    2. The member drops its partitions as if it had lost them.
    3. The group never assigns them again: nobody reads them.

    Guards against (rule R19, refused for good):
    1. The right to use the group is removed while the query runs. A commit is refused.
    2. As a commit without a clear answer it would be sent again forever, and hold up all others.
    3. The query would read on without commits. After a restart all of that would be read again.
    """
    if error.code() in _LOST:
        return Refusal.LOST
    if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return Refusal.NO_TOPIC
    # R19: no later try is accepted
    if error.code() in DENIED:
        return Refusal.DENIED
    # R19: sent again, nothing is dropped
    return Refusal.REBALANCE if error.code() in _REBALANCE else Refusal.UNCERTAIN


def denial(options: SourceOptions, error: KafkaError, items: Sequence[CommitItem]) -> GroupKafkaError | None:
    """Return the catalogue's error of a commit that was refused for good; None if it was refused for another reason.

    `items` are those of the request that were refused with this error.
    """
    code, group, reason = error.code(), options.group_id, error.str()
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return topics_denied(options, {item.partition.topic for item in items})
    # In bytes, with the zero byte that ends each text.
    sizes = {item.partition: len(item.metadata.encode()) + 1 for item in items}
    if code == KafkaError.OFFSET_METADATA_TOO_LARGE:
        largest = max(sizes, key=lambda partition: sizes[partition])
        what, setting = f"the metadata committed with the offset of {largest}", "offset.metadata.max.bytes"
        size = sizes[largest]
    elif code == KafkaError.INVALID_COMMIT_OFFSET_SIZE:
        what, setting = f"a commit of {len(items)} partitions", "max.message.bytes of the topic __consumer_offsets"
        size = sum(sizes.values())
    else:
        return map_group_error(options, error) if code in DENIED else None
    return MembershipError(errors.COMMIT_TOO_LARGE, group=group, what=what, size=size, reason=reason, setting=setting)
