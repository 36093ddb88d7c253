"""Hold a task's rows until it is proven that they are of the planned topics.

A topic id is never used twice, and a deleted topic does not come back. So if a broker reports the planned id, every row
received before the request was sent is of that topic. One request covers all topics of a task. It is sent when the last
record has arrived, in large tasks also every `_CHECK_BYTES`, and while no record arrives. The client continues to fetch
while the request is under way.

Guards against (rule R57):
1. [0, 100) is planned. The topic is deleted and recreated, and gets 300 records.
2. The task's client learns the new topic id and reads on at the same offset, as if this were the planned topic.
3. The next batch repeats them.

Limit: the broker that answers must know of the deletion. A broker that is cut off from the controller may report the
old id for some time. A broker without topic ids (before Kafka 2.8) proves nothing, and gets no request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_groupsource.executor.clients.port import RequestFailed, TopicDenied
from spark_groupsource.executor.clients.rows import TOPIC_COLUMN
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.topic_ids import TopicIdRequest
from spark_groupsource.model.offsets import NO_TOPIC_ID, OffsetRange, TopicPartition, same_topic

# Bytes of held rows that start a request; twice as many may be held while it is under way. A request takes about 1 ms
# of work, this many bytes some 40 ms.
_CHECK_BYTES = 8 * 1024 * 1024
_TIMEOUT_S = 3.0


class TopicProof:
    """Prove the rows of one task. `topic_ids` are the planned ones; topics without an id need no proof."""

    def __init__(self, consumer: RangeConsumer, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        self._consumer = consumer
        self._ranges = ranges
        topics = {item.partition.topic for item in ranges}
        self._ids = {topic: topic_ids[topic] for topic in topics if topic_ids.get(topic, NO_TOPIC_ID) != NO_TOPIC_ID}
        # With their sizes, which take longer to measure than all else that is done with a small batch here.
        self._held: deque[tuple[pa.RecordBatch, int]] = deque()
        self._bytes = 0
        self._proven = {item.partition: item.start for item in ranges}
        self._request: TopicIdRequest | None = None
        # At the time of the request: the number of held batches, and the positions of the ranges.
        self._covered = 0
        self._reached: dict[TopicPartition, int] = {}

    def hold(self, rows: pa.RecordBatch) -> None:
        """Hold rows that the consumer has returned."""
        size = rows.nbytes
        self._held.append((rows, size))
        self._bytes += size

    def release_proven(self) -> list[tuple[pa.RecordBatch, int]]:
        """Return and release the rows that are proven or need no proof, in their order and with their sizes."""
        if not self._ids:
            count = len(self._held)
        elif self._request is None:
            # R57: only what had arrived before the question
            count, self._covered = self._covered, 0
        else:
            return []
        released = [self._held.popleft() for _ in range(count)]
        self._bytes -= sum(size for _, size in released)
        return released

    @property
    def needs_proof(self) -> bool:
        """Return whether any topic of the task has an id to prove."""
        return bool(self._ids)

    @property
    def due(self) -> bool:
        """Return whether enough rows are held for a request before the task's end."""
        return self.needs_proof and self._bytes >= _CHECK_BYTES

    @property
    def full(self) -> bool:
        """Return whether to pause reading until the request is answered."""
        return self._bytes >= 2 * _CHECK_BYTES

    @property
    def has_unproven(self) -> bool:
        """Return whether any row that the consumer has returned is not proven, or is held.

        Guards against:
        1. A topic was planned by brokers without topic ids, another one after their upgrade. One task has both.
        2. The request after 8 MB proves all rows of the one with an id. The last rows of the other one are held.
        3. The task would end without them: they are lost.
        """
        with_id = ((p, at) for p, at in self._proven.items() if p.topic in self._ids)
        return bool(self._ids and self._held) or any(self._consumer.position(p) > at for p, at in with_id)

    def proven(self, item: OffsetRange) -> int:
        """Return the offset up to which a range is proven; its position if it needs no proof."""
        partition = item.partition
        return self._proven[partition] if partition.topic in self._ids else self._consumer.position(partition)

    def send_request(self) -> None:
        """Send a request, unless one is under way."""
        if self._request is None:
            self._covered = len(self._held)
            self._reached = {partition: self._consumer.position(partition) for partition in self._proven}
            self._request = self._consumer.requests.request_topic_ids(sorted(self._ids), _TIMEOUT_S)

    def read_answer(self, wait_s: float) -> list[str]:
        """Process the answer if it has arrived, waiting up to `wait_s`. Return topics that do not have the planned id.

        If any topic is returned, the answer proves nothing. Raises `AccessError` for a topic that the client may not
        describe. A request that failed is dropped.
        """
        if self._request is None:
            return []
        try:
            found = self._request.answer(wait_s)
        except TopicDenied:
            # The answer names no topic: `check_access` raises for the first one that is denied.
            self._consumer.check_access(self._ranges)
            self._forget()
            return []
        except RequestFailed as error:
            self._consumer.requests.reason = str(error)
            self._forget()
            return []
        if found is None:
            return []
        others = [topic for topic, topic_id in self._ids.items() if not same_topic(found.get(topic), topic_id)]
        # R57: what is held may be of another topic
        if others:
            self._forget()
            return others
        self._request = None
        self._proven |= self._reached
        return []

    def give_up(self, topic: str) -> list[OffsetRange]:
        """Drop the held rows of a deleted or recreated topic; return the lost, unproven parts of its ranges."""
        self._forget()
        self._held = deque(held for held in self._held if held[0].column(TOPIC_COLUMN)[0].as_py() != topic)
        self._bytes = sum(size for _, size in self._held)
        lost = []
        for item in self._ranges:
            if item.partition.topic == topic:
                start = self.proven(item)
                if start < item.end:
                    lost.append(OffsetRange(item.partition, start, item.end))
                self._consumer.give_up(item)
        self._ids.pop(topic, None)
        return lost

    def _forget(self) -> None:
        self._request, self._covered = None, 0
