"""Keeps every entry of Spark's offset and commit logs, also those that Spark purges (minBatchesToRetain)."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

PACE_S = 0.2
_LOGS = ("offsets", "commits")


class Archive:
    """A thread that copies new entries, with their times. `follow` and `look` may be called from another thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()  # over `_followed` and the copying
        self._followed: dict[str, Path] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    def of(self, life: str) -> Path:
        """Return where the entries of a checkpoint's life are kept."""
        return self._folder / life

    def follow(self, life: str, checkpoint: Path) -> None:
        """Copy the entries of this checkpoint from now on; a life before it in the same folder is over."""
        with self._lock:
            self._followed = {name: path for name, path in self._followed.items() if path != checkpoint}
            self._followed[life] = checkpoint

    def leave(self, life: str) -> None:
        """Copy what is new of this life, and nothing more from then on."""
        self.look()
        with self._lock:
            self._followed.pop(life, None)

    def look(self) -> None:
        """Copy what is new now."""
        with self._lock:
            for life, checkpoint in self._followed.items():
                for log in _LOGS:
                    self._copy(checkpoint / log, self.of(life) / log)

    def close(self) -> None:
        """End the thread, after a last look."""
        self._stopped.set()
        self._thread.join(30)
        self.look()

    def _copy(self, source: Path, target: Path) -> None:
        """Copy the entries that are not there yet.

        The first version stays. Guards against: 1. Two applications run one checkpoint, and one completes batch 27.
        2. Its offset is committed, and Spark purges entry 27. 3. The other application, which is behind, completes
        batch 27 too and writes the entry again: its time would put the commit before the batch.
        """
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.glob("[0-9]*"):
            kept = target / entry.name
            with contextlib.suppress(OSError):  # purged meanwhile
                if not kept.exists():
                    scratch = kept.with_name(f".{entry.name}.new")
                    shutil.copy2(entry, scratch)
                    scratch.replace(kept)

    def _run(self) -> None:
        while not self._stopped.wait(PACE_S):
            self.look()
