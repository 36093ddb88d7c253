"""Plan a batch read, `spark.read.format("groupkafka")`: its starts, ends and tasks. Joins no group.

Runs where Spark plans the read: in a Python process of the driver that ends with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_groupsource.cluster.offset_lookup import check_named, check_order, look_up, partitions_of
from spark_groupsource.cluster.port import ClusterPort, Edge
from spark_groupsource.driver.data_loss import removed_parts
from spark_groupsource.errors import report_loss
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import NoMatchStrategy, SourceOptions
from spark_groupsource.options.offset_spec import AtGroup
from spark_groupsource.planning.tasks import Task, pack_tasks, unmeasured_pack


def batch_ranges(options: SourceOptions, cluster: ClusterPort) -> tuple[tuple[OffsetRange, ...], dict[str, str]]:
    """Return the ranges to read, one per partition that has records to read, and the ids of the topics by name.

    The ids are asked for before the offsets: if a topic is recreated between the two, its tasks read nothing of it.
    Raises `DataLossError` if a log no longer has a part of its range and failOnDataLoss is true, and `OptionError` for
    a start beyond the end. If a group's offset is beyond the end, or the log begins there, nothing is read.
    """
    topics = cluster.matching_topics(options.subscription)
    described = cluster.describe(topics)
    existing = partitions_of(options.subscription, described)
    check_named(options.starting, existing)
    check_named(options.ending, existing)
    unmatched_is_latest = options.no_match_strategy is NoMatchStrategy.LATEST
    starts = look_up(
        cluster,
        {partition: options.starting.of(partition) for partition in existing},
        options.starting,
        unmatched_is_latest=unmatched_is_latest,
        must_have=existing,
    )
    ends = look_up(
        cluster,
        {partition: options.ending.of(partition) for partition in existing},
        options.ending,
        unmatched_is_latest=True,
        must_have=existing,
    )
    check_order(cluster, options.starting, options.ending, starts, ends)
    if options.read_committed:
        ends |= _readable(cluster, {p: at for p, at in ends.items() if isinstance(options.ending.of(p), AtGroup)})
    found = [OffsetRange(p, starts[p], max(starts[p], ends[p])) for p in existing if p in starts and p in ends]
    found = _remaining(cluster, [item for item in found if len(item)], options)
    return tuple(found), {topic: info.topic_id for topic, info in described.items()}


def _readable(cluster: ClusterPort, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the ends, lowered to the oldest open transaction where another group's offset is beyond it."""
    answers = cluster.log_offsets(dict.fromkeys(ends, Edge.LATEST))
    return {p: min(ends[p], answer.offset) for p, answer in answers.items() if answer is not None}


def _remaining(cluster: ClusterPort, ranges: Sequence[OffsetRange], options: SourceOptions) -> list[OffsetRange]:
    """Return what the logs still have of these ranges, and report the rest as lost."""
    beginnings = cluster.log_offsets(dict.fromkeys((item.partition for item in ranges), Edge.EARLIEST))
    lost = removed_parts(ranges, beginnings)
    report_loss(((item, "") for item in lost), fail=options.fail_on_data_loss, group=options.group_id)
    starts = {item.partition: item.end for item in lost}
    left = (OffsetRange(item.partition, starts.get(item.partition, item.start), item.end) for item in ranges)
    return [item for item in left if len(item)]


def batch_tasks(ranges: tuple[OffsetRange, ...], options: SourceOptions) -> tuple[Task, ...]:
    """Return the Spark tasks that read these ranges."""
    return pack_tasks(ranges, options.min_partitions, options.max_records_per_partition, unmeasured_pack(ranges))
