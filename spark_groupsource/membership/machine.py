"""Decide what a group member does, as a state machine.

Decides what happens when the group's rebalances meet the query's batches. It must not know I/O, clocks, threads, logs
or the Kafka client. One thread owns an instance.

A table holds the transitions of the member in its group: `GROUP_TRANSITIONS`. A pair that is not in it raises
`IllegalTransition` and changes nothing. Beside that there is a batch in flight, or none. The two meet in `hand_over`
only: partitions are handed over as soon as no batch in flight reads them.

Facts that may arrive in every state are methods, not events of the table: offsets that were fetched or acknowledged,
start positions that were established or forgotten. None of them changes a state or ends a wait. They change what is
known of owned partitions, and nothing for others.

Invariants:
- only owned partitions are committed, and only forward (promises P4, P5);
- a partition without an accepted start position has no position, so nothing is planned from it;
- a partition that is being revoked is not planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_groupsource.membership.events import DrainOutcome, FlightBatch, GroupEvent, HandOver, Partitions
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, of_another_topic, overruled
from spark_groupsource.model.offsets import SourceOffset, TopicPartition


def _is_behind(group: GroupOffset, item: CommitItem) -> bool:
    """Return whether the group's offset is before the item's."""
    return group.offset is None or group.offset < item.offset


@dataclass(slots=True)
class Owned:
    """A partition of this member. `group` is the group's offset as last fetched or acknowledged.

    `start` is where planning begins; None until the group has accepted it. It is before the group's offset only if a
    batch of the checkpoint runs again. `unknown` is whether the coordinator has refused the completed offset because it
    does not know the partition.
    """

    group: GroupOffset | None = None
    start: int | None = None
    unknown: bool = False

    def overrules(self, item: CommitItem) -> bool:
        """Return whether this item must not move the group's offset."""
        return self.group is not None and overruled(item, self.group, established=self.start is not None)


class MemberState(Enum):
    """The member in its group: what it does / when it leaves the state."""

    DOWN = "no client yet / leaves when started"
    JOINING = "looks for the coordinator and joins / leaves with the first assignment"
    JOINED = "part of the group, heartbeats, plans batches / leaves when partitions are revoked or lost"
    DRAINING = "a revoke waits for the batch in flight / leaves when it has handed over"
    REJOINING = "has no partitions, joins again / leaves with the next assignment"
    STOPPING = "commits the completed offsets and leaves the group / leaves when it has left"
    STOPPED = "has left the group / final"
    FAILED = "met an error that only a restart can heal / final"


_S, _E = MemberState, GroupEvent

GROUP_TRANSITIONS: dict[tuple[MemberState, GroupEvent], MemberState] = {
    (_S.DOWN, _E.STARTED): _S.JOINING,
    (_S.JOINING, _E.PARTITIONS_ASSIGNED): _S.JOINED,
    (_S.JOINING, _E.REVOKE_STARTED): _S.DRAINING,
    (_S.JOINING, _E.ASSIGNMENT_ENDED): _S.JOINING,
    (_S.JOINING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.JOINED, _E.PARTITIONS_ASSIGNED): _S.JOINED,
    (_S.JOINED, _E.REVOKE_STARTED): _S.DRAINING,
    (_S.JOINED, _E.ASSIGNMENT_ENDED): _S.REJOINING,
    (_S.JOINED, _E.PARTITIONS_RELEASED): _S.JOINED,
    (_S.JOINED, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.DRAINING, _E.DRAIN_EXPIRED): _S.DRAINING,
    (_S.DRAINING, _E.ASSIGNMENT_ENDED): _S.REJOINING,
    (_S.DRAINING, _E.PARTITIONS_RELEASED): _S.JOINED,
    (_S.DRAINING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.REJOINING, _E.PARTITIONS_ASSIGNED): _S.JOINED,
    (_S.REJOINING, _E.REVOKE_STARTED): _S.DRAINING,
    (_S.REJOINING, _E.ASSIGNMENT_ENDED): _S.REJOINING,
    (_S.REJOINING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.STOPPING, _E.PARTITIONS_ASSIGNED): _S.STOPPING,
    (_S.STOPPING, _E.REVOKE_STARTED): _S.STOPPING,
    (_S.STOPPING, _E.ASSIGNMENT_ENDED): _S.STOPPING,
    (_S.STOPPING, _E.PARTITIONS_RELEASED): _S.STOPPING,
    (_S.STOPPING, _E.STOP_REQUESTED): _S.STOPPING,
    (_S.STOPPING, _E.LEFT): _S.STOPPED,
} | {
    (state, _E.FATAL_ERROR_RAISED): _S.FAILED
    for state in (_S.DOWN, _S.JOINING, _S.JOINED, _S.DRAINING, _S.REJOINING, _S.STOPPING)
}

