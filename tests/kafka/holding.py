"""Holds a query at a named moment, reads what its member tells, and watches the group's offsets."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_groupsource import failpoints

from .harness import Independent, wait_for

Position = tuple[str, int]


class Held:
    """A place in a query where it is held until `release`; see `spark_groupsource.failpoints`."""

    def __init__(self, query: str, place: str) -> None:
        self._armed = Path(os.environ[failpoints.FAILPOINTS_VARIABLE], f"{query}.{place}")
        self._reached = self._armed.with_name(f"{self._armed.name}.reached")
        self._armed.touch()

    def is_reached(self) -> bool:
        """Return whether the query stands there."""
        return self._reached.exists()

    def wait_reached(self, evidence: Callable[[], str] = str) -> None:
        """Wait until the query stands there."""
        wait_for(f"{self._armed.name} to be reached", self.is_reached, 60, evidence)

    def next(self) -> None:
        """Let the query go on until it comes there again."""
        self._armed.touch()
        self._reached.unlink()

    def release(self) -> None:
        """Let the query go on."""
        self._armed.unlink(missing_ok=True)
        self._reached.unlink(missing_ok=True)


class Gate:
    """Holds a sink after it has written a batch, before Spark records the batch as complete (a `BatchHook`)."""

    def __init__(self) -> None:
        self.armed = False
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, number: int, records: tuple[Any, ...]) -> None:
        """Hold the first batch with records once armed."""
        if self.armed and records and not self._reached.is_set():
            self._reached.set()
            self._open.wait(120)

    def wait_reached(self, evidence: Callable[[], str] = str) -> None:
        """Wait until a batch stands there."""
        wait_for("a batch to be in the sink", self._reached.is_set, 60, evidence)

    def release(self) -> None:
        """Let the batch end, and all later ones."""
        self.armed = False
        self._open.set()


class Events:
    """The metrics file of a query."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.metrics"
        self.options = {"metricsPath": str(self.path)}

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the lines, of one kind of event or all."""
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]  # a line may be read while it is written
        found = [json.loads(line) for line in whole.splitlines()]
        return [line for line in found if event is None or line["event"] == event]

    def wait_for(self, event: str, times: int = 1, timeout_s: float = 60) -> dict[str, Any]:
        """Wait until an event was told so often; return its last line."""
        wait_for(f"{times} x {event}", lambda: len(self.lines(event)) >= times, timeout_s, self.tail)
        return self.lines(event)[-1]

    def has_partitions(self) -> bool:
        """Return whether the member was assigned partitions, once at least."""
        return any(line["partitions"] for line in self.lines("assigned"))

    def metrics(self) -> dict[str, Any]:
        """Return the newest counters."""
        found: dict[str, Any] = self.lines()[-1]["metrics"]
        return found

    def reader_pid(self) -> int:
        """Return the reader process's id."""
        return int(self.lines("started")[-1]["pid"])

    def tail(self) -> str:
        """Return the end of the file, as evidence."""
        return "\n".join(
            f"{line['at']} {line['event']} {line['state']} {line['details']}" for line in self.lines()[-30:]
        )


def tails(seen: Mapping[str, Events]) -> str:
    """Return the ends of several files, as evidence."""
    return "\n".join(f"--- {name}\n{lines.tail()}" for name, lines in seen.items())


class OffsetWatch:
    """Asks for the group's offsets all the time and keeps what it saw."""

    def __init__(self, client: Independent, group: str) -> None:
        self._client, self._group = client, group
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seen: dict[Position, list[int]] = {}
        self.went_back: list[str] = []

    def _run(self) -> None:
        while not self._ended.is_set():
            for partition, offset in self._client.committed(self._group).items():
                known = self.seen.setdefault(partition, [offset])
                if offset < known[-1]:
                    self.went_back.append(f"{partition}: {known[-1]} -> {offset}")
                if offset != known[-1]:
                    known.append(offset)
            time.sleep(0.05)

    def __enter__(self) -> OffsetWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)


@contextmanager
def released(*holders: Held | Gate) -> Iterator[None]:
    """Let everything go on at the end, also when the test fails: Spark cannot stop a query that is held."""
    try:
        yield
    finally:
        for holder in holders:
            holder.release()


@contextmanager
def held_until_assigned(*members: Events) -> Iterator[None]:
    """Hold the first trigger of the query that this block starts until its members have partitions.

    The client id of each is the name of its metrics file. Spark's first batch is empty if they come late
    (`FIRST_ASSIGNMENT_S`), and the next trigger may be days away.
    """
    waiting = [(Held(seen.path.stem, "before-complete"), seen) for seen in members]

    def assigned() -> bool:
        for held, seen in list(waiting):
            if held.is_reached() and seen.has_partitions():
                held.release()
                waiting.remove((held, seen))
        return not waiting

    with released(*(held for held, _ in waiting)):
        yield
        wait_for("partitions", assigned, 120, lambda: tails({seen.path.stem: seen for seen in members}))


@contextmanager
def held_before_plan(query: str, evidence: Callable[[], str] = str) -> Iterator[None]:
    """Hold a query before it plans: what is produced meanwhile is all in its next batch, on any machine."""
    held = Held(query, "before-complete")
    with released(held):
        held.wait_reached(evidence)
        yield
