"""Polls the group's committed offsets, and writes down each change that it sees."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from confluent_kafka import KafkaException

from tests.faults.history import Watched
from tests.faults.observe.observer import Observer, Offsets

PACE_S = 0.05


class Watcher:
    """A thread with a client of its own; `offsets` is what it saw last."""

    def __init__(self, observer: Observer, path: Path) -> None:
        self._observer = observer
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.offsets: Offsets = {}

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def look_again(self, topics: Iterable[str] | None = None) -> None:
        """Watch partitions that were added too, or these topics from now on."""
        self._observer.look_again(topics)

    def stop(self) -> None:
        """End; a second call does nothing."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def _watch(self) -> None:
        with self._path.open("w", encoding="utf-8") as file:
            while not self._stopped.wait(PACE_S):
                asked_at = time.time()
                try:
                    seen = self._observer.committed()
                except KafkaException:  # the coordinator is away
                    continue
                at, known = time.time(), self.offsets
                for (topic, partition), offset in sorted(seen.items()):
                    if known.get((topic, partition)) != offset:
                        line = Watched(asked_at, at, topic, partition, offset)
                        file.write(json.dumps(asdict(line), separators=(",", ":"), sort_keys=True) + "\n")
                self.offsets = {**known, **seen}
