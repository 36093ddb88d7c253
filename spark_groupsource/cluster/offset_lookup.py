"""Resolve the starting and ending options to offsets, with the logs' offsets and other groups' committed offsets.

It also determines the partitions that a subscription reads.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from spark_groupsource import errors
from spark_groupsource.cluster.port import ClusterPort, Edge, TopicInfo
from spark_groupsource.errors import OptionError
from spark_groupsource.model.offsets import TopicPartition, every_partition
from spark_groupsource.options.model import Subscription
from spark_groupsource.options.offset_spec import AtEdge, AtGroup, AtOffset, AtTime, Start, Starting
from spark_groupsource.options.times import shown_time

# Number of an option's partitions that an error shows.
_MAX_SHOWN = 10

LOG = logging.getLogger(__name__)


def look_up(
    cluster: ClusterPort,
    starts: Mapping[TopicPartition, Start | None],
    given_by: Starting,
    *,
    unmatched_is_latest: bool,
    must_have: Collection[TopicPartition] = (),
) -> dict[TopicPartition, int]:
    """Return the offset of each partition. `given_by` is the option that gives the starts.

    - `unmatched_is_latest`: a time without a record at or after it resolves to the log's end; otherwise it is an error.
    - `must_have`: another group that is named must have an offset of one of these, or it is an error: its name may be
      misspelt. If empty, such a group is only logged.

    Guards against (rule R88):
    1. The log ends at 2. No record has the time T or a later one: the lookup of T finds none.
    2. A record with a time after T is written at offset 2.
    3. The log's end is requested: 3. It becomes the start, and offset 2 is never read.

    Raises `OptionError` also for a partition that the option does not name, and for an offset after the log's end. A
    start, or another group's offset, may be after the end of the committed records.
    """
    unnamed = sorted(partition for partition, start in starts.items() if start is None)
    if unnamed:
        names, have = ", ".join(map(str, unnamed)), "has" if len(unnamed) == 1 else "have"
        edge = {"startingOffsets": " (-2 is earliest)", "endingOffsets": " (-1 is latest)"}.get(given_by.option, "")
        raise _not_allowed(given_by, f"a value for every partition of the topics; {names} {have} none{edge}")
    known = {partition: start for partition, start in starts.items() if start is not None}
    of_groups = _of_other_groups(cluster, known, given_by, must_have)
    known |= of_groups
    given = {partition: start.offset for partition, start in known.items() if isinstance(start, AtOffset)}
    waits = given.keys() if given_by.option == "startingOffsets" else of_groups.keys()
    _check_given(cluster, given, waits, given_by)
    wanted: dict[TopicPartition, Edge | int] = {}
    for partition, start in known.items():
        if isinstance(start, AtEdge):
            wanted[partition] = Edge.LATEST if start.latest else Edge.EARLIEST
        elif isinstance(start, AtTime):
            wanted[partition] = start.timestamp_ms
    timed = [partition for partition, start in known.items() if isinstance(start, AtTime) and unmatched_is_latest]
    # R88: before the times are looked up
    ends = cluster.log_offsets(dict.fromkeys(timed, Edge.LATEST))
    answers = cluster.log_offsets(wanted)
    unmatched = [partition for partition, answer in answers.items() if answer is None]
    if unmatched and not unmatched_is_latest:
        raise _not_allowed(
            given_by,
            f"a time at or before the newest record of every partition ({unmatched[0]} has none at or after"
            f" {_shown_moment(wanted[unmatched[0]])}), or startingOffsetsByTimestampStrategy=latest",
        )
    answers |= {partition: ends.get(partition) for partition in unmatched}
    return given | {partition: end.offset for partition, end in answers.items() if end is not None}


def all_partitions(described: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Return all partitions of these topics."""
    return every_partition({topic: info.partition_count for topic, info in described.items()})


def check_assigned(subscription: Subscription, described: Mapping[str, TopicInfo]) -> None:
    """Raise `OptionError` if option assign names a partition that its topic does not have."""
    for partition in subscription.partitions:
        count = described[partition.topic].partition_count if partition.topic in described else None
        if count is not None and partition.partition >= count:
            allowed = f"partitions 0 to {count - 1} of topic '{partition.topic}'; {partition} does not exist"
            raise OptionError(errors.OPTION_INVALID, option="assign", value=subscription.value, allowed=allowed)


