"""What a Spark application costs: CPU time and memory of its JVM and of all processes below it. Linux only (/proc).

The broker and the Python process of the benchmark itself are not among them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

_PROC = Path("/proc")
_SAMPLE_S = 0.1
_W = TypeVar("_W", bound="_Watched")

JVM, READER, WORKERS, PLANNERS, ALL = "JVM", "reader process", "Python workers", "Python planners", "all together"
KINDS = (JVM, READER, WORKERS, PLANNERS)
# Where CPU time goes, by process and name of the thread.
CLIENT, TASKS, JVM_TASKS, JVM_OWN, REST = (
    "librdkafka's threads", "Python's task threads", "the JVM's task threads", "the JVM's compilers and collector",
    "all else",
)  # fmt: skip
PARTS = (CLIENT, TASKS, JVM_TASKS, JVM_OWN, REST)


@dataclass(frozen=True, slots=True)
class Stat:
    """What /proc/<pid>/stat says. `own_ticks` are of the process, `reaped_ticks` of ended children it waited for."""

    pid: int
    parent: int
    own_ticks: int
    reaped_ticks: int


def parse_stat(text: str) -> Stat:
    """Read the one line of /proc/<pid>/stat. The name in it may hold spaces and parentheses. Raises ValueError."""
    head, found, tail = text.rpartition(")")
    fields = tail.split()
    if not found or len(fields) < 15:
        raise ValueError(f"not a line of /proc/<pid>/stat: {text[:100]!r}")
    # proc(5) counts from 1, the state is number 3: utime is 14, stime 15, cutime 16, cstime 17.
    own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return Stat(int(head.split(" ", 1)[0]), int(fields[1]), own, reaped)


def parse_pss_kb(text: str) -> int:
    """Return the proportional set size of /proc/<pid>/smaps_rollup: shared pages count by their share. 0 without."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def kind_of(command_line: bytes) -> str:
    """Tell the kind of a process by /proc/<pid>/cmdline.

    The query's reader, the JVM, the workers that run tasks, or those that Spark plans Python data sources with, which
    it keeps for a minute. Workers are counted with the daemon that forks them.
    """
    if b"streaming_source_runner" in command_line:
        return READER
    if b"pyspark.sql.worker." in command_line:
        return PLANNERS
    program = command_line.split(b"\0", 1)[0]
    return JVM if program.rsplit(b"/", 1)[-1] == b"java" else WORKERS


def part_of(kind: str, thread: str) -> str:
    """Return what a thread of a process of this kind works for; its name is that of /proc/<pid>/task/<tid>/stat."""
    if kind == WORKERS:
        return CLIENT if thread.startswith("rdk:") else TASKS
    if kind == JVM and thread.startswith("Executor task"):
        return JVM_TASKS
    return JVM_OWN if kind == JVM and thread.startswith(("C1 ", "C2 ", "GC ", "G1 ", "VM ")) else REST


def below(root: int, stats: Mapping[int, Stat]) -> dict[int, Stat]:
    """Return the process and its descendants."""
    children: dict[int, list[int]] = {}
    for one in stats.values():
        children.setdefault(one.parent, []).append(one.pid)
    found: dict[int, Stat] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in stats and pid not in found:
            found[pid] = stats[pid]
            waiting += children.get(pid, [])
    return found


def ticks_between(root: int, before: Mapping[int, Stat], after: Mapping[int, Stat]) -> int:
    """Return what a tree of processes used between two looks at it.

    What an ended child of the root had used before is in the root's count of its children by then, and is taken out.
    PySpark's daemon does not wait for its workers: what one used that ended meanwhile is not counted.
    """
    used = 0
    for pid, now in after.items():
        then = before.get(pid)
        used += now.own_ticks + now.reaped_ticks - (then.own_ticks + then.reaped_ticks if then else 0)
    ended = [one for pid, one in before.items() if pid not in after and one.parent == root]
    return used - sum(one.own_ticks + one.reaped_ticks for one in ended)


def is_available() -> bool:
    """Whether this system tells what processes cost."""
    return (_PROC / "self" / "smaps_rollup").exists()


def tree(root: int) -> dict[int, Stat]:
    """Return the running process and its descendants."""
    stats: dict[int, Stat] = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                one = parse_stat((folder / "stat").read_text(errors="replace"))
            except OSError:
                continue  # it has ended
            stats[one.pid] = one
    return below(root, stats)


def threads(root: int) -> dict[tuple[int, int], tuple[str, int]]:
    """Return part and ticks of each thread of the running process and its descendants, by process and thread."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for pid in tree(root):
        folder = _PROC / str(pid)
        try:
            kind = kind_of((folder / "cmdline").read_bytes())
            for task in (folder / "task").iterdir():
                text = (task / "stat").read_text(errors="replace")
                name = text.partition("(")[2].rpartition(")")[0]
                found[pid, int(task.name)] = part_of(kind, name), parse_stat(text).own_ticks
        except OSError:
            continue  # it has ended
    return found


class CpuMeter:
    """CPU seconds of a process and its descendants since this was made."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before = tree(root)
        self._threads = threads(root)

    def seconds(self) -> float:
        """Return what they used so far."""
        return ticks_between(self._root, self._before, tree(self._root)) / os.sysconf("SC_CLK_TCK")

    def parts(self) -> dict[str, float]:
        """Return the seconds of each part. What threads used that have ended is in `REST`."""
        whole, found = self.seconds(), dict.fromkeys(PARTS, 0.0)
        for key, (part, ticks) in threads(self._root).items():
            found[part] += (ticks - self._threads.get(key, ("", 0))[1]) / os.sysconf("SC_CLK_TCK")
        return found | {REST: max(0.0, whole - sum(found[part] for part in PARTS if part != REST))}


class _Watched:
    """A process and its descendants, looked at ten times a second by a thread (`_watch`) in a `with` block."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=type(self).__name__, daemon=True)

    def __enter__(self: _W) -> _W:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        raise NotImplementedError


class WholeCpu(_Watched):
    """CPU seconds of a process and its descendants from their start to their end, also of those nobody waits for.

    Looked at ten times a second, in a `with` block: what a process uses after the last look at it is not counted.
    """

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self._ticks: dict[int, int] = {}

    def seconds(self) -> float:
        """Return what they used so far."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def _watch(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._ticks |= {pid: one.own_ticks for pid, one in tree(self._root).items()}


class PeakMemory(_Watched):
    """The most memory that a process and its descendants had, in a `with` block: looked at ten times a second.

    Memory is the proportional set size, because Python workers are forks that share much.
    """

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self._peaks_kb = dict.fromkeys((*KINDS, ALL), 0)

    def peaks_mb(self) -> dict[str, float]:
        """Return each kind's peak, its processes together, and that of all, in MB of 1,000,000 bytes."""
        return {kind: round(kb * 1024 / 1e6, 1) for kind, kb in self._peaks_kb.items()}

    def _watch(self) -> None:
        while True:
            now = dict.fromkeys(KINDS, 0)
            for pid in tree(self._root):
                try:
                    command_line = (_PROC / str(pid) / "cmdline").read_bytes()
                    now[kind_of(command_line)] += parse_pss_kb((_PROC / str(pid) / "smaps_rollup").read_text())
                except OSError:
                    continue  # it has ended
            now[ALL] = sum(now.values())
            self._peaks_kb = {kind: max(peak, now[kind]) for kind, peak in self._peaks_kb.items()}
            if self._ended.wait(_SAMPLE_S):
                return
