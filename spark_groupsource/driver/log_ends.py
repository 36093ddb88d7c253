"""Query the logs of the owned partitions for what a plan needs, with as few requests as possible.

Main thread of the reader process only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import ClusterPort, Edge, LogEnd, LogSurvey
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.planning.batch import Backlog

# Maximum age in seconds of a survey from which a limited batch is planned without new requests. Topic ids and log
# beginnings are then as old. More time may pass between a plan and its read anyway.
SURVEY_AGE_S = 1.0
# Maximum time in seconds without a request for the topics' ids, while there is nothing to read.
IDS_AGE_S = 5.0


class LogWatch:
    """Keep what is known of the logs of the owned partitions.

    - `targets`: the offsets at which AvailableNow ends; None without AvailableNow.
    - `ends`: the ends of the logs that the last plan could read from, also those beyond the AvailableNow targets.

    An idle trigger costs one request; every `IDS_AGE_S` seconds it costs a survey, too. A trigger with records costs
    three: the ends, then two at once. A further batch of a backlog costs none while the last survey can fill it.
    """

    def __init__(self, cluster: ClusterPort, clock: Clock, max_delay_s: float = 0.0) -> None:
        self._cluster = cluster
        self._clock = clock
        self._max_delay_s = max_delay_s
        self._held = Deadline(clock, 0.0)
        self.targets: Mapping[TopicPartition, int] | None = None
        self.ends: Mapping[TopicPartition, LogEnd] = {}
        # The last survey, and the deadline until which it may be used.
        self._survey: tuple[LogSurvey, Deadline] | None = None
        self._ids_young = Deadline(clock, IDS_AGE_S)
        self._idle = True

    @property
    def newest(self) -> dict[TopicPartition, int]:
        """The offsets of `ends`."""
        return {partition: end.offset for partition, end in self.ends.items()}

    def fix_targets(self, partitions: Iterable[TopicPartition]) -> None:
        """Fix the AvailableNow targets: the current ends of these logs. Later plans read no further."""
        ends = self._cluster.log_offsets(dict.fromkeys(partitions, Edge.LATEST))
        self.targets = {partition: end.offset for partition, end in ends.items() if end is not None}

    def backlogs(self, positions: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, Backlog]:
        """Return the backlogs from these positions on. `limit` is the maximum number of offsets in a batch."""
        if self._survey is not None and limit is not None:
            survey, young = self._survey
            if not young.expired() and positions.keys() <= survey.ends.keys():
                backlogs = self._between(positions, survey.ends)
                if sum(backlog.size for backlog in backlogs.values()) >= limit:
                    return backlogs
        self._survey = None
        if self._idle:
            return self._between(positions, self._cluster.log_offsets(dict.fromkeys(positions, Edge.LATEST)))
        return self._between(positions, self.survey(positions).ends)

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """Return the survey that the last backlogs came from, or request a new one.

        A new one may have newer ends than the backlogs. A topic recreated between the two is noticed with the next
        backlogs.
        """
        if self._survey is None:
            young = Deadline(self._clock, SURVEY_AGE_S)
            self._ids_young = Deadline(self._clock, IDS_AGE_S)
            self._survey = self._cluster.survey(partitions), young
        return self._survey[0]

    def enough(self, backlogs: Mapping[TopicPartition, Backlog], least: int | None) -> bool:
        """Return whether there is enough to read.

        Fewer than `least` offsets wait for option maxTriggerDelay, counted from the last batch as in Spark's own Kafka
        source. Records that the first trigger finds do not wait, and AvailableNow does not wait.
        """
        available = sum(backlog.size for backlog in backlogs.values())
        enough = available > 0
        if self.targets is None:
            enough = enough and (available >= (least or 0) or self._held.expired())
        self._idle = not enough and not self.suspicious(backlogs)
        return enough

    def suspicious(self, backlogs: Mapping[TopicPartition, Backlog]) -> bool:
        """Return whether a log ends before its position, so that its topic may have been recreated.

        `Backlog.end` may be an AvailableNow target, which is no end of a log.
        """
        known = ((self.ends.get(partition), backlog.position) for partition, backlog in backlogs.items())
        return any(end is not None and end.offset < position for end, position in known)

    @property
    def ids_due(self) -> bool:
        """Whether an idle trigger has to request the topics' ids: the last request was `IDS_AGE_S` ago (rule R35).

        Guards against (rule R35, as many records):
        1. 20 records of a partition are read.
        2. Between two triggers the topic is deleted, recreated and gets 20 records.
        3. The log ends where the query is, so no trigger asks for more. The 20 records stay unread.
        """
        # R35: a recreated topic may have as many records as were read of the deleted one
        return self.targets is None and self._ids_young.expired()

    def planned(self) -> None:
        """Record that a batch was planned: the next one may wait for more records."""
        self._held = Deadline(self._clock, self._max_delay_s)

    def _between(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, LogEnd | None]
    ) -> dict[TopicPartition, Backlog]:
        known = {partition: ends.get(partition) for partition in positions}
        self.ends = {partition: end for partition, end in known.items() if end is not None}
        return {partition: self._backlog(partition, position) for partition, position in positions.items()}

    def _backlog(self, partition: TopicPartition, position: int) -> Backlog:
        end = self.ends.get(partition, LogEnd(position))
        target = end.offset if self.targets is None else self.targets.get(partition, 0)
        return Backlog(position, min(end.offset, target), end.leader_epoch)
