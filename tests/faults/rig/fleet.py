"""The queries of a run: which should be running, on which application and with which checkpoint.

`Archive` keeps what their checkpoints held, also what Spark purges (minBatchesToRetain).
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.history import QueryRun
from tests.faults.rig.apps import App, AppPool, readers
from tests.faults.waiting import RigError, wait_for

_STOP_S = 180.0
# Longer than a batch takes: queries that always compute leave a starting reader no time to connect (Spark waits 10 s).
TRIGGER = "1 second"
# With strategies that know weights: the others have 1.
_WEIGHTS = {"q1": "3"}
# Spark starts no query on a checkpoint whose very first entry it was interrupted at, and asks to delete it.
_NEVER_LOGGED = "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY"
_ARCHIVE_PACE_S = 0.2
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
        while not self._stopped.wait(_ARCHIVE_PACE_S):
            self.look()


@dataclass(slots=True)
class Query:
    """One query. `life` counts the lives of its checkpoint: 2 after the first was lost or replaced."""

    name: str
    folder: Path
    life: int = 1
    app: App | None = None
    run: int = 0
    wanted: bool = True  # whether it should be running now
    failures: list[str] = field(default_factory=list)
    started_at: float = 0.0  # of the run that is open, 0 without one
    restored: bool = False  # whether its checkpoint was replaced by an old copy

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's folder; the same through all its lives, as for a user."""
        return self.folder / "checkpoints" / self.name

    @property
    def life_name(self) -> str:
        """The name of the checkpoint's life in the history."""
        return f"{self.name}#{self.life}"

    @property
    def running_on(self) -> App:
        """The application it runs on."""
        if self.app is None:
            raise RigError(f"{self.name} runs on no application")
        return self.app

    @property
    def session(self) -> int:
        """The session of its application's processes."""
        return self.running_on.session

    def alive(self) -> bool:
        """Whether the query runs, as its application tells."""
        return self.app is not None and self.app.state()[:2] == ("running", self.run)

    def reader(self) -> int:
        """Return the reader process's pid."""
        return wait_for(f"reader of {self.name}", 30, lambda: next(iter(readers(self.session)), None))


