"""Holds a task's rows back until it is proven that they are of the topics that the plan meant.

A topic id is never used twice, and a topic that was deleted does not come back. So when a broker reports the planned
id, all that was received before the question was sent is of that topic (or of nothing at all, where the topic had no
record). One question covers all topics of a task. It is sent when the last record has arrived, in large tasks also
every `_CHECK_BYTES`, and while nothing comes. The client goes on fetching while the answer is on its way.

Guards against:
1. A plan means [0, 100) of a topic.
2. The topic is deleted, made again, and gets 300 records.
3. The task reads: the client is told that its topic id is unknown, learns the new one, and goes on at the same offset.
   By name and offset these are the planned records.

Limit: the broker that answers must have heard of the deletion. One that is cut off from the controller may report the
old id for some time. A broker without topic ids (before Kafka 2.8) proves nothing, and is not asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_groupsource.executor.clients.port import RequestFailed, TopicDenied, TopicInquiry
from spark_groupsource.executor.clients.rows import TOPIC_COLUMN
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.model.offsets import NO_TOPIC_ID, OffsetRange, TopicPartition, same_topic

# Rows that may wait for a question; twice as many that may wait for its answer. A question takes about 1 ms of work,
# and so many bytes some 40 ms.
_CHECK_BYTES = 8 * 1024 * 1024
_TIMEOUT_S = 3.0


class TopicProof:
    """The proof for one task. `topic_ids` are those that its ranges were planned for; others are not proven."""

    def __init__(self, consumer: RangeConsumer, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        self._consumer = consumer
        self._ranges = ranges
        topics = {item.partition.topic for item in ranges}
        self._ids = {topic: topic_ids[topic] for topic in topics if topic_ids.get(topic, NO_TOPIC_ID) != NO_TOPIC_ID}
        self._held: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._proven = {item.partition: item.start for item in ranges}
        self._inquiry: TopicInquiry | None = None
        # As it was when the question was sent: how many batches were held, and how far the ranges were taken.
        self._covered = 0
        self._reached: dict[TopicPartition, int] = {}

    def hold(self, rows: pa.RecordBatch) -> None:
        """Take rows that the consumer has given out."""
        self._held.append(rows)
        self._bytes += rows.nbytes if self._ids else 0

    def free(self) -> list[pa.RecordBatch]:
        """Return the rows that are proven, or need no proof, in their order."""
        if not self._ids:
            count = len(self._held)
        elif self._inquiry is None:
            # R57: only what had arrived before the question
            count, self._covered = self._covered, 0
        else:
            return []
        rows = [self._held.popleft() for _ in range(count)]
        self._bytes -= sum(each.nbytes for each in rows) if self._ids else 0
        return rows

    @property
    def asks(self) -> bool:
        """Whether any topic of the task has an id to ask for."""
        return bool(self._ids)

    @property
    def due(self) -> bool:
        """Whether it is time for a question before the task's end."""
        return self._inquiry is None and self._bytes >= _CHECK_BYTES

    @property
    def full(self) -> bool:
        """Whether no more rows should be taken before there is an answer."""
        return self._bytes >= 2 * _CHECK_BYTES

    @property
    def open(self) -> bool:
        """Whether anything that was taken is not proven."""
        return any(self._consumer.position(p) > at for p, at in self._proven.items() if p.topic in self._ids)

    def proven(self, item: OffsetRange) -> int:
        """Return the offset up to which a range is proven; up to which it was taken where no proof is needed."""
        partition = item.partition
        return self._proven[partition] if partition.topic in self._ids else self._consumer.position(partition)

    def ask(self) -> None:
        """Send a question, unless one is on its way."""
        if self._inquiry is None:
            self._covered = len(self._held)
            self._reached = {partition: self._consumer.position(partition) for partition in self._proven}
            self._inquiry = self._consumer.inquiries.identify(sorted(self._ids), _TIMEOUT_S)

    def look(self, wait_s: float) -> dict[str, str | None]:
        """Take the answer, if it is there; return the topics that have another id than planned, or none.

        Nothing is proven then. Raises `AccessError` for a topic that the client may not know. A question that nobody
        has answered is forgotten.
        """
        if self._inquiry is None:
            return {}
        try:
            found = self._inquiry.answer(wait_s)
        except TopicDenied:
            # The answer names no topic; the first one that may not be known is reported.
            self._consumer.check_access(self._ranges)
            self._forget()
            return {}
        except RequestFailed as error:
            self._consumer.inquiries.reason = str(error)
            self._forget()
            return {}
        if found is None:
            return {}
        others = {
            topic: found.get(topic)
            for topic, topic_id in self._ids.items()
            if not same_topic(found.get(topic), topic_id)
        }
        # R57: what is held may be of another topic
        if others:
            self._forget()
            return others
        self._inquiry = None
        self._proven |= self._reached
        return {}

    def give_up(self, topic: str) -> list[OffsetRange]:
        """Drop the rows of a topic that is gone; return what is lost of its ranges: all that is not proven."""
        self._forget()
        self._held = deque(rows for rows in self._held if rows.column(TOPIC_COLUMN)[0].as_py() != topic)
        self._bytes = sum(rows.nbytes for rows in self._held)
        lost = []
        for item in self._ranges:
            if item.partition.topic == topic:
                start = self.proven(item)
                if start < item.end:
                    lost.append(OffsetRange(item.partition, start, item.end))
                self._consumer.give_up(item)
        self._ids.pop(topic, None)
        if not self._ids:
            self._bytes = 0
        return lost

    def close(self) -> None:
        """Wait for no answer any more."""
        self._forget()

    def _forget(self) -> None:
        inquiry, self._inquiry, self._covered = self._inquiry, None, 0
        if inquiry is not None:
            inquiry.close()
