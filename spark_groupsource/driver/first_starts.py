"""Let one member store the start positions of a topic that change with time, so that `latest` is one moment.

The owner of a topic's first partition (number 0) stores the starts of all of the topic's partitions that have none, in
one commit with its own. The owners of the others wait for that. The group's assignment has one owner of the first
partition, so no two members store the starts.

Guards against (rule R105):
1. With `startingOffsets=latest`, A and B begin a group. A owns orders-0, B owns orders-1. A stores the start of
   orders-0, and reads.
2. B looks up the end of orders-1, 100, and dies before the group has it.
3. Producers write [100, 140). The next owner of orders-1 looks up its end: 140. [100, 140) is skipped.

The wait is bounded, because the owner of the first partition may be of an older version, or may have no trigger for
long. Then a member stores the position that it looked up first, when it got the partition. Kafka has no compare-and-set
for offsets. So the member plans nothing before a commit that the other member may have sent meanwhile has arrived, and
goes on from what the group holds then.

Guards against (rule R105, a wait in vain):
1. B has waited in vain. The group has no start of orders-1. A looks that up, and its commit of 100 is delayed.
2. B stores 100, reads [100, 120) and commits 120.
3. A's commit arrives: the group's offset goes back to 100.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.offset_lookup import all_partitions
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.membership.machine import OwnedView
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import NoMatchStrategy, SourceOptions
from spark_groupsource.options.offset_spec import AtEdge, AtGroup, AtTime, Start
from spark_groupsource.planning.start_position import Basis, StartDecision

LOG = logging.getLogger(__name__)

# Seconds that a partition waits for the owner of its topic's first partition.
WAIT_S = 10.0
# Seconds from the look at the group's offsets to the commit of starts that others may have stored meanwhile.
FRESH_S = 3.0
# Seconds after which such a commit has arrived, if it was sent before the group had a start. The client repeats a
# request for two seconds.
ARRIVED_S = 8.0
# Seconds for which a member tries to store the starts of others, too. Then it stores its own only.
_TRIES_S = 5.0


def first_of(partition: TopicPartition) -> TopicPartition:
    """Return the first partition of the same topic. Its owner stores the starts."""
    return TopicPartition(partition.topic, 0)


@dataclass(slots=True)
class _Wait:
    """A partition that waits: until when, its position when that began, and when its own commit counts."""

    deadline: Deadline
    position: int
    counts: Deadline | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What to do with partitions that may not start yet.

    `stored`: the group has their start by now; look at it. `waiting`: put them off. `alone`: store their positions, and
    put them off. `known`: positions of this member's own first moment, to be stored instead of newer ones.
    """

    stored: frozenset[TopicPartition]
    waiting: frozenset[TopicPartition]
    alone: frozenset[TopicPartition]
    known: Mapping[TopicPartition, int]

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """All partitions that may not start yet."""
        return self.stored | self.waiting | self.alone