FINAL_STATES = frozenset({MemberState.STOPPED, MemberState.FAILED})


class IllegalTransition(Exception):
    """Raised for an event that cannot happen in the present state; the machine is unchanged."""


@dataclass(frozen=True, slots=True)
class OwnedView:
    """A partition of this member, as planning sees it."""

    partition: TopicPartition
    group: GroupOffset | None
    position: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A frozen view of the machine.

    `assignment` counts changes of ownership. `committed` is whether the group has all completed offsets.
    """

    state: MemberState
    assignment: int
    partitions: tuple[OwnedView, ...]
    proven: bool
    committed: bool

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offsets to plan, of the partitions that have one."""
        return {owned.partition: owned.position for owned in self.partitions if owned.position is not None}

    @property
    def settled(self) -> bool:
        """Whether a batch may be planned: the member has joined, is proven, and has fetched the group's offsets."""
        return (
            self.state is MemberState.JOINED
            # R67: nothing is planned while the membership is in doubt
            and self.proven
            and all(owned.group is not None for owned in self.partitions)
        )


@dataclass(slots=True)
class MemberMachine:
    """Handle events one at a time, on one thread. See the module's docstring."""

    state: MemberState = MemberState.DOWN
    assignment: int = 0
    # False from a silence in which the session may have expired, until the coordinator has accepted a commit again.
    proven: bool = True
    _owned: dict[TopicPartition, Owned] = field(default_factory=dict)
    # The newest completed offsets: of owned partitions, and of those that left before the group had accepted them (rule
    # R77).
    _completed: dict[TopicPartition, CommitItem] = field(default_factory=dict)
    _flight: FlightBatch | None = None
    # Revoked partitions that have not left yet, and how the wait for the batch in flight ends.
    _revoked: Partitions = ()
    _outcome: DrainOutcome = DrainOutcome.COMPLETE

    def __repr__(self) -> str:
        return (
            f"MemberMachine(state={self.state.name}, batch_in_flight={self._flight is not None}, "
            f"assignment={self.assignment}, partitions={len(self._owned)})"
        )

    # --- events

    def handle(self, event: GroupEvent, partitions: Partitions = ()) -> None:
        """Handle one event, of these partitions if it is about some.

        Raises `IllegalTransition` if it cannot happen now; nothing has changed then.
        """
        self.state = self._next_state(event)
        match event:
            case GroupEvent.PARTITIONS_ASSIGNED:
                self._add(partitions)
            case GroupEvent.REVOKE_STARTED:
                # R26: a member that leaves waits for no batch
                leaves = self.state is MemberState.STOPPING
                self._revoked, self._outcome = partitions, DrainOutcome.STOPPED if leaves else DrainOutcome.COMPLETE
            case GroupEvent.DRAIN_EXPIRED:
                self._outcome = DrainOutcome.DEADLINE
            case GroupEvent.STOP_REQUESTED:
                self._outcome = DrainOutcome.STOPPED
            case GroupEvent.PARTITIONS_RELEASED | GroupEvent.ASSIGNMENT_ENDED:
                self._drop(partitions)

    def _next_state(self, event: GroupEvent) -> MemberState:
        try:
            return GROUP_TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalTransition(f"{event.name} in state {self.state.name}") from None

    # --- the batch in flight

    def begin(self, batch: FlightBatch) -> None:
        """Put a batch in flight: its plan is fixed, and Spark will log it, or has logged it. Raises as `handle`."""
        if self._flight is not None:
            raise IllegalTransition("a batch begins while another one is in flight")
        self._flight = batch

    def discard(self) -> None:
        """Drop the batch in flight: Spark never logged its plan, and continues from an older offset."""
        self._flight = None

    def complete(self, end: SourceOffset) -> tuple[CommitItem, ...]:
        """Complete the batch in flight if it ends at `end`, and return what to commit now.

        Spark has recorded the batch. What it commits was fixed with its plan, whichever caller reports the end first.

        Guards against (rule R25):
        1. The group is at 50, the checkpoint at 100. `onConflict=group` decides for 50, in a new lineage.
        2. [50, 55) is planned in it.
        3. Spark reports late that the old batch is complete. With 100 committed, [55, 100) is lost.
        """
        # Three callers report the end of a batch. The first one counts: the others find nothing in flight.
        # R25: a batch that Spark reports late is not in flight
        if self._flight is None or self._flight.end != end:
            return ()
        flight, self._flight = self._flight, None
        ends = end.ends()
        # An end that the checkpoint does not have any more is void: the topic was deleted, or the group was reset.
        kept = (p for p, item in self._completed.items() if p in self._owned or ends.get(p) == item.offset)
        self._completed = {partition: self._completed[partition] for partition in kept}
        due, revoked = [], frozenset(self._revoked)
        for item in flight.items:
            owned, before = self._owned.get(item.partition), self._completed.get(item.partition)
            if owned is not None and owned.overrules(item):
                continue
            if before is None or owned is None or item.offset > before.offset:
                # R77: the partition may come back
                self._completed[item.partition] = item
                if owned is not None:
                    owned.unknown = False
            # R12: partitions of others are not committed
            if (pending := self._pending(item.partition)) is not None and item.partition not in revoked:
                due.append(pending)
        return tuple(due)

    def hand_over(self) -> HandOver | None:
        """Return what the revoke under way hands over; None while it waits for the batch in flight (rule R26).

        Guards against (rule R26):
        1. Spark's tasks read [0, 100) of a partition. A second member joins, and the group revokes the partition.
        2. If it was released at once, its next owner would start at the group's offset, 0.
        3. Both read [0, 100).

        Guards against (rule R26, lost partitions):
        1. A batch is in flight. The machine is suspended for longer than the session.
        2. It wakes. The proof of the membership (R67) is refused: the partitions are lost.
        3. The client learns that later. It revokes the partitions when it closes, or before it joins again.
        4. The revoke waits for the batch up to `drainTimeoutMs`, for nothing.

        Guards against (rule R26, a member that leaves):
        1. A batch is in flight, and its partitions are lost. A stop is requested: the member leaves at once.
        2. While it waits for the answer to a commit, the client joins again and is assigned the same partitions.
        3. The client closes and revokes them. The revoke waits for the batch, although nothing is planned any more.
        """
        # R26: lost partitions are not waited for
        waiting = self.in_flight(self._revoked) > 0
        # R26: the batch in flight reads revoked partitions
        if waiting and self._outcome is DrainOutcome.COMPLETE:
            return None
        return HandOver(self.pending(self._revoked), self._outcome if waiting else DrainOutcome.COMPLETE)

    # --- ownership and offsets

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._owned.setdefault(partition, Owned())
        self.assignment += 1

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        unaccepted = self.unaccepted()
        for partition in partitions:
            if self._owned.pop(partition, None) is not None and partition not in unaccepted:
                self._completed.pop(partition, None)
        self._revoked = tuple(partition for partition in self._revoked if partition in self._owned)
        self.assignment += 1

    def offsets_fetched(self, fetched: Mapping[TopicPartition, GroupOffset]) -> None:
        """Store the group's offsets of newly assigned partitions; nothing else may have moved them since.

        The completed offset of a partition that comes back becomes pending, if the group does not have it.
        """
        for partition, group in fetched.items():
            owned = self._owned.get(partition)
            if owned is not None and owned.group is None:
                owned.group = group
                item = self._completed.get(partition)
                # Without an offset in the group, the start position is decided first.
                if item is not None and (group.offset is None or owned.overrules(item)):
                    del self._completed[partition]

    def offsets_acknowledged(self, items: Iterable[CommitItem]) -> None:
        """Store the offsets that the coordinator has accepted, among them start positions."""
        for item in items:
            owned = self._owned.get(item.partition)
            if owned is None or owned.group is None:
                # Nothing is committed before the group's offset is known. So the answer is older than the assignment,
                # and another member may have committed more since.
                completed = self._completed.get(item.partition)
                if completed is not None and item.offset >= completed.offset:
                    del self._completed[item.partition]
                continue
            # Answers to synchronous and asynchronous commits may overtake each other: keep the largest offset.
            known = -1 if owned.group.offset is None else owned.group.offset
            if item.offset >= known:
                owned.group, owned.unknown = GroupOffset(item.offset, item.metadata), False

    def topic_unknown(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the coordinator does not know these partitions: no plan waits for their commits (rule R19)."""
        for partition in partitions:
            if partition in self._owned:
                self._owned[partition].unknown = True

    def positions_established(self, positions: Mapping[TopicPartition, int], items: Iterable[CommitItem] = ()) -> None:
        """Allow planning from start positions that the group has accepted.

        `items` are those that were committed for that. They replace the group's offset even if that was larger: it then
        belongs to a deleted topic of the same name. The completed offset may belong to that topic, too, if the
        partition was lost with the topic and assigned again before the batch in flight was complete (rule R35).
        """
        for item in items:
            owned = self._owned.get(item.partition)
            if owned is not None:
                owned.group = GroupOffset(item.offset, item.metadata)
                completed = self._completed.get(item.partition)
                # R35: the completed offset belongs to the deleted topic, or is from before a reset
                if completed is not None and owned.overrules(completed):
                    del self._completed[item.partition]
        for partition, position in positions.items():
            if partition in self._owned:
                self._owned[partition].start = position

    def positions_forgotten(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all offsets of owned partitions, so that they are fetched and established again."""
        for partition in partitions:
            self._completed.pop(partition, None)
            if partition in self._owned:
                self._owned[partition] = Owned()

    def marked(self, batch: FlightBatch) -> None:
        """Take over the commits of `batch`, if it is the one in flight."""
        if self._flight is not None and self._flight.end == batch.end:
            self._flight = batch

    # --- queries: change nothing

    @property
    def is_behind(self) -> bool:
        """Whether the group does not have the completed offsets of owned partitions that the coordinator knows.

        Guards against (rule R19, an unknown partition):
        1. A topic is deleted. The group leaves its partitions with the member for a while.
        2. The commit of the last batch is refused every time.
        3. A trigger waits a second for it, and from then on no batch waits for a commit.
        """
        # R19: the commit of a deleted topic is refused every time
        return any(self._pending(p) is not None and not owned.unknown for p, owned in self._owned.items())

    def pending(self, partitions: Iterable[TopicPartition] | None = None) -> tuple[CommitItem, ...]:
        """Return completed offsets that the group does not have yet, of `partitions` or of all owned ones."""
        wanted = self._owned if partitions is None else partitions
        items = map(self._pending, wanted)
        return tuple(item for item in items if item is not None)

    def _pending(self, partition: TopicPartition) -> CommitItem | None:
        """Return the completed offset of an owned partition that the group does not have yet.

        Guards against (rule R12):
        1. A query completes 100 of a partition and is killed.
        2. Another member takes the partition over, reads on and commits 200.
        3. The query is restarted. Spark's first `latestOffset` reports its old end, 100.
        """
        owned, item = self._owned.get(partition), self._completed.get(partition)
        if owned is None or owned.group is None or item is None:
            return None
        # R12: only forward
        return item if _is_behind(owned.group, item) else None

    def _position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to plan; None until the group has accepted a start position."""
        start, item = self._owned[partition].start, self._completed.get(partition)
        # R1: without an accepted start there is nothing to plan from
        return None if start is None else max(start, item.offset if item else 0)

    def unfetched(self) -> tuple[TopicPartition, ...]:
        """Return the partitions whose group offset is not known yet."""
        return tuple(p for p, owned in self._owned.items() if owned.group is None)

    def unfetched_of_batches(self, partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Return those of `partitions` whose group offset decides whether the end of a batch is committed.

        These are the unfetched ones that have a completed offset, or are in the batch in flight.
        """
        read = {item.partition for item in self._flight.items} if self._flight else set()
        read |= self._completed.keys()
        return tuple(p for p in partitions if p in read and p in self._owned and self._owned[p].group is None)

    def unaccepted(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of completed batches whose end the group has not accepted, owned or not."""
        known = {partition for partition, owned in self._owned.items() if owned.group is not None}
        return tuple(p for p in self._completed if p not in known or self._pending(p) is not None)

    def has_passed(self, fetched: Mapping[TopicPartition, GroupOffset]) -> bool:
        """Return whether the group, with these offsets, needs none of the ends that it has not accepted from here.

        It does not need the end of a deleted topic, nor one from before a reset.
        """

        def needs(item: CommitItem, group: GroupOffset) -> bool:
            return group.offset is not None and _is_behind(group, item) and not overruled(item, group)

        wanted = {p: self._completed[p] for p in self.unaccepted()}
        return all(p in fetched and not needs(item, fetched[p]) for p, item in wanted.items())

    def proof(self) -> tuple[CommitItem, ...]:
        """Return a small commit that proves the membership: one partition of each topic (rule R67).

        It has the completed offset if the group does not have that yet, else the group's offset.

        Guards against (rule R67, a deleted topic):
        1. A topic is deleted. The process is suspended and goes on.
        2. The proof commits an offset of the deleted topic only, and is refused, every time.
        3. Nothing is planned any more, and the loss is never reported.

        Guards against (rule R67, a commit under way):
        1. The commit of 110 is under way.
        2. The proof, 100, is accepted after it.
        """
        items: dict[str, CommitItem] = {}
        for partition in self._owned:
            # R67: the completed offset may be under way
            if item := self._pending(partition) or self._held(partition):
                # R67: the commit of a deleted topic is refused
                items.setdefault(partition.topic, item)
        return tuple(items.values())

    def _held(self, partition: TopicPartition) -> CommitItem | None:
        """Return the group's offset of an owned partition, as far as it is known, as a commit."""
        group = self._owned[partition].group
        return None if group is None or group.offset is None else CommitItem(partition, group.offset, group.metadata)

    def is_passed(self, fetched: Mapping[TopicPartition, GroupOffset]) -> bool:
        """Return whether the group, with these offsets of owned partitions, is beyond all that is known here.

        Another member reads on then, or has begun to read. An offset of another topic id may be a late commit of a
        deleted topic.
        """

        def passes(group: GroupOffset, known: CommitItem | None) -> bool:
            if group.offset is None or known is None:
                return group.offset is not None
            return group.offset > known.offset and not of_another_topic(known, group)

        return any(passes(group, self._pending(p) or self._held(p)) for p, group in fetched.items())

    @property
    def flight(self) -> FlightBatch | None:
        """The batch in flight."""
        return self._flight

    def in_flight(self, partitions: Iterable[TopicPartition]) -> int:
        """Return how many offsets of those of these partitions that are owned the batch in flight reads."""
        if self._flight is None:
            return 0
        wanted = {partition for partition in partitions if partition in self._owned}
        return sum(len(item) for item in self._flight.end.ranges if item.partition in wanted)

    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Return all owned partitions."""
        return tuple(self._owned)

    def view(self) -> GroupView:
        """Return a frozen view for planning."""
        owned = tuple(OwnedView(p, owned.group, self._position(p)) for p, owned in sorted(self._owned.items()))
        return GroupView(self.state, self.assignment, owned, self.proven, committed=not self.is_behind)
