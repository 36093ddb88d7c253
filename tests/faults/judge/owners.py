"""Who owned which partition when, as the coordinator's own records say. The product's word is not asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.history import GroupRecord

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The coordinator gave a member a partition at `start`, and took it back at `end` (infinite: never).

    `position` and `end_position` are those of the records; -1 and infinite without one. `gone`: the member itself
    ended, by leaving or because the coordinator removed it.
    """

    query: str
    partition: Partition
    start: float
    end: float
    position: float = -1
    end_position: float = math.inf
    gone: bool = False


class _Stays:
    """Follows the records of one group."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, Partition], list[Ownership]] = defaultdict(list)
        self._since: dict[tuple[str, str, Partition], GroupRecord] = {}

    def take(self, record: GroupRecord) -> None:
        """Note one record."""
        who = (record.query, record.member)
        kept = set(record.partitions) if record.event == "owns" else set()
        for key in [key for key in self._since if key[:2] == who and key[2] not in kept]:
            self._end(key, record.at, record.position, gone=record.event != "owns")
        for partition in sorted(kept):
            self._since.setdefault((*who, partition), record)

    def finish(self) -> dict[tuple[str, Partition], list[Ownership]]:
        """Return all, the oldest first."""
        for key in list(self._since):
            self._end(key, math.inf, math.inf, gone=False)
        for stays in self.found.values():
            stays.sort(key=lambda one: one.start)
        return dict(self.found)

    def _end(self, key: tuple[str, str, Partition], at: float, position: float, *, gone: bool) -> None:
        began = self._since.pop(key)
        stay = Ownership(key[0], key[2], began.at, at, began.position, position if position >= 0 else math.inf, gone)
        self.found[key[0], key[2]].append(stay)


def ownerships(records: Iterable[GroupRecord]) -> dict[tuple[str, Partition], list[Ownership]]:
    """Return who had which partition when, by (query, partition).

    A member that was removed by a log line of the coordinator ("expired") has lost all that it had then.
    """
    stays = _Stays()
    for record in sorted(records, key=lambda one: (one.at, one.position)):
        stays.take(record)
    return stays.finish()
