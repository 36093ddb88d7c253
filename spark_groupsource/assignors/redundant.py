"""Strategy `redundant`: assign each partition to several members, one active, the others standby. Pure.

The consumer protocol has no field for standby partitions, so each instance remembers its last ones and sends them in
its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from spark_groupsource.assignors import metadata
from spark_groupsource.assignors.fair_shares import Item, by_member, owners, share_out, share_partitions, subscribers
from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember, MemberSettings
from spark_groupsource.assignors.notes import by_topic
from spark_groupsource.model.offsets import TopicPartition

_DEFAULT = MemberSettings().redundancy


class RedundantAssignor(Assignor):
    """Each partition is active at one member and standby at k - 1 others, as far as there are subscribers.

    k is the largest `redundancy` of any member, so the group has the safety that its most careful member asks for.
    Promises, in order of priority:

    1. Active partitions: every member has an equal quota, rounded down or up.
    2. When the active member has left, a standby member becomes active, as far as (1) allows.
    3. Active partitions stay where they are, as far as (1) and (2) allow; those that must move go to a standby first.
    4. Standby partitions: the k - 1 copies are divided evenly among the subscribers that are not active for the
       partition, again rounded down or up. Members that had it as standby or active come first.

    Metadata: `{"redundancy":2,"standby":{"orders":[0,3]}}`; the defaults are 2 and no standby partitions.
    """

    name = "redundant"

    def __init__(self) -> None:
        self._standby: frozenset[TopicPartition] = frozenset()

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        """Return the wanted redundancy, and this member's current standby partitions."""
        return metadata.encode({"redundancy": member.redundancy, "standby": by_topic(self._standby)})

    def on_assignment(
        self, active: frozenset[TopicPartition], standby: frozenset[TopicPartition], generation: int
    ) -> None:
        """Remember this member's standby partitions."""
        self._standby = standby

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Assign the active partitions first, then the standbys."""
        takers = subscribers(cluster, members)
        names = [member.member_id for member in members]
        copies = max((metadata.count(member.metadata, "redundancy", _DEFAULT) for member in members), default=1)
        stood_by = {member.member_id: metadata.partitions_in(member.metadata, "standby") for member in members}
        before = owners(members)
        # One of these outweighs one step of all partitions.
        above = sum(len(cluster.topics[topic]) for topic in takers) + 1

        def cost(partition: TopicPartition, name: str) -> int:
            owner, is_warm = before.get(partition), partition in stood_by[name]
            if owner in takers[partition.topic]:
                # Moves only for balance, with a handover: that counts as one move, cheaper to a standby.
                return 0 if name == owner else above + (not is_warm)
            # Unread until a member is ready: that outweighs all moves.
            return 0 if is_warm else above * above

        places = share_partitions(cluster, takers, dict.fromkeys(names, 1), cost)
        active = {partition: min(place) for partition, place in places.items()}
        had = {member.member_id: stood_by[member.member_id] | member.owned for member in members}
        return GroupAssignment(
            by_member(places.items(), names),
            by_member(_standbys(active, takers, had, copies - 1).items(), names),
        )


def _standbys(
    active: Mapping[TopicPartition, str],
    takers: Mapping[str, Sequence[str]],
    had: Mapping[str, frozenset[TopicPartition]],
    copies: int,
) -> dict[TopicPartition, frozenset[str]]:
    """Return the standby members of each partition: as many of those that `had` it as balance allows."""
    due: dict[str, Fraction] = {name: Fraction(0) for names in takers.values() for name in names}
    turns = dict.fromkeys(due, 0)
    # To have had it outweighs the order of turns.
    above = len(due) * len(active) * max(1, copies) + 1
    items = []
    for partition, owner in active.items():
        names = takers[partition.topic]
        others = [name for name in names if name != owner]
        wanted = min(copies, len(others))
        for name in others:
            due[name] += Fraction(wanted, len(others))
        # New standby members are chosen in turn, beginning after the active one: when that one leaves, its partitions
        # go to all other members evenly.
        first = names.index(owner) + turns[owner]
        turns[owner] += 1
        items.append(
            Item(
                {
                    name: 0 if partition in had[name] else above + (others.index(name) - first) % len(others)
                    for name in others
                },
                wanted,
            )
        )
    return dict(zip(active, share_out(items, due), strict=True))
