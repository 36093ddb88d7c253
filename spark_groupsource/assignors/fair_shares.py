"""Compute shares in proportion to weights, and assign items to them with as few moves as possible. Pure.

A member's quota is the sum, over its subscribed topics, of its share of the topic's partitions by weight. Promises:

- Every member gets its quota rounded down or up. That is always possible: the quotas are a fractional solution of a
  flow problem with whole-number bounds, and such a problem then has a whole-number solution, too.
- No such assignment has a smaller sum of costs. An assignment that can be improved can be improved along a cycle of
  single moves (Klein 1967), and moves are made until there is no such cycle.
- Among assignments of equal cost, the members with the largest remainders get one more partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from spark_groupsource.assignors.interface import ClusterInfo, GroupMember
from spark_groupsource.model.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to assign: cost (0 or more) per member that may have it, and the number of members that get it."""

    costs: Mapping[str, int]
    copies: int = 1


def subscribers(cluster: ClusterInfo, members: Iterable[GroupMember]) -> dict[str, tuple[str, ...]]:
    """Return the members that subscribe to each topic, sorted; topics without a subscriber are left out."""
    found: dict[str, set[str]] = {}
    for member in members:
        for topic in member.topics:
            found.setdefault(topic, set()).add(member.member_id)
    return {topic: tuple(sorted(found[topic])) for topic in sorted(cluster.topics) if topic in found}


def owners(members: Iterable[GroupMember]) -> dict[TopicPartition, str]:
    """Return the previous owner of each partition. `leader.lead` has removed contradicting claims before."""
    return {partition: member.member_id for member in members for partition in member.owned}


def by_member(
    places: Iterable[tuple[TopicPartition, frozenset[str]]], names: Iterable[str]
) -> dict[str, frozenset[TopicPartition]]:
    """Convert members per partition to partitions per member."""
    found: dict[str, set[TopicPartition]] = {name: set() for name in names}
    for partition, holders in places:
        for name in holders:
            found[name].add(partition)
    return {name: frozenset(partitions) for name, partitions in found.items()}


def quotas(
    cluster: ClusterInfo, takers: Mapping[str, Sequence[str]], weights: Mapping[str, int]
) -> dict[str, Fraction]:
    """Return the exact, fractional number of partitions of the topics in `takers` that each member should get."""
    due = dict.fromkeys(sorted(weights), Fraction(0))
    for topic, names in takers.items():
        total = sum(weights[name] for name in names)
        for name in names:
            due[name] += Fraction(len(cluster.topics[topic]) * weights[name], total)
    return due


def share_partitions(
    cluster: ClusterInfo,
    takers: Mapping[str, Sequence[str]],
    weights: Mapping[str, int],
    cost: Callable[[TopicPartition, str], int],
) -> dict[TopicPartition, frozenset[str]]:
    """Return the one member of each partition of the topics in `takers`, by weight; `cost` is that of a member."""
    partitions = [partition for topic in takers for partition in cluster.partitions(topic)]
    items = [Item({name: cost(partition, name) for name in takers[partition.topic]}) for partition in partitions]
    return dict(zip(partitions, share_out(items, quotas(cluster, takers, weights)), strict=True))


def share_out(items: Sequence[Item], due: Mapping[str, Fraction]) -> list[frozenset[str]]:
    """Return the members of each item. An item goes to `copies` different members, or to none if none may have it.

    Raises ValueError for an item with fewer possible members than copies.
    """
    shares = _Shares(items, due)
    shares.fill()
    while cycle := shares.improving_cycle():
        shares.move_along(cycle)
    return [frozenset(shares.names[member] for member in places) for places in shares.places]