def partitions_of(subscription: Subscription, described: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Return the partitions to read: those of option assign, or all of these topics."""
    check_assigned(subscription, described)
    return list(subscription.partitions) or all_partitions(described)


def check_named(starting: Starting, partitions: Iterable[TopicPartition]) -> None:
    """Raise `OptionError` if the option names a partition or topic outside of these, where it would have no effect."""
    existing = set(partitions)
    topics = starting.topics.keys() - {partition.topic for partition in existing}
    unknown = [*map(str, sorted(starting.each.keys() - existing)), *sorted(topics)]
    if unknown:
        names = ", ".join(unknown)
        read = _few(sorted({partition.topic for partition in existing})) or "there is none"
        raise _not_allowed(starting, f"partitions of the topics that are read ({read}); {names} is none of them")


def check_order(
    cluster: ClusterPort,
    starting: Starting,
    ending: Starting,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Raise `OptionError` if a start given by options resolves to an offset after the given end.

    Other groups' offsets and the log's edges are not checked: they move by themselves, and the range is then empty. A
    starting time without a record at or after it resolves to the log's end.
    """
    given = (AtOffset, AtTime)
    behind = [p for p in starts if isinstance(starting.of(p), given) and isinstance(ending.of(p), given)]
    behind = sorted(p for p in behind if p in ends and starts[p] > ends[p])
    log_ends = cluster.log_offsets({p: Edge.LATEST for p in behind if isinstance(starting.of(p), AtTime)})
    for partition in behind:
        log_end = log_ends.get(partition)
        if log_end is None or starts[partition] < log_end.offset:
            raise _not_allowed(
                starting,
                f"no start beyond the end. The resolved start offset {starts[partition]} is greater than the resolved"
                f" end offset {ends[partition]} for {partition} (option '{ending.option}', value '{ending.shown}')",
            )


def _of_other_groups(
    cluster: ClusterPort,
    starts: Mapping[TopicPartition, Start],
    given_by: Starting,
    must_have: Collection[TopicPartition],
) -> dict[TopicPartition, Start]:
    """Return other groups' committed offsets as starts; the log's beginning where they have none."""
    asked = {partition: start.group for partition, start in starts.items() if isinstance(start, AtGroup)}
    found: dict[TopicPartition, Start] = {}
    for group in sorted(set(asked.values())):
        partitions = [partition for partition, other in asked.items() if other == group]
        offsets = cluster.group_offsets(group, partitions)
        if not offsets:
            # A misspelt group name looks the same.
            topics = ", ".join(sorted({partition.topic for partition in partitions}))
            if must_have and not cluster.group_offsets(group, must_have):
                reason = f"a group with committed offsets: '{group}' has none of topics {topics}"
                raise _not_allowed(given_by, f"{reason} (earliest reads them from the beginning)")
            LOG.warning("group has no offsets, starting at the logs' beginnings: group=%s topics=%s", group, topics)
        found |= {p: AtEdge() if (at := offsets.get(p)) is None else AtOffset(at) for p in partitions}
    return found


def _check_given(
    cluster: ClusterPort, given: Mapping[TopicPartition, int], may_wait: Collection[TopicPartition], given_by: Starting
) -> None:
    """Raise `OptionError` for an offset after the log's end. The plan reports one before the beginning as data loss.

    For read_committed a log ends at an open transaction. Offsets that `may_wait` may be after that: a group that reads
    uncommitted records may be ahead, and a query that starts there waits for the transaction's end.
    """
    ends = cluster.log_offsets(dict.fromkeys(given.keys() - may_wait, Edge.LATEST))
    ends |= cluster.log_offsets(dict.fromkeys(given.keys() & may_wait, Edge.LATEST), uncommitted=True)
    for partition, end in sorted(ends.items()):
        if end is not None and given[partition] > end.offset:
            allowed = f"for {partition} an offset up to {end.offset}, where its log ends, not {given[partition]}"
            raise _not_allowed(given_by, allowed)


def _few(texts: Sequence[str]) -> str:
    """Return the first texts of a list, for an error."""
    return ", ".join([*texts[:_MAX_SHOWN], *(["..."] if len(texts) > _MAX_SHOWN else [])])


def _not_allowed(given_by: Starting, allowed: str) -> OptionError:
    return OptionError(errors.OPTION_INVALID, option=given_by.option, value=given_by.shown, allowed=allowed)


def _shown_moment(time_ms: Edge | int) -> str:
    """Return a time as it was computed: the option may have `yesterday`."""
    return f"{time_ms} ({shown_time(time_ms)})" if isinstance(time_ms, int) else str(time_ms)
