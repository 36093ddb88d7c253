"""Leave a recreated topic: confirm its new id, report what is lost, and let the member join its group again.

What the member knows of its assignment ends with it, so that the query starts as after a restart. Main thread of the
reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, of_another_topic
from spark_groupsource.model.offsets import TopicPartition, same_topic

LOG = logging.getLogger(__name__)

_PAUSE_S = 0.1
# Seconds that a plan waits for the group's offsets that it only checks. A member that waits longer than its heartbeat
# interval doubts its membership: while the coordinator is away, no batch would be planned.
_CHECK_S = 1.0


class RecreatedTopics:
    """Decide when a topic counts as recreated, and act on it once per topic id."""

    def __init__(self, query: QueryContext) -> None:
        self._group = query.options.group_id
        self._assigned_by_id = query.options.assigned_by_id
        self._clock, self._cluster, self._member, self._pause = query.clock, query.cluster, query.member, query.pause
        self._state, self._losses = query.state, query.losses
        # The ids of recreated topics for which the member has joined the group again.
        self._joined_for: dict[str, str] = {}

    def confirmed(self, recreated: Collection[TopicPartition], ids: Mapping[str, str], asked_s: float) -> bool:
        """Return whether the topics of these partitions were recreated for certain; pause if that is not known yet.

        Guards against (rule R36):
        1. A topic is recreated. [0, 500) of it is read and committed. The partition moves to another member.
        2. The broker that it asks lags behind and still reports the id of the deleted topic.
        3. For that id the group's offset 500 does not count: 0 would be committed over 500.
        """
        # R36: one answer may come from a broker that lags behind
        self._state.saw_ids(ids, asked_s)
        confirmed = self._state.confirmed({p.topic for p in recreated})
        if not confirmed:
            self._pause(_PAUSE_S)
        return confirmed

    def leave(self, positions: Mapping[TopicPartition, int], topics: Mapping[str, TopicInfo]) -> bool:
        """Leave partitions whose topic was recreated since they have a position (rule R35).

        What is lost with them is reported. Then the member joins the group again, and starts as after a restart.
        Returns whether that was so, or looked so for a moment. Raises `DataLossError` with failOnDataLoss=true.

        Guards against (rule R35):
        1. A topic is read to 100, deleted and recreated, and gets 300 records.
        2. By name the group's offset 100 would be the start in the recreated topic: its records 0 to 99 would be
           skipped.
        """
        doubted, asked_s = False, self._clock.monotonic_s()
        while True:
            ids = {topic: info.topic_id for topic, info in topics.items()}
            # R35: positions of a deleted topic
            recreated = {p: at for p, at in positions.items() if not same_topic(self._state.topic_id(p), ids[p.topic])}
            if not recreated or self._member.stopping:
                return doubted
            if self.confirmed(recreated, ids, asked_s):
                self._losses.report_recreated(recreated, topics)
                self._join_again({p.topic: ids[p.topic] for p in recreated})
                return True
            doubted, asked_s = True, self._clock.monotonic_s()
            topics = self._cluster.describe(set(topics))

    def assigned_before(self, recreated: Iterable[TopicPartition], ids: Mapping[str, str]) -> bool:
        """Return whether a group that assigns by topic id may have assigned partitions of a deleted topic (rule R81).

        Then the member joins the group again, once per recreated topic.

        Guards against (rule R81, KIP-848):
        1. A member owns partition 0 of a topic, which is deleted and recreated.
        2. The coordinator assigns by topic id. It assigns partition 0 of the recreated topic to another member. The
           first one learns of its loss with its next heartbeat, 5 s later.
        3. Until then its client reports the partition by name. After 3 s it believes that the topic was recreated
           (R36).
        4. Both members read the recreated topic, and both commit its offsets.
        """
        new = {p.topic: ids[p.topic] for p in recreated if self._joined_for.get(p.topic) != ids[p.topic]}
        # R81: the client knows its partitions by name only
        if new and self._assigned_by_id:
            self._join_again(new)
            return True
        return False

    def _join_again(self, topics: Mapping[str, str]) -> None:
        LOG.info(
            "the member joins the group again, because topics were recreated: group=%s topics=%s",
            self._group, sorted(topics),
        )  # fmt: skip
        self._joined_for |= topics
        self._member.rejoin()

    def restore(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit offsets of these again that the group does not have any more, in a group that assigns by topic id.

        A member of the deleted topic may have committed late, by the topic's name (rule R83).

        Guards against (rule R83):
        1. A batch of a topic is in flight. The topic is recreated. Another member is assigned a partition of it, reads
           it and commits its end.
        2. The batch ends before its member learns that the partition has left. Its commit replaces that end by the
           deleted topic's: the coordinator knows partitions by name.
        3. The other member stops. The next owner reads the recreated topic again from its beginning.
        """
        if not self._assigned_by_id or not (view := self._member.view()).committed:
            return
        wanted = set(partitions)
        held = {o.partition: o.group for o in view.partitions if o.position is not None and o.partition in wanted}
        found = self._member.fetch_offsets(list(held), _CHECK_S) if held else {}
        # R83: the end of a partition without new records would never be committed again
        items = [
            CommitItem(partition, group.offset, group.metadata)
            for partition, group in held.items()
            if group is not None and group.offset is not None and partition in found
            if _was_replaced(group, found[partition])
        ]
        if items:
            LOG.warning(
                "the group's offsets of recreated topics were replaced, and are committed again: group=%s %s",
                self._group, ", ".join(f"{item.partition} at {item.offset}" for item in items),
            )  # fmt: skip
            self._member.establish({}, items, view.assignment)


def _was_replaced(held: GroupOffset, found: GroupOffset) -> bool:
    """Return whether the group has no offset any more, or one of another topic id."""
    return found.offset is None or of_another_topic(held, found)
