"""Plan a logged batch that Spark runs again.

The steps are those of `BatchPlanner.step`: survey, truncated logs, lost records, ranges. But the ranges are given, and
nothing waits: Spark needs the batch, whoever owns its partitions now. Main thread only.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from spark_groupsource.cluster.port import ClusterPort
from spark_groupsource.driver.data_loss import DELETED, LossReporter, TruncationWatch, known_backlogs
from spark_groupsource.driver.missing_topics import MissingTopics
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.shared_state import SharedState
from spark_groupsource.driver.start_positions import StartPositions
from spark_groupsource.driver.topics import Known
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import Anchor, metadata_of
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, same_topic
from spark_groupsource.options.model import SourceOptions, Subscription
from spark_groupsource.planning.batch import plan_replay
from spark_groupsource.planning.conflicts import check_allowed

LOG = logging.getLogger(__name__)


def known_of_replay(end: SourceOffset, subscription: Subscription) -> Known:
    """Return what is known of a batch that runs again: its own ranges begin, and are not read yet.

    Empty ranges of topics that were unsubscribed since are left out: the topics may be deleted.
    """
    begun = {
        item.partition: item.start for item in end.ranges if len(item) or subscription.includes(item.partition.topic)
    }
    return replace(Known.of(end), last=begun, replayed=True)


def replay_ranges(
    end: SourceOffset,
    known: Known,
    options: SourceOptions,
    cluster: ClusterPort,
    *,
    missing: MissingTopics,
    starts: StartPositions,
    truncation: TruncationWatch,
    state: QueryState,
    losses: LossReporter,
    shared: SharedState,
    metrics: MetricsLog,
) -> tuple[OffsetRange, ...]:
    """Return the ranges of the batch that ends at `end`, owned or not, without what is completed already (R11).

    Raises `MembershipError` if the group and the checkpoint disagree and option onConflict does not allow it, or if
    option onSharedState does not allow that others have completed a part, and `DataLossError` as failOnDataLoss says.
    """
    existing = _existing(end, known, missing, losses)
    found = starts.fetch_offsets(item.partition for item in existing)
    committed = {partition: (group.offset, metadata_of(group)) for partition, group in found.items()}
    for partition, (_, metadata) in committed.items():
        if metadata is not None:
            state.replayed(partition, Anchor(metadata.topic_id, metadata.pin, metadata.reset))
    replay = plan_replay(end, existing, committed)
    check_allowed(replay.conflicts, options.on_conflict)
    shared.check_replay(replay.others)
    unread = [item for item in replay.ranges if len(item)]
    survey = cluster.survey(item.partition for item in unread)
    truncation.learn(unread)
    ends = {item.partition: item.end for item in unread}
    cut = truncation.truncated(known_backlogs(ends, survey.ends))
    read = losses.trim_lost(losses.skip_truncated(replay.ranges, cut), survey.beginnings)
    starts.report_conflicts(replay.conflicts)
    records = sum(map(len, read))
    metrics.write("replayed", (item.partition for item in read), records=records)
    LOG.info(
        "replay: group=%s records=%d of=%d reset=%s",
        options.group_id, records, sum(map(len, end.ranges)), replay.reset,
    )  # fmt: skip
    return read


def _existing(end: SourceOffset, known: Known, missing: MissingTopics, losses: LossReporter) -> list[OffsetRange]:
    """Return the ranges whose topics are still those that were read. Report what is lost with the others."""
    begun = known.last
    described = missing.describe({partition.topic for partition in begun}, known)
    ids = {topic: info.topic_id for topic, info in described.items()}
    replaced = {p: at for p, at in begun.items() if not same_topic(ids.get(p.topic), end.topic_id(p.topic))}
    losses.report_recreated({p: at for p, at in replaced.items() if p.topic in ids}, described)
    # Unless it was reported when the topics were described.
    losses.report_missing({p: at for p, at in replaced.items() if p.topic not in ids}, DELETED)
    return [item for item in end.ranges if item.partition in begun and item.partition not in replaced]
