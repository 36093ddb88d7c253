"""Give newly assigned partitions a start position: query the group and the log, and pin the result in the group.

Does the I/O around the decisions of `planning/start_position.py`. Main thread only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_groupsource import errors
from spark_groupsource.clock import StepDeadline
from spark_groupsource.cluster.admin import OUTAGE_TIMEOUT_S
from spark_groupsource.cluster.offset_lookup import all_partitions, check_named, look_up, partitions_of
from spark_groupsource.cluster.port import ClusterPort, TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.data_loss import TruncationWatch
from spark_groupsource.driver.first_starts import FRESH_S, FirstStarts
from spark_groupsource.driver.recreated_topics import RecreatedTopics
from spark_groupsource.driver.shared_state import SharedState
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.failpoints import reach
from spark_groupsource.membership.machine import GroupView, OwnedView
from spark_groupsource.model.commit_metadata import (
    MAX_KNOWN_TOPICS,
    Anchor,
    CommitItem,
    GroupOffset,
    KnownTopics,
    Pin,
    metadata_of,
)
from spark_groupsource.model.offsets import (
    OffsetRange,
    Reset,
    SourceOffset,
    TopicPartition,
    newer,
    same_topic,
)
from spark_groupsource.options.model import NoMatchStrategy, SourceOptions
from spark_groupsource.planning import conflicts
from spark_groupsource.planning.batch import Replay, plan_replay
from spark_groupsource.planning.conflicts import Conflict
from spark_groupsource.planning.start_position import (
    Basis,
    Lineage,
    Memory,
    StartDecision,
    Takeover,
    basis_without_offset,
    began_with_earliest,
    decide_start,
    initial_topics,
    is_initial,
    marked_item,
    must_pin,
    open_start,
    start_item,
    void_ends,
)

LOG = logging.getLogger(__name__)

# Seconds that a trigger waits for the group's coordinator before the query fails.
FETCH_TIMEOUT_S = OUTAGE_TIMEOUT_S
# Seconds. Longer than one try takes: the member's request, and whatever else its thread does before it.
_FETCH_STEP_S = 30.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class _Facts:
    """What one call of `establish` decides by.

    - `start`: the newest entry of the offset log; `ends` are its ends.
    - `described`, `ids`: the topics that exist.
    - `group`: the group's offsets of the owned partitions.
    - `fetched`, `pins`, `pinned`: those of all partitions of the subscription, their pins, and the topics that have
      some; empty if they were not requested.
    """

    start: SourceOffset
    ends: Mapping[TopicPartition, int]
    described: Mapping[str, TopicInfo]
    ids: Mapping[str, str]
    group: Mapping[TopicPartition, GroupOffset | None]
    fetched: Mapping[TopicPartition, GroupOffset]
    pins: Mapping[TopicPartition, Pin]
    pinned: Collection[str]

    @classmethod
    def of(
        cls,
        view: GroupView,
        start: SourceOffset,
        described: Mapping[str, TopicInfo],
        fetched: Mapping[TopicPartition, GroupOffset],
    ) -> _Facts:
        """Return the facts that follow from these."""
        ids = {topic: info.topic_id for topic, info in described.items()}
        group = {owned.partition: owned.group for owned in view.partitions}
        pins = _pins(fetched, ids)
        return cls(start, start.ends(), described, ids, group, fetched, pins, {each.topic for each in pins})


class StartPositions:
    """Establish start positions. `truncation` learns their leader epochs."""

    def __init__(
        self,
        query: QueryContext,
        *,
        recreated: RecreatedTopics,
        truncation: TruncationWatch,
        shared: SharedState,
        lineages: Callable[[], str],
    ) -> None:
        self._options, self._clock, self._pause, self._metrics = query.options, query.clock, query.pause, query.metrics
        self._cluster, self._member = query.cluster, query.member
        self._state, self._losses = query.state, query.losses
        self._recreated = recreated
        self._truncation = truncation
        self._shared = shared
        self._new_lineage = lineages
        self._first = FirstStarts(query.options, query.clock)
        # When the group's offsets were requested last, in seconds of the boot time.
        self._fetched_s = 0.0
        self._reported_too_many = False

    def establish(
        self, view: GroupView, start: SourceOffset, topics: Iterable[str], lineage: Lineage, *, waits: bool = False
    ) -> Lineage:
        """Find the start of each new partition and pin it in the group. Nothing is planned before that (rule R1).

        `topics` are those of the subscription that exist. Partitions whose starts another member stores are put off;
        all wait for them if `waits` is set. Returns the lineage to continue with: a new one after a conflict or a
        reset. Raises `MembershipError` if a conflict or shared state ends the query, and `DataLossError` with
        failOnDataLoss=true.

        1. Decide each start, from the group's offsets, the checkpoint and the options (`planning/start_position.py`).
        2. Report the losses of recreated topics, when that is certain.
        3. Check whether the group may be followed: in conflicts, for which a lineage begins, and where others have read
           on and this query or theirs has state (`driver/shared_state.py`).
        4. Look up the positions that the decisions leave open, and leave out those that others store.
        5. Commit the positions. They count when the group has accepted them, and so do the decisions.
        """
        asked_s = self._clock.monotonic_s()
        described = self._cluster.describe({*topics, *(owned.partition.topic for owned in view.partitions)})
        reach("before-start-positions", self._options.client_id)
        fetched = self._fetched_for_pins(view, described)
        fetched_s = self._fetched_s
        facts = _Facts.of(view, start, described, fetched)
        lineage = self._learn_resets(facts, lineage)
        decisions = [self._decide(owned, facts) for owned in view.partitions if owned.position is None]
        if not self._recreations_settled(decisions, facts, asked_s):
            return lineage
        found = [decision.conflict for decision in decisions if decision.conflict is not None]
        conflicts.check_allowed(found, self._options.on_conflict)
        self._shared.check_starts(decisions, start, described, lambda wanted: fetched or self.fetch_offsets(wanted))
        after = self._decided(decisions, facts, lineage) if found else lineage
        positions = _resolve(self._options, self._cluster, decisions, described, is_new=_is_new(fetched))
        held = self._first.hold(decisions, positions, facts.group, fetched)
        self._member.forget(tuple(held.stored))
        if held.partitions and waits:
            self._pause(_PAUSE_S)
        else:
            self._state.put_off(held.partitions - held.stored)
        others = self._first.of_others(facts.group, described, fetched, lambda owned: self._decide(owned, facts))
        decisions = [d for d in decisions if d.partition not in held.partitions or d.partition in held.alone]
        positions |= {**_resolve(self._options, self._cluster, others, described), **held.known}
        items = self._items([*decisions, *others], positions, facts, after)
        mine = {decision.partition for decision in decisions} - held.alone
        positions = {partition: at for partition, at in positions.items() if partition in mine}
        # R105: others may store starts of their own
        until_s = fetched_s + FRESH_S if others else math.inf
        # R1: positions count only when the group has accepted them
        if not self._member.establish(positions, items, view.assignment, until_s):
            self._first.refused(others)
            self._pause(_PAUSE_S)
            return lineage
        self._first.stored(held.alone)
        self._state.positioned(positions)
        _report_forgotten(self._options.group_id, decisions, facts)
        self.report_conflicts(found)
        return after

    def _recreations_settled(self, decisions: Iterable[StartDecision], facts: _Facts, asked_s: float) -> bool:
        """Report the losses of recreated topics. Return False if these topics have to be looked at again.

        `asked_s`: when their ids were requested.
        """
        ids, group, described = facts.ids, facts.group, facts.described
        recreated = {decision.partition for decision in decisions if decision.recreated}
        # R91: read under another id, which the group's offset does not show
        taken = self._state.read_under_other_ids({d.partition for d in decisions} - recreated, ids)
        if not self._recreated.confirmed(recreated | taken.keys(), ids, asked_s):
            return False
        # R83: this query has read the recreated topic on, and has reported then what it lost
        lost = {decision.partition for decision in decisions if decision.recreated and decision.offset is None}
        read = {p: _furthest(group[p], facts.ends.get(p)) for p in lost}
        self._losses.report_recreated(read, described, {p for p in lost if _has_offset(group[p])})
        self._losses.report_recreated(taken, described, taken=True)
        return not self._recreated.assigned_before(recreated | taken.keys(), ids)

    def _items(
        self,
        decisions: Iterable[StartDecision],
        positions: Mapping[TopicPartition, int],
        facts: _Facts,
        lineage: Lineage,
    ) -> list[CommitItem]:
        """Return the commits of these start positions."""
        ids, start, group = facts.ids, facts.start, facts.group
        old = {topic: topic_id for topic, topic_id in ids.items() if not self._state.appeared(topic, topic_id)}
        initial = initial_topics(old, facts.pins, has_read=bool(facts.ends))
        logged = {item.partition: item for item in start.ranges}
        items = []
        for decision in decisions:
            partition = decision.partition
            position, offset = positions[partition], group.get(partition)
            anchor = Anchor(
                ids[partition.topic],
                self._pin(decision, position, offset, facts, initial),
                _reset_of(decision, offset, lineage),
            )
            if partition in group:
                self._state.establish(partition, anchor)
                if partition in logged and same_topic(start.topic_id(partition.topic), ids[partition.topic]):
                    self._truncation.learn((logged[partition],))
                if not decision.recreated:
                    self._truncation.learn(_last_range(partition, offset))
            # R116: the mark of the owner, from the start on
            has_state = self._shared.marks(start) if partition in group else None
            if must_pin(decision, position, offset):
                items.append(start_item(partition, position, anchor, lineage.name, has_state=has_state is True))
            elif has_state is not None and (item := marked_item(partition, offset, has_state=has_state)) is not None:
                items.append(item)
        return items

    def _learn_resets(self, facts: _Facts, lineage: Lineage) -> Lineage:
        """Return the lineage with the newest reset in the group's metadata: a new one if ends are void by it."""
        found = (metadata.reset for metadata in map(metadata_of, facts.group.values()) if metadata)
        reset = max((reset for reset in found if reset is not None), default=None)
        # R46: a checkpoint names the newest reset that it knows
        if reset is None or not newer(reset, lineage.reset):
            return lineage
        group = self._group_of(facts)
        void = void_ends(facts.start, group)
        if not void:
            return replace(lineage, reset=reset)
        lineage = Lineage(self._new_lineage(), reset, void)
        text = "; ".join(f"{p} checkpoint={facts.ends[p]} group={group[p].offset}" for p in sorted(void))
        LOG.warning(
            "the group was reset, its offsets win over this checkpoint, with a new lineage: group=%s lineage=%s"
            " reset=%s %s",
            self._options.group_id, lineage.name, reset, text,
        )  # fmt: skip
        self._metrics.write("reset", reset=str(reset), void=text)
        return lineage

    def _group_of(self, facts: _Facts) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets of what the checkpoint has read, owned or not, and of all owned partitions."""
        held = {partition: offset for partition, offset in facts.group.items() if offset is not None}
        others = [partition for partition in facts.ends if partition.topic in facts.ids and partition not in held]
        return held | (self.fetch_offsets(others) if others else {})

    def _decided(self, decisions: Iterable[StartDecision], facts: _Facts, lineage: Lineage) -> Lineage:
        """Return the lineage that follows from these decisions of conflicts: they are a reset of their partitions."""
        decided = {decision.partition for decision in decisions if decision.conflict is not None}
        now_ms = int(self._clock.epoch_s() * 1000)
        return lineage.after_conflicts(self._new_lineage(), decided, facts.start, self._group_of(facts), now_ms)

    def report_conflicts(self, found: Collection[Conflict]) -> None:
        """Report conflicts in which the group is followed."""
        if found:
            details = conflicts.details_of(found)
            LOG.warning(
                "the group's offsets and the checkpoint disagree, the group's win: group=%s %s",
                self._options.group_id, details,
            )  # fmt: skip
            self._metrics.write("conflict", ranges=details)

    def _decide(self, owned: OwnedView, facts: _Facts) -> StartDecision:
        partition, start = owned.partition, facts.start
        topic_id = facts.ids[partition.topic]
        logged_id = start.topic_id(partition.topic)
        if logged_id is None and not _has_offset(owned.group):
            logged_id = self._state.id_read(partition)
        takeover = Takeover(
            partition=partition,
            topic_id=topic_id,
            recreated=logged_id is not None and not same_topic(logged_id, topic_id),
            group_offset=owned.group.offset if owned.group else None,
            group_metadata=metadata_of(owned.group),
            own_end=facts.ends.get(partition) if same_topic(logged_id, topic_id) else None,
            lineage=start.lineage,
            known_reset=start.reset,
            followed=self._state.partition(partition).followed,
        )
        memory = Memory(
            topic_id=logged_id,
            has_read=bool(facts.ends),
            appeared=self._state.appeared(partition.topic, topic_id),
            by_pattern=self._options.subscription.pattern is not None,
        )
        return decide_start(takeover, basis_without_offset(partition, topic_id, facts.pins, memory))

    def _fetched_for_pins(
        self, view: GroupView, described: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets of all partitions of the subscription, owned or not.

        The group is asked only if an owned partition has no pin; else nothing is returned.
        """
        new = ((owned.partition.topic, metadata_of(owned.group)) for owned in view.partitions if owned.position is None)
        if all(metadata and same_topic(metadata.topic_id, described[topic].topic_id) for topic, metadata in new):
            return {}
        # A broker that lags behind may not know an owned one yet.
        owned = {owned.partition for owned in view.partitions}
        return self.fetch_offsets(sorted(owned.union(all_partitions(described))))

    def fetch_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets of any partitions.

        Raises `KafkaUnavailableError` if the coordinator does not answer in time.

        Guards against, for a member on kafka-python:
        1. A restarted query has a batch to run again. It joins the group, and the group waits for another member, which
           drains a batch for up to its `kafka.max.poll.interval.ms`.
        2. Until the group has rebalanced, no offset is fetched. Two minutes later the query would fail.
        """
        wanted, clock = list(partitions), self._clock
        deadline = StepDeadline(clock, FETCH_TIMEOUT_S, _FETCH_STEP_S)
        drained = StepDeadline(clock, FETCH_TIMEOUT_S + self._options.rebalance_timeout_s, _FETCH_STEP_S)
        began_s = clock.monotonic_s()
        while True:
            self._fetched_s = clock.boottime_s()
            found = self._member.fetch_offsets(wanted)
            if len(found) == len(wanted):
                return found
            others_drain = not self._options.on_librdkafka and self._member.status.coordinator_known
            if (drained if others_drain else deadline).expired() or self._member.stopping:
                waited_s = clock.monotonic_s() - began_s
                raise KafkaUnavailableError(
                    errors.CLUSTER_REQUEST_FAILED,
                    request="OffsetFetch",
                    reason=f"the group's coordinator did not answer within {waited_s:.0f} s",
                )
            self._pause(_PAUSE_S)

    def replay(self, end: SourceOffset, existing: Iterable[OffsetRange]) -> Replay:
        """Return what the logged batch that ends at `end` reads again of its existing ranges, owned or not.

        What the group has completed is left out (R11). Raises `MembershipError` if the group and the checkpoint
        disagree and option onConflict does not allow it, or if option onSharedState does not allow that others have
        completed a part.
        """
        ranges = list(existing)
        found = self.fetch_offsets(item.partition for item in ranges)
        committed = {partition: (group.offset, metadata_of(group)) for partition, group in found.items()}
        for partition, (_, metadata) in committed.items():
            if metadata is not None:
                self._state.partition(partition).anchor = Anchor(metadata.topic_id, metadata.pin, metadata.reset)
        replay = plan_replay(end, ranges, committed)
        conflicts.check_allowed(replay.conflicts, self._options.on_conflict)
        self._shared.check_replay(replay.others)
        for item in replay.followed:
            self._state.partition(item.partition).followed = item
        return replay

    def _pin(
        self,
        decision: StartDecision,
        position: int,
        group: GroupOffset | None,
        facts: _Facts,
        initial: Mapping[str, str],
    ) -> Pin:
        partition = decision.partition
        info, metadata, known = facts.described[partition.topic], metadata_of(group), self._state.anchor(partition)
        if metadata is not None and same_topic(metadata.topic_id, info.topic_id):
            return metadata.pin
        # Another program has committed since then, without metadata.
        overwritten = metadata is None and group is not None and group.offset is not None
        if overwritten and known is not None and same_topic(known.topic_id, info.topic_id):
            return known.pin
        if decision.recreated:
            # R83: also where this query has read it on
            position = 0
        elif decision.basis is Basis.LINEAGE and group is not None and group.offset is not None:
            # The query began there: the batch that ran again has followed the other program.
            position = group.offset
        if self._options.starting.is_earliest or began_with_earliest(facts.pins):
            return Pin(position, info.partition_count)
        if not is_initial(decision, group, facts.pinned):
            # Without this topic in the pin, its other partitions start at their beginning, too.
            initial = {topic: topic_id for topic, topic_id in initial.items() if topic != partition.topic}
        topics = KnownTopics.of(initial)
        if topics.too_many and not self._reported_too_many:
            self._reported_too_many = True
            LOG.warning(
                "the group's start positions cannot name all topics of the subscription: a partition that gets its"
                " first position later is read from its beginning, whatever %s says: group=%s topics=%d most=%d",
                self._options.starting.option, self._options.group_id, len(initial), MAX_KNOWN_TOPICS,
            )  # fmt: skip
        return Pin(position, info.partition_count, topics)


def _report_forgotten(group_id: str, decisions: Iterable[StartDecision], facts: _Facts) -> None:
    """Log that the group has lost offsets: records that this query has not read itself may be read twice."""
    held = {partition for partition, offset in facts.group.items() if _has_offset(offset)}
    found = [
        d for d in decisions if d.basis is Basis.FORGOTTEN or (d.basis is Basis.LINEAGE and d.partition not in held)
    ]
    if found:
        LOG.warning(
            "the group has no offsets of what was read before (offsets.retention.minutes, a deleted group, another"
            " kafka.group.id): partitions go on where the checkpoint ends, and those that it does not have are read"
            " from their beginning, also what other queries have read of them: group=%s %s",
            group_id, ", ".join(f"{d.partition} checkpoint={facts.ends.get(d.partition)}" for d in found),
        )  # fmt: skip


def _resolve(
    options: SourceOptions,
    cluster: ClusterPort,
    decisions: list[StartDecision],
    described: Mapping[str, TopicInfo],
    *,
    is_new: bool = False,
) -> dict[TopicPartition, int]:
    """Return the start positions, and look up those that the decisions leave open.

    `is_new`: the group has no offset yet. A group that it starts from must exist then, and may be deleted later.

    Guards against (rule R4, a partition that does not exist):
    1. A topic is recreated with fewer partitions. A member is assigned one that does not exist any more.
    2. This one has no log. If its log was not requested, its refused commit would hold up the start of all others.
    """
    positions = {d.partition: d.offset for d in decisions if d.offset is not None}
    open_ones = [decision for decision in decisions if decision.offset is None]
    if any(decision.basis is Basis.STARTING_POSITION for decision in open_ones):
        check_named(options.starting, partitions_of(options.subscription, described))
    starts = {decision.partition: open_start(decision, options.starting) for decision in open_ones}
    latest = options.no_match_strategy is NoMatchStrategy.LATEST
    must_have = partitions_of(options.subscription, described) if is_new else ()
    # R4: all are looked up, which finds a partition that does not exist
    found = look_up(cluster, starts, options.starting, unmatched_is_latest=latest, must_have=must_have)
    return positions | found | {d.partition: 0 for d in open_ones if d.basis is Basis.FIRST_OFFSET}


def _pins(found: Mapping[TopicPartition, GroupOffset], ids: Mapping[str, str]) -> dict[TopicPartition, Pin]:
    """Return the pins in these offsets of the group, of the topics as they are now."""
    metadata = {partition: metadata_of(group) for partition, group in found.items()}
    return {
        partition: item.pin
        for partition, item in metadata.items()
        if item is not None and same_topic(item.topic_id, ids[partition.topic])
    }


def _reset_of(decision: StartDecision, group: GroupOffset | None, lineage: Lineage) -> Reset | None:
    """Return the newest reset of a partition: the query's own after a decision, or if the group's text has none."""
    metadata = metadata_of(group)
    return lineage.reset if decision.conflict or decision.recreated or metadata is None else metadata.reset


def _is_new(fetched: Mapping[TopicPartition, GroupOffset]) -> bool:
    """Return whether a group with these offsets has none yet; False if it was not asked."""
    return bool(fetched) and not any(map(_has_offset, fetched.values()))


def _has_offset(group: GroupOffset | None) -> bool:
    return group is not None and group.offset is not None


def _furthest(group: GroupOffset | None, own_end: int | None) -> int | None:
    known = [offset for offset in (group.offset if group else None, own_end) if offset is not None]
    return max(known, default=None)


def _last_range(partition: TopicPartition, group: GroupOffset | None) -> list[OffsetRange]:
    """Return the range that ends at the group's offset, with its leader epoch; nothing if its metadata does not fit."""
    metadata = metadata_of(group)
    if group is None or metadata is None or metadata.end != group.offset:
        return []
    return [OffsetRange(partition, metadata.start, metadata.end, metadata.leader_epoch)]