class Fleet:
    """Starts, stops and revives queries. One thread."""

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        conf: Mapping[str, str],
        clustered: Callable[[str], bool],
        settings: Mapping[str, str],
    ) -> None:
        """Start nothing yet.

        conf: set before a query starts.
        clustered: whether the query of a name runs on the Spark cluster.
        settings: of the applications on the cluster.
        """
        self.folder = folder
        self._clustered = clustered
        self.options = dict(options)
        self._conf = dict(conf)
        self.archive = Archive(folder / "archive")
        self.runs: list[QueryRun] = []
        self._runs = 0
        self._pools = {False: AppPool(folder / "apps", {}), True: AppPool(folder / "cluster-apps", settings)}
        self.queries: dict[str, Query] = {}
        self.inherited: dict[str, set[int]] = {}  # life -> batches that a restored checkpoint brought along

    @property
    def live(self) -> list[Query]:
        """The queries that should be running, in the order of their names."""
        return [query for _, query in sorted(self.queries.items()) if query.wanted]

    def pool_of(self, query: Query) -> AppPool:
        """Return the applications that a query may run on."""
        return self._pools[self._clustered(query.name)]

    def prepare(self, names: Iterable[str]) -> None:
        """Have a spare application for each of these queries, started or starting."""
        for clustered, count in Counter(map(self._clustered, names)).items():
            self._pools[clustered].prepare(count)

    def prepare_spares(self) -> None:
        """Have a spare application of each kind that the live queries run on."""
        for clustered in {self._clustered(query.name) for query in self.live}:
            self._pools[clustered].prepare(1)

    def add(self, name: str) -> Query:
        """Start a query: a new one, or one that has left, from its checkpoint."""
        query = self.queries.setdefault(name, Query(name, self.folder))
        query.wanted = True
        self.start(query)
        return query

    def start(self, query: Query, **overrides: str) -> None:
        """Start the query on its own application, or on a spare one; returns when Spark has it."""
        if query.app is None or not query.app.alive:
            query.app = self.pool_of(query).take()
        self.run_on(query.app, query, **overrides)

    def run_on(self, app: App, query: Query, **overrides: str) -> None:
        """Start a run of the query on an application."""
        self._close_run(query, "dead")
        self.archive.follow(query.life_name, query.checkpoint)
        self._runs += 1
        query.run, query.started_at = self._runs, time.time()
        app.command(do="start", **self._start_command(query, self._runs, overrides))
        wait_for(f"start of {query.name}", 180, lambda: not app.alive or app.state()[1] == query.run, self.evidence)

    def _close_run(self, query: Query, how: str) -> None:
        """Write down that the query's run is over, if one is open: its processes have ended by now."""
        if query.started_at:
            self.runs.append(QueryRun(query.name, query.run, query.started_at, time.time(), how))
            query.started_at = 0.0

    def start_twin(self, query: Query) -> tuple[App, int]:
        """Start the query's checkpoint a second time, on another application; returns it and the run."""
        app = self.pool_of(query).take()
        self._runs += 1
        run = self._runs
        app.command(do="start", **self._start_command(query, run, {}))
        wait_for(f"start of a second {query.name}", 180, lambda: not app.alive or app.state()[1] == run, self.evidence)
        return app, run

    def _start_command(self, query: Query, run: int, overrides: Mapping[str, str]) -> dict[str, object]:
        metrics = self.folder / "metrics"
        metrics.mkdir(exist_ok=True)
        options = self.options | {
            "kafka.client.id": query.name,
            "checkpointLocation": str(query.checkpoint),
            "metricsPath": str(metrics / f"{query.name}-{run}.jsonl"),
            # Now the driver reads, now the executors, and now one or the other by the size of the batch.
            "fastLaneMaxOffsets": ("0", "10000", "300")[run % 3],
            # On a cluster a batch has several tasks, each with several partitions.
            **({"minPartitions": "2"} if self._clustered(query.name) else {}),
            **({"memberWeight": _WEIGHTS.get(query.name, "1")} if "assignors" in self.options else {}),
            # Without it a query whose checkpoint is behind its own commits ends (CHECKPOINT_BEHIND).
            **({"onConflict": "group"} if query.restored else {}),
            **overrides,
        }
        return {
            "run": run,
            "query": query.name,
            "checkpoint": str(query.checkpoint),
            "life": query.life_name,
            "options": options,
            "sink": str(self.folder / "sink"),
            "trigger": TRIGGER,
            "conf": self._conf,
            "shuffle": self._clustered(query.name),
        }

    def stop(self, query: Query) -> None:
        """query.stop(), and wait until the reader process has left the group and ended."""
        app = query.app
        if app is None or not app.alive:
            return
        app.command(do="stop")
        self.wait_stopped(query)

    def wait_stopped(self, query: Query) -> None:
        """Wait until the query has stopped or failed, and its reader process has ended."""
        app = query.app
        if app is None:
            return

        def ended() -> bool:
            said = app.state()[0] in ("stopped", "failed", "idle")
            return not app.alive or (said and not readers(app.session))

        wait_for(f"{query.name} to stop", _STOP_S, ended, self.evidence)
        self._close_run(query, "stopped")

    def leave(self, query: Query) -> None:
        """Stop a query for good; its application goes back to the pool."""
        query.wanted = False
        self.stop(query)
        if query.app is not None:
            self.pool_of(query).give_back(query.app)
        query.app = None

    def heal(self) -> list[str]:
        """Start again what should be running and is not; returns what had happened to each."""
        found = []
        for query in self.live:
            if query.alive():
                continue
            state, _, error = query.app.state() if query.app is not None else ("dead", 0, "")
            story = f"{query.name} {state}: {told_by(error)}" if state == "failed" else f"{query.name} {state}"
            query.failures.append(story)
            found.append(story)
            if query.app is not None and state == "dead":
                query.app.kill()  # what outlived the driver
            self._close_run(query, state)
            if _NEVER_LOGGED in error and not log_entries(query.checkpoint / "offsets"):
                self.new_life(query)
            self.start(query)
        return found

    def keep_copy(self, query: Query) -> Path:
        """Copy the checkpoint of this life for the collection, once; times are kept."""
        target = self.folder / "lives" / query.life_name
        if not target.exists():
            shutil.copytree(query.checkpoint, target)
        return target

    def new_life(self, query: Query, restored: Path | None = None) -> None:
        """Delete the checkpoint, or replace it by a copy; the query goes on as its next life."""
        self.keep_copy(query)
        self.archive.leave(query.life_name)
        shutil.rmtree(query.checkpoint)
        query.life += 1
        query.restored = restored is not None
        if restored is not None:
            shutil.copytree(restored, query.checkpoint)
            self.inherited[query.life_name] = log_entries(query.checkpoint / "commits")

    def close(self) -> None:
        """End all applications; what ran is over by then."""
        for pool in self._pools.values():
            pool.close()
        for query in self.queries.values():
            self._close_run(query, "ended")
        self.archive.close()

    def evidence(self) -> str:
        """Return the ends of the applications' logs."""
        parts = [time.strftime("%H:%M:%S")]
        for query in self.queries.values():
            if query.app is not None:
                state, run, error = query.app.state()
                parts.append(
                    f"{query.name}: {state} run {run} (wanted {query.run}) {error[:3000]}\n{query.app.log_tail(25)}"
                )
        return "\n".join(parts)


def told_by(error: str) -> str:
    """Return the line of an error that says most, short: the source's own error if there is one."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    own = [line for line in lines if "[GROUPKAFKA." in line]
    return (own or lines or [""])[0][:250]


def log_entries(folder: Path) -> set[int]:
    """Return the batch numbers in a folder of Spark's offset log or commit log."""
    return {int(path.name) for path in folder.glob("*") if path.name.isdigit()}