class _Shares:
    """An assignment in progress. Members and items are numbers; the number after the last member is the balance.

    The balance is a node of the graph like the members: an arc from a member to it means that the member gets one item
    more, an arc from it to a member that the member gets one less.
    """

    def __init__(self, items: Sequence[Item], due: Mapping[str, Fraction]) -> None:
        self.names = sorted(due)
        numbers = {name: number for number, name in enumerate(self.names)}
        self.costs = [{numbers[name]: item.costs[name] for name in sorted(item.costs)} for item in items]
        self.copies = [item.copies if item.costs else 0 for item in items]
        if any(copies > len(costs) for copies, costs in zip(self.copies, self.costs, strict=True)):
            raise ValueError("an item has fewer possible members than copies")
        self.places: list[set[int]] = [set() for _ in items]
        self.holds: list[set[int]] = [set() for _ in self.names]
        self.least = [due[name] // 1 for name in self.names]
        self.most = [-(-due[name] // 1) for name in self.names]
        by_remainder = sorted(range(len(self.names)), key=lambda n: (self.least[n] - due[self.names[n]], n))
        self.rank = {number: rank for rank, number in enumerate(by_remainder)}
        # Three kinds of cost, each outweighing all later kinds: a load outside of a member's bounds, the items' costs,
        # and the order of the remainders.
        self.unit = len(self.names) ** 2 + 1
        self.outside = self.unit * (1 + sum(sum(costs.values()) for costs in self.costs))
        # The cheapest item that can move from one member to another: (cost, item).
        self.cheapest: list[dict[int, tuple[int, int]]] = []

    def fill(self) -> None:
        """Make a first assignment: each item where it is cheapest while there is room, items with fewest choices first.

        Any assignment would be correct; this one leaves few cycles to find.
        """
        choices = {
            item: sum(cost == min(costs.values()) for cost in costs.values())
            for item, costs in enumerate(self.costs)
            if self.copies[item]
        }
        order = sorted(choices, key=lambda item: (choices[item], item))
        for may_cost_more in (False, True):
            for item in order:
                while len(self.places[item]) < self.copies[item]:
                    costs = self.costs[item]
                    full, cost, *_, member = min(
                        self._preference(item, member) for member in costs if member not in self.places[item]
                    )
                    if (full or cost > min(costs.values())) and not may_cost_more:
                        break
                    self._put(item, member)
        self.cheapest = [self._moves_from(member) for member in range(len(self.names))]

    def _preference(self, item: int, member: int) -> tuple[bool, int, int, int, int]:
        load = len(self.holds[member])
        cost = self.costs[item][member]
        return load >= self.most[member], cost, load - self.least[member], self.rank[member], member

    def _put(self, item: int, member: int) -> None:
        self.places[item].add(member)
        self.holds[member].add(item)

    def _moves_from(self, member: int) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for item in self.holds[member]:
            own = self.costs[item][member]
            for other, cost in self.costs[item].items():
                if other not in self.places[item]:
                    move = (cost - own, item)
                    if other not in found or move < found[other]:
                        found[other] = move
        return found

    def _one_more(self, member: int, load: int) -> int:
        """Return the cost of one item more than `load` at a member; it never decreases with the load."""
        if load < self.least[member]:
            return -self.outside
        return self.rank[member] if load < self.most[member] else self.outside

    def _arcs(self) -> list[tuple[int, int, int]]:
        balance = len(self.names)
        arcs = [(a, b, cost * self.unit) for a, row in enumerate(self.cheapest) for b, (cost, _) in sorted(row.items())]
        for member, held in enumerate(self.holds):
            arcs.append((member, balance, self._one_more(member, len(held))))
            if held:
                arcs.append((balance, member, -self._one_more(member, len(held) - 1)))
        return arcs

    def improving_cycle(self) -> list[int]:
        """Return the nodes of a cycle with negative cost (Bellman-Ford); an empty list if there is none."""
        arcs = self._arcs()
        nodes = len(self.names) + 1
        distance = [0] * nodes
        before: dict[int, int] = {}
        changed = True
        while changed:
            changed = False
            for start, end, cost in arcs:
                if distance[start] + cost < distance[end]:
                    distance[end] = distance[start] + cost
                    before[end] = start
                    changed = True
            # A cycle among the predecessors always has negative cost, and any negative cycle shows up there.
            if changed and (cycle := _cycle(before)):
                return cycle
        return []

    def move_along(self, cycle: Sequence[int]) -> None:
        """Move along a cycle: the cheapest item of each member goes to the next one."""
        balance = len(self.names)
        touched = set()
        moves = [
            (start, end, self.cheapest[start][end][1])
            for start, end in zip(cycle, [*cycle[1:], cycle[0]], strict=True)
            if balance not in {start, end}
        ]
        for start, end, item in moves:
            touched |= {start, end, *self.places[item]}
            self.places[item].remove(start)
            self.holds[start].remove(item)
            self._put(item, end)
        for member in touched:
            self.cheapest[member] = self._moves_from(member)


def _cycle(before: Mapping[int, int]) -> list[int]:
    """Return a cycle of a graph with at most one predecessor per node, in the arcs' direction; empty if none."""
    done: set[int] = set()
    for first in sorted(before):
        path: dict[int, None] = {}
        node: int | None = first
        while node is not None and node not in path and node not in done:
            path[node] = None
            node = before.get(node)
        if node in path:
            nodes = list(path)
            return nodes[nodes.index(node) :][::-1]
        done |= path.keys()
    return []
