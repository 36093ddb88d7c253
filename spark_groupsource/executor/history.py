"""Of which logs a consumer's records are: a name and an offset alone may stand for other records later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_groupsource.model.offsets import OffsetRange, TopicPartition


class Histories:
    """What the ranges that a consumer was positioned for said of their logs.

    The sequences this protects against:
    - A consumer has read [0, 100) of a topic and fetched further; the topic is deleted, made again and filled; what the
      plan means by [100, 200) is the new topic's, what was fetched ahead is the old one's.
    - A consumer stands at 100 and has fetched 100 to 119; the leader dies with them, and the new one takes other
      records at 100, 101, ... (unclean leader election). The plan knows these, by the leader epoch.
    """

    def __init__(self) -> None:
        self._topic_ids: dict[str, str] = {}
        self._epochs: dict[TopicPartition, int | None] = {}

    def current(self, topic_ids: Mapping[str, str]) -> bool:
        """Whether none of these topics was read under another id."""
        return all(self._topic_ids.get(topic, topic_id) == topic_id for topic, topic_id in topic_ids.items())

    def same(self, item: OffsetRange) -> bool:
        """Whether what was fetched is what the range was planned by; one without an epoch does not say.

        A leader that changes cleanly has another epoch, too: what was fetched is then fetched once more.
        """
        return item.leader_epoch is None or self._epochs.get(item.partition) == item.leader_epoch

    def note(self, anew: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        """Take that these topics are read, and that from now on the ranges' partitions are fetched anew."""
        self._topic_ids |= topic_ids
        self._epochs |= {item.partition: item.leader_epoch for item in anew}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is left of what was fetched of these partitions."""
        for partition in partitions:
            self._epochs.pop(partition, None)
