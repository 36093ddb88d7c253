"""Report what is lost with missing topics and partitions, and leave them out of later plans.

The checks of `TopicWatch` only return what is missing. This is the one place that acts on their results. Main thread of
the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from spark_groupsource import errors
from spark_groupsource.clock import Deadline
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.data_loss import DELETED, FEWER_PARTITIONS, RECREATED
from spark_groupsource.driver.readiness import FIRST_ASSIGNMENT_S
from spark_groupsource.driver.topics import NOTHING, Known, Missing, TopicWatch
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.commit_metadata import metadata_of
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition, same_topic

LOG = logging.getLogger(__name__)

_PAUSE_S = 0.1


class MissingTopics:
    """Run the checks of `TopicWatch` and act on them. Every method raises `DataLossError` as failOnDataLoss says."""

    def __init__(self, query: QueryContext, topics: TopicWatch) -> None:
        self._options, self._clock, self._pause = query.options, query.clock, query.pause
        self._cluster, self._member = query.cluster, query.member
        self._state, self._losses = query.state, query.losses
        self._topics = topics
        self._start_checked = False

    def describe(self, topics: Iterable[str], known: Known) -> dict[str, TopicInfo]:
        """Return those of these topics that exist. Report what is lost with the others."""
        wanted = set(topics)
        try:
            return self._cluster.describe(wanted - self._state.deleted)
        except OptionError as error:
            self.handle_unknown(error, known)
            return self._cluster.describe(wanted - self._state.deleted)

    def existing(self, end: SourceOffset, known: Known) -> list[OffsetRange]:
        """Return the ranges of a logged batch whose topics are those that it was planned for.

        Report what is lost with the others.
        """
        begun = known.last
        described = self.describe({partition.topic for partition in begun}, known)
        ids = {topic: info.topic_id for topic, info in described.items()}
        replaced = {p: at for p, at in begun.items() if not same_topic(ids.get(p.topic), end.topic_id(p.topic))}
        self._losses.report_recreated({p: at for p, at in replaced.items() if p.topic in ids}, described)
        # Unless it was reported when the topics were described.
        self._losses.report_missing({p: at for p, at in replaced.items() if p.topic not in ids}, DELETED)
        return [item for item in end.ranges if item.partition in begun and item.partition not in replaced]

    def handle_unknown(self, error: OptionError, known: Known) -> None:
        """Handle "unknown topic or partition": report data loss for what this query has read.

        Topics that matched a pattern are left out. Otherwise raises `error` again.
        """
        if error.condition != errors.TOPIC_UNKNOWN:
            raise error
        if known is not NOTHING and not known.replayed:
            self.check_start(known)
        missing = self._topics.missing_of(known)
        if missing.never_existed:
            self._losses.report_missing(missing.deleted, DELETED)
            raise error
        self._leave_out(missing, known)

    def check_start(self, known: Known) -> None:
        """Compare once after a start what the checkpoint has read with the cluster."""
        if not self._start_checked:
            self._topics.warn_if_another_query(known)
            self._leave_out(self._topics.started_from(known), known)
            self._compare_left()
            self._start_checked = True

    def refresh(self, known: Known) -> bool:
        """Find the topics again if the interval has passed. Return whether the member must subscribe again."""
        changed = self._topics.refresh(known)
        if changed:
            self._leave_out(self._topics.missing_unassigned(known), known)
        return changed

    def leave_out_of(self, view: GroupView, known: Known) -> GroupView:
        """Return the view without missing partitions. Compare those that are not this member's with the cluster."""
        self._topics.hold(view, known)
        self._compare_left()
        return self._topics.without_missing(view)

    def compare_unassigned(self) -> None:
        """Compare what the checkpoint has read with the cluster while the group has assigned nothing yet.

        Guards against (rule R91, before the first assignment):
        1. A query stops with unread records. Its topic is deleted and recreated.
        2. A fresh query takes all partitions over, and knows nothing of the former topic.
        3. The query starts again. In a KIP-848 group a member without partitions gets no assignment: the partitions
           never leave it, and nobody reports the unread records.
        """
        if not self._topics.assigned and not self._member.stopping:
            self._compare_left()

    def _taken(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of these partitions whose offset in the group is not of the topic that this query has read."""
        if not self._member.is_started:
            return set()
        read = self._state.left
        found = {p: metadata_of(group) for p, group in self._member.fetch_offsets(sorted(partitions)).items()}
        return {p for p, text in found.items() if text is not None and not same_topic(text.topic_id, read[p].topic_id)}

    def _compare_left(self) -> None:
        """Report what is lost with partitions that this query has read and does not hold (rule R91).

        Waits until other ids of their topics are confirmed, so that nothing is planned before the report.

        Guards against (rule R91, while the query is down):
        1. A query is down. Its topic is deleted, or recreated with fewer partitions.
        2. It starts. The group assigns what exists, so nobody asks for the missing partitions.
        3. Nobody would report the loss of their unread records.
        """
        while True:
            missing, waits = self._topics.missing_left(self._taken)
            unshared = [p for p in missing.lost if not self._state.partition(p).shared]
            others = bool(unshared) and self._has_others()
            # R91: others may have had it while this query was down
            if others and not self._topics.assigned:
                self._state.share(unshared)
            if not self._topics.assigned:
                self._state.share(missing.recreated)
            self._leave_out(missing, NOTHING, held=False, others=others)
            if not waits or self._member.stopping:
                return
            self._pause(_PAUSE_S)

    def _has_others(self) -> bool:
        """Return whether the group has other members now; False if that is not known.

        A single member may be this one: a static member does not know its id before it has joined.
        """
        wait = Deadline(self._clock, FIRST_ASSIGNMENT_S)
        while True:
            members = self._cluster.members(self._options.group_id)
            if members is None or not self._member.is_started:
                return bool(members)
            if own := self._member.member_id():
                return bool(members.keys() - {own})
            if len(members) != 1 or wait.expired() or self._member.stopping:
                return len(members) > 1
            self._pause(_PAUSE_S)

    def _leave_out(self, missing: Missing, known: Known, *, held: bool = True, others: bool = False) -> None:
        self._losses.report_missing(missing.deleted, DELETED, held=held, others=others)
        self._losses.report_missing(missing.recreated, RECREATED, held=held, others=others)
        if new := set(missing.not_read) - self._state.deleted:
            # How far this query had read them before it handed them over.
            done = [f"{partition} at {at}" for partition, at in sorted(known.done.items()) if partition.topic in new]
            LOG.warning(
                "deleted topics of which other members have read last, if any: group=%s topics=%s handed_over=%s",
                self._options.group_id, sorted(new), done,
            )  # fmt: skip
        self._state.deleted.update(missing.topics)
        cut = {partition: read.offset for partition, read in missing.cut.items()}
        self._losses.report_missing(cut, FEWER_PARTITIONS, held=held, others=others)
        self._state.miss({partition: read.topic_id for partition, read in missing.cut.items()})
        if missing.absent:
            LOG.warning(
                "assigned partitions do not exist; they are left out until they do: group=%s %s",
                self._options.group_id, ", ".join(map(str, sorted(missing.absent))),
            )  # fmt: skip
        # R41: until it exists
        self._state.miss(dict.fromkeys(missing.absent, ""))
