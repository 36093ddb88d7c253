"""Report what is lost with missing topics and partitions, and leave them out of later plans.

The checks of `TopicWatch` only return what is missing. This is the one place that acts on their results. Main thread of
the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_groupsource import errors
from spark_groupsource.cluster.port import ClusterPort, TopicInfo
from spark_groupsource.driver.data_loss import DELETED, FEWER_PARTITIONS, LossReporter
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.start_positions import StartPositions
from spark_groupsource.driver.topics import Known, Missing, TopicWatch
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.session")


class MissingTopics:
    """Run the checks of `TopicWatch` and act on them. Every method raises `DataLossError` as failOnDataLoss says."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: ClusterPort,
        *,
        topics: TopicWatch,
        state: QueryState,
        losses: LossReporter,
        starts: StartPositions,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._topics = topics
        self._state = state
        self._losses = losses
        self._starts = starts
        self._start_checked = False

    def describe(self, topics: Iterable[str], known: Known) -> dict[str, TopicInfo]:
        """Return those of these topics that exist. Report what is lost with the others."""
        wanted = set(topics)
        try:
            return self._cluster.describe(wanted - self._state.deleted)
        except OptionError as error:
            self.handle_unknown(error, known)
            return self._cluster.describe(wanted - self._state.deleted)

    def handle_unknown(self, error: OptionError, known: Known) -> None:
        """Handle "unknown topic or partition": report data loss for what this query has read.

        Topics that matched a pattern are left out. Otherwise raises `error` again.
        """
        if error.condition != errors.TOPIC_UNKNOWN:
            raise error
        missing = self._topics.missing_of(known)
        if missing.never_existed:
            self._losses.report_missing(missing.deleted, DELETED)
            raise error
        self._leave_out(missing)

    def check_start(self, known: Known) -> None:
        """Check once after a start for missing partitions of the newest batch."""
        if not self._start_checked:
            self._leave_out(self._topics.missing_at_start(known))
            self._start_checked = True

    def refresh(self, known: Known) -> bool:
        """Find the topics again if the interval has passed. Return whether the member must subscribe again."""
        changed = self._topics.refresh(known)
        if changed:
            self._leave_out(self._topics.missing_unassigned(known))
        return changed

    def leave_out_of(self, view: GroupView, known: Known) -> GroupView:
        """Return the view without missing partitions. Check those that have left the member since the last view."""
        self._leave_out(self._topics.missing_left(view, known))
        if stale := self._topics.stale(view):
            self._starts.forget(stale)
        return self._topics.without_missing(view)

    def _leave_out(self, missing: Missing) -> None:
        self._losses.report_missing(missing.deleted, DELETED)
        if new := set(missing.not_read) - self._state.deleted:
            done = [f"{partition} at {at}" for partition, at in sorted(missing.handed_over.items())]
            LOG.warning(
                "deleted topics of which other members have read last, if any: group=%s topics=%s handed_over=%s",
                self._options.group_id, sorted(new), done,
            )  # fmt: skip
        self._state.delete(missing.topics)
        self._losses.report_missing(missing.cut, FEWER_PARTITIONS)
        self._state.miss(missing.cut_ids)
        if missing.absent:
            LOG.warning(
                "assigned partitions do not exist; they are left out until they do: group=%s %s",
                self._options.group_id, ", ".join(map(str, sorted(missing.absent))),
            )  # fmt: skip
        # R41: until it exists
        self._state.miss(dict.fromkeys(missing.absent, ""))
