"""How much there is to read: asks the cluster what a plan needs to know, no more and no more often than it must.

Main thread of the reader process only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import ClusterPort, Edge, LogEnd, LogSurvey
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.planning.batch import Backlog

# A limited batch that a survey so old can fill is planned from it. The topics' ids and the logs' beginnings are then as
# old, which is less than may pass between a plan and its read anyway.
SURVEY_AGE_S = 1.0


class LogWatch:
    """What is known of the logs of the owned partitions.

    An idle trigger costs one request, a trigger with records three at once, and one of a backlog's many none.
    """

    def __init__(self, cluster: ClusterPort, clock: Clock, max_delay_s: float = 0.0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._max_delay_s = max_delay_s
        self._held = Deadline(clock, 0.0)
        self._targets: dict[TopicPartition, int] | None = None
        self._ends: dict[TopicPartition, LogEnd] = {}
        # The last survey, and until when it is young enough.
        self._survey: tuple[LogSurvey, Deadline] | None = None
        self._idle = True

    @property
    def targets(self) -> Mapping[TopicPartition, int] | None:
        """Where AvailableNow ends; None without it."""
        return self._targets

    @property
    def ends(self) -> Mapping[TopicPartition, LogEnd]:
        """The ends of the logs that the last plan could read from, also behind AvailableNow's."""
        return self._ends

    @property
    def newest(self) -> dict[TopicPartition, int]:
        """The offsets of `ends`."""
        return {partition: end.offset for partition, end in self._ends.items()}

    def fix_targets(self, partitions: Iterable[TopicPartition]) -> None:
        """Read no further than the ends of these logs as they are now."""
        ends = self._cluster.log_offsets(dict.fromkeys(partitions, Edge.LATEST))
        self._targets = {partition: end.offset for partition, end in ends.items() if end is not None}

    def backlogs(self, positions: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, Backlog]:
        """Return what there is to read from these positions on; `limit` is how much a batch may read."""
        if self._survey is not None and limit is not None:
            survey, young = self._survey
            if not young.expired() and positions.keys() <= survey.ends.keys():
                backlogs = self._between(positions, survey.ends)
                if sum(backlog.size for backlog in backlogs.values()) >= limit:
                    return backlogs
        self.forget()
        if self._idle:
            return self._between(positions, self._cluster.log_offsets(dict.fromkeys(positions, Edge.LATEST)))
        return self._between(positions, self.survey(positions).ends)

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """Return the survey that the last backlogs came from, or make it.

        Its ends may then be newer than theirs. A topic that is made anew between both is noticed by the next ones.
        """
        if self._survey is None:
            young = Deadline(self._clock, SURVEY_AGE_S)
            self._survey = self._cluster.survey(partitions), young
        return self._survey[0]

    def forget(self) -> None:
        """Ask anew: the topics or the positions are others."""
        self._survey = None

    def enough(self, backlogs: Mapping[TopicPartition, Backlog], least: int | None) -> bool:
        """Whether there is enough to read.

        Fewer than `least` offsets wait for option maxTriggerDelay, counted from the last batch as in Spark's own
        source: what the first trigger finds does not wait, nor does AvailableNow.
        """
        available = sum(backlog.size for backlog in backlogs.values())
        enough = available > 0
        if self._targets is None:
            enough = enough and (available >= (least or 0) or self._held.expired())
        self._idle = not enough and not self.suspicious(backlogs)
        return enough

    def suspicious(self, backlogs: Mapping[TopicPartition, Backlog]) -> bool:
        """Whether a log is so short that its topic may be another one."""
        return self._targets is None and any(backlog.end < backlog.position for backlog in backlogs.values())

    def planned(self) -> None:
        """Note that a batch was planned: the next one may wait for more records."""
        self._held = Deadline(self._clock, self._max_delay_s)

    def _between(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, LogEnd | None]
    ) -> dict[TopicPartition, Backlog]:
        known = {partition: ends.get(partition) for partition in positions}
        self._ends = {partition: end for partition, end in known.items() if end is not None}
        return {partition: self._backlog(partition, position) for partition, position in positions.items()}

    def _backlog(self, partition: TopicPartition, position: int) -> Backlog:
        end = self._ends.get(partition, LogEnd(position))
        target = end.offset if self._targets is None else self._targets.get(partition, 0)
        return Backlog(position, min(end.offset, target), end.leader_epoch)
