"""Check completed batches for records that executors may have skipped (option failOnDataLoss=false).

An executor reports what it skips only in its own log, and has no way to report it to the driver. So the driver compares
the batch with the logs when the batch is complete, and reports an upper bound. Main thread of the reader process only.

Guards against (rule R92):
1. A batch is in flight. Its topic is recreated, and the tasks skip what they cannot read any more.
2. The batch is complete. The query is asked to stop, or is killed, before its next trigger; with `Trigger.Once` there
   is none.
3. The driver reports nothing: only a line in an executor's log has the loss.

So a batch is checked at the next trigger, at a stop, and after a restart. One answer with the id that the topic had is
no proof, because a broker may lag behind: the ids are checked again after 3 s, by a later trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.clock import Deadline
from spark_groupsource.cluster.port import CONFIRM_S, Edge, TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.topics import Known
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, same_topic

# Seconds after the end of a batch within which what its logs have lost counts.
COUNTS_S = 2 * CONFIRM_S


@dataclass(slots=True)
class _Batch:
    """A completed batch: where it ended, and the ranges that executors have read.

    - `certain`: from when on a request for the topics' ids proves that they were the same.
    - `counts`: until when a loss counts. Later it may well be one of after the batch.
    - `earlier`: whether an earlier run of the query has completed it, and may have checked it. It counts nothing.
    - `removed_checked`: whether the beginnings of its logs were checked.
    - `seen`: topics that had the same id when the batch was checked, so that a later change counts nothing.
    """

    end: SourceOffset
    ranges: tuple[OffsetRange, ...]
    certain: Deadline
    counts: Deadline
    earlier: bool
    removed_checked: bool = False
    seen: frozenset[str] = frozenset()

    @property
    def ids(self) -> dict[str, str]:
        """The ids of the topics that the batch has read."""
        topics = {item.partition.topic for item in self.ranges}
        return {topic: topic_id for topic, topic_id in self.end.topic_ids if topic in topics}


class ReadCheck:
    """Keep completed batches until they are checked. `describe` returns those of some topics that exist."""

    def __init__(
        self, query: QueryContext, describe: Callable[[Iterable[str], Known], Mapping[str, TopicInfo]]
    ) -> None:
        self._options, self._clock, self._cluster = query.options, query.clock, query.cluster
        self._state, self._losses = query.state, query.losses
        self._describe = describe
        self._batches: list[_Batch] = []
        # Whether a batch was recorded: the newest one of the checkpoint, or one of this run.
        self._begun = False

    def resumed(self, start: SourceOffset) -> None:
        """Record the newest batch of the checkpoint, once after a start: an earlier run may not have checked it."""
        if not self._begun:
            self._add(start, start.ranges, 0.0, earlier=True)

    def completed(self, end: SourceOffset, ranges: tuple[OffsetRange, ...], completed_s: float) -> None:
        """Record that a batch is complete, which of its ranges executors have read, and when it was complete."""
        self._add(end, ranges, COUNTS_S - (self._clock.monotonic_s() - completed_s), earlier=False)

    def _add(self, end: SourceOffset, ranges: tuple[OffsetRange, ...], counts_s: float, *, earlier: bool) -> None:
        self._begun = True
        read = tuple(item for item in ranges if len(item))
        # With failOnDataLoss=true an executor fails, and with it the batch.
        if read and not self._options.fail_on_data_loss:
            deadlines = Deadline(self._clock, CONFIRM_S), Deadline(self._clock, counts_s)
            self._batches.append(_Batch(end, read, *deadlines, earlier))

    def check(self, *, last: bool = False) -> None:
        """Check the batches if one is due; report what may have been skipped. `last`: the query ends, all are due."""
        # R92: by the time of the request; those of the logs' beginnings may take long
        certain = [batch.certain.expired() for batch in self._batches]
        if not (any(certain) or any(last or not batch.removed_checked for batch in self._batches)):
            return
        asked_s = self._clock.monotonic_s()
        described = self._describe(
            {topic for batch in self._batches for topic in batch.ids}, Known.of(self._batches[-1].end)
        )
        ids = {topic: info.topic_id for topic, info in described.items()}
        self._state.saw_ids(ids, asked_s)
        kept = []
        for batch, is_certain in zip(self._batches, certain, strict=True):
            others = {topic for topic, topic_id in batch.ids.items() if not same_topic(ids.get(topic), topic_id)}
            doubtful = {topic for topic in others & ids.keys() if not last and not self._state.confirmed([topic])}
            counts = not batch.counts.expired()
            same = [item for item in batch.ranges if item.partition.topic not in others]
            if not batch.removed_checked:
                partitions = dict.fromkeys((item.partition for item in same), Edge.EARLIEST)
                begin = self._cluster.log_offsets(partitions)
                self._losses.report_removed_while_read(same, begin, earlier=batch.earlier, counts=counts)
            replaced = [item for item in batch.ranges if item.partition.topic in others - doubtful]
            likely = [item for item in replaced if item.partition.topic not in batch.seen]
            self._losses.report_replaced_while_read(likely, earlier=batch.earlier, counts=counts)
            unlikely = [item for item in replaced if item.partition.topic in batch.seen]
            self._losses.report_replaced_while_read(unlikely, earlier=batch.earlier, counts=False)
            batch.removed_checked, batch.seen = True, batch.seen | (batch.ids.keys() - others)
            batch.ranges = tuple(item for item in batch.ranges if item.partition.topic not in others - doubtful)
            # R92: until an answer proves that the topics are the same
            if batch.ranges and (doubtful or not is_certain):
                kept.append(batch)
        self._batches = kept