class FirstStarts:
    """Decide who stores start positions that change with time. Main thread only."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._waits: dict[TopicPartition, _Wait] = {}
        # Until when a member tries to store the starts of others, since the group has not accepted them.
        self._tries: Deadline | None = None

    def is_moving(self, decision: StartDecision) -> bool:
        """Return whether the position depends on when it is looked up, and is not the log's beginning."""
        start = self._options.starting.of(decision.partition)
        return decision.basis is Basis.STARTING_POSITION and self._moves(start)

    def _moves(self, start: Start | None) -> bool:
        # A time without a record at or after it may be the log's end.
        is_end = self._options.no_match_strategy is NoMatchStrategy.LATEST
        return start == AtEdge(latest=True) or isinstance(start, AtGroup) or (isinstance(start, AtTime) and is_end)

    def of_others(
        self,
        owned: Collection[TopicPartition],
        described: Mapping[str, TopicInfo],
        fetched: Mapping[TopicPartition, GroupOffset],
        decide: Callable[[OwnedView], StartDecision],
    ) -> list[StartDecision]:
        """Decide the starts of other members' partitions that have none, if this member stores them.

        `fetched` are the group's offsets, empty if they were not requested.
        """
        if not self._options.is_member or (self._tries is not None and self._tries.expired()):
            return []
        topics = {p.topic for p in owned if p.partition == 0}
        # R105: the owner of the first partition stores the starts of all
        without = [
            partition
            for partition in all_partitions({topic: described[topic] for topic in sorted(topics)})
            if partition not in owned
            and partition in fetched
            and fetched[partition].offset is None
            # An option may name offsets for some partitions, and an edge for others.
            and self._moves(self._options.starting.of(partition))
        ]
        return list(filter(self.is_moving, (decide(OwnedView(p, fetched[p], None)) for p in without)))

    def hold(
        self,
        decisions: Iterable[StartDecision],
        positions: Mapping[TopicPartition, int],
        owned: Collection[TopicPartition],
        fetched: Mapping[TopicPartition, GroupOffset],
    ) -> Held:
        """Return what to do with those of these partitions that may not start yet."""
        decided = {decision.partition: decision for decision in decisions}
        self._waits = {partition: wait for partition, wait in self._waits.items() if partition in decided}
        stored: set[TopicPartition] = set()
        waiting: set[TopicPartition] = set()
        new: set[TopicPartition] = set()
        alone: set[TopicPartition] = set()
        known: dict[TopicPartition, int] = {}
        for partition, decision in decided.items():
            wait = self._waits.get(partition)
            if wait is not None and wait.counts is not None:
                # R105: waited in vain, and a commit of another member may be under way
                if wait.counts.expired():
                    del self._waits[partition]
                    stored.add(partition)
                else:
                    waiting.add(partition)
            elif not self._is_anothers(decision, owned):
                if wait is not None and decision.basis is Basis.STARTING_POSITION:
                    known[partition] = wait.position
            elif fetched[partition].offset is not None:
                self._waits.pop(partition, None)
                stored.add(partition)
            else:
                if wait is None:
                    wait = self._waits[partition] = _Wait(Deadline(self._clock, WAIT_S), positions[partition])
                    new.add(partition)
                # R105: the wait is bounded
                if wait.deadline.expired():
                    alone.add(partition)
                    known[partition] = wait.position
                else:
                    waiting.add(partition)
        self._report(new, {partition: known[partition] for partition in alone})
        return Held(frozenset(stored), frozenset(waiting), frozenset(alone), known)

    def _is_anothers(self, decision: StartDecision, owned: Collection[TopicPartition]) -> bool:
        """Return whether another member stores this start."""
        own = not self._options.is_member or first_of(decision.partition) in owned
        return not own and self.is_moving(decision)

    def _report(self, new: Collection[TopicPartition], alone: Mapping[TopicPartition, int]) -> None:
        if new:
            LOG.info(
                "start positions wait for the owner of their topic's first partition: group=%s %s",
                self._options.group_id, ", ".join(map(str, sorted(new))),
            )  # fmt: skip
        if alone:
            LOG.warning(
                "the owner of the topic's first partition has stored no start positions for %.0f s (an older version?"
                " a long trigger?): partitions start where %s was when this query got them: group=%s %s",
                WAIT_S, self._options.starting.option, self._options.group_id,
                ", ".join(f"{partition} at {position}" for partition, position in sorted(alone.items())),
            )  # fmt: skip

    def stored(self, alone: Iterable[TopicPartition]) -> None:
        """Record that the group has accepted these starts, and those of other members."""
        self._tries = None
        for partition in alone:
            self._waits[partition].counts = Deadline(self._clock, ARRIVED_S)

    def refused(self, others: Sequence[StartDecision]) -> None:
        """Record that the group has not accepted this member's starts, together with those of `others`."""
        if others and self._tries is None:
            self._tries = Deadline(self._clock, _TRIES_S)
