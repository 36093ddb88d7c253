"""Simulate a query's checkpoint: Spark's offset log and commit log, in a store that may be slow or hang."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from spark_groupsource.model.offsets import SourceOffset
from tests.sim.world import World

Json = dict[str, Any]


class Store(Enum):
    """Where a checkpoint is, as far as the source sees it."""

    LOCAL = "a local folder: a look takes microseconds"
    REMOTE = "an object store: a look is a request of a tenth of a second"
    UNKNOWN = "option checkpointLocation is not set: the source sees nothing"


def text_of(end: Json) -> str:
    """Return an offset as Spark writes it to the offset log."""
    return json.dumps(end, sort_keys=True, separators=(",", ":"))


@dataclass
class Entry:
    """A batch: its entry of the offset log, and when the commit log got one (None: it has none).

    `planned_at` is when the source has planned it: Spark logs it when the query's other source has answered, too.
    `first_at` is when it got the first one: the entry may be lost in a crash, and written again.
    """

    text: str
    planned_at: float
    completed_at: float | None = None
    first_at: float | None = None
    attempts: int = 0

    def complete(self, now: float) -> None:
        """Write the entry of the commit log."""
        self.completed_at = now
        self.first_at = self.first_at or now

    @property
    def end(self) -> Json:
        """The source's offset."""
        found: Json = json.loads(self.text)
        return found


@dataclass
class Checkpoint:
    """One life of a checkpoint directory. A lost or restored one goes on under a new name (`q1#2`)."""

    life: str
    entries: dict[int, Entry] = field(default_factory=dict)
    # The store does not answer until then.
    hangs_until: float = 0.0
    # Whether Spark has made the folder `state`.
    has_state: bool = False

    @property
    def newest(self) -> int:
        """The number of the newest entry of the offset log; -1 if there is none."""
        return max(self.entries, default=-1)

    def copied(self, life: str) -> Checkpoint:
        """Return a copy, as a backup is one."""
        entries = {number: copy.copy(entry) for number, entry in self.entries.items()}
        return Checkpoint(life, entries, has_state=self.has_state)


class SimStateFolder:
    """The product's `StateFolder` on a simulated checkpoint."""

    def __init__(self, checkpoint: Checkpoint, store: Store) -> None:
        self._checkpoint, self._is_known = checkpoint, store is not Store.UNKNOWN

    def exists(self) -> bool | None:
        """See `StateFolder`."""
        return self._checkpoint.has_state if self._is_known else None


class SimBatchLog:
    """The product's `BatchLog` on a simulated checkpoint."""

    def __init__(self, world: World, checkpoint: Checkpoint, store: Store) -> None:
        self._world, self._checkpoint, self._store = world, checkpoint, store
        self.name = f"sim:{checkpoint.life}"
        self.is_local = store is Store.LOCAL

    def wants_start(self, start: SourceOffset) -> bool:
        """See `BatchLog`."""
        return False

    def compare_start(self, start: SourceOffset) -> None:
        """See `BatchLog`."""

    def is_complete(self, end: SourceOffset) -> bool:
        """See `BatchLog`. The entry is read at a moment within the request, so the answer may be a little old."""
        world, rng = self._world, self._world.rng
        if self._store is Store.UNKNOWN:
            return False
        world.sleep(rng.uniform(0.00005, 0.0005) if self.is_local else rng.uniform(0.01, 0.15))
        while self._checkpoint.hangs_until > world.now:
            world.sleep(self._checkpoint.hangs_until - world.now + 0.01)
        text = text_of(end.to_json())
        found = any(e.text == text and e.completed_at is not None for e in self._checkpoint.entries.values())
        if not self.is_local:
            world.sleep(rng.uniform(0.005, 0.1))
        return found

    def glance(self, end: SourceOffset) -> bool:
        """See `BatchLog`."""
        return self.is_complete(end)
