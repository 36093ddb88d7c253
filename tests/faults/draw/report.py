"""The table of a run: faults with their recovery times, repeats, promises, figures. Plain text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from tests.faults.history import Fault, History
from tests.faults.judge.verdict import CLASSES, PROMISES, REPLAY, SAME_LINEAGE, Verdict

_SHOWN = 5  # violations per promise


def table(history: History, verdict: Verdict) -> str:
    """Return the whole table."""
    run = history.run
    about = [f"seed {run.seed}", run.protocol, run.flavour, f"Kafka {run.kafka or '?'}"]
    title = ", ".join([*filter(None, about), f"{run.ended_at - run.started_at:.0f} s"])
    parts = [title, _faults(history.faults), _repeats(verdict), _promises(verdict), _figures(history, verdict)]
    return "\n\n".join(parts) + "\n"


def summary(runs: Sequence[tuple[str, History, Verdict]]) -> str:
    """Return a line per run: its outcome, what was done, what was repeated, and how long takeovers and drains took."""
    head = ("run", "seed", "faults", "records", "lost", "doubled", "repeats", "takeover", "drain", "outcome")
    rows = [head]
    for outcome, history, verdict in runs:
        figures = verdict.figures
        repeats = sum(count for name, count in figures.repeats.items() if name not in (REPLAY, SAME_LINEAGE))
        takeovers = [float(one.details["takeover_s"]) for one in history.faults if "takeover_s" in one.details]
        drains = [float(e.details["drain_ms"]) / 1000 for e in history.members if "drain_ms" in e.details]
        broken = ",".join(verdict.violated()) or ("doubt" if verdict.doubts else "")
        rows.append(
            (
                history.run.protocol, str(history.run.seed), str(len(history.faults)), f"{figures.records:,}",
                f"{figures.lost:,}", f"{figures.repeats.get(SAME_LINEAGE, 0):,}", f"{repeats:,}",
                _short(takeovers), _short(drains), f"{outcome} {broken}".strip(),
            )
        )  # fmt: skip
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    kinds = Counter(fault.kind for _, history, _ in runs for fault in history.faults)
    return "\n".join([*lines, "", *(f"{count:4d} {kind}" for kind, count in sorted(kinds.items()))])


def _short(times: list[float]) -> str:
    return f"{median(times):.1f}/{max(times):.1f} s" if times else "-"


def _faults(faults: Iterable[Fault]) -> str:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault.recovered_at - fault.started_at)
    width = max(map(len, [*by_kind, "fault"]))
    lines = [f"{'fault':{width}}  count  recovered: median   worst"]
    for kind, times in sorted(by_kind.items()):
        lines.append(f"{kind:{width}}  {len(times):5d}  {median(times):15.1f} s {max(times):5.1f} s")
    count = sum(map(len, by_kind.values()))
    lines.append(f"{count} faults of {len(by_kind)} kinds")
    return "\n".join(lines)


def _repeats(verdict: Verdict) -> str:
    counts = verdict.figures.repeats
    width = max(map(len, CLASSES))
    return "\n".join(["repeated records", *(f"  {name:{width}}  {counts.get(name, 0):7,d}" for name in CLASSES)])


def _promises(verdict: Verdict) -> str:
    lines = []
    for promise, name in PROMISES.items():
        found = verdict.violations.get(promise, ())
        lines.append(f"{promise} {name:20s} {f'VIOLATED ({len(found)})' if found else 'holds'}")
        lines += [f"     {violation.text}" for violation in found[:_SHOWN]]
        if len(found) > _SHOWN:
            lines.append(f"     and {len(found) - _SHOWN} more")
    lines += [f"DOUBT: {doubt}" for doubt in verdict.doubts]
    return "\n".join(lines)


def _figures(history: History, verdict: Verdict) -> str:
    figures = verdict.figures
    revokes = [event.details for event in history.members if event.event == "revoked"]
    ends = Counter(str(details.get("outcome")) for details in revokes)
    ends["lost"] += sum(event.event == "lost" for event in history.members)
    ended = ", ".join(f"{name} {count}" for name, count in sorted(ends.items()) if count) or "none"
    drains = [float(details["drain_ms"]) / 1000 for details in revokes if "drain_ms" in details]
    return "\n".join(
        [
            f"{figures.records:,} records in the log, {figures.acknowledged:,} acknowledged, "
            f"{figures.reported_lost:,} offsets reported as lost",
            f"{figures.completed:,} completed batches in {figures.attempts:,} runs, {figures.commits:,} commits",
            f"partitions went: {ended}",
            f"drain: {_times(drains)}",
            *_takeover_lines("SIGKILL", [fault.details for fault in history.faults if _is_kill(fault)]),
            *_takeover_lines("a clean stop", [fault.details for fault in history.faults if _is_stop(fault)]),
        ]
    )


def _is_kill(fault: Fault) -> bool:
    return "kill" in fault.kind and not fault.clean


def _is_stop(fault: Fault) -> bool:
    return fault.clean and any(word in fault.kind for word in ("stop", "ended", "leaves"))


def _takeover_lines(after: str, details: list[dict[str, Any]]) -> list[str]:
    """Return how long the others took to own the partitions, and to read on in them."""
    owned, read = ([float(one[name]) for one in details if name in one] for name in ("takeover_s", "reads_on_s"))
    return [f"takeover after {after}: {_times(owned)}", f"reading on after {after}: {_times(read)}"]


def _times(times: list[float]) -> str:
    return f"median {median(times):.2f} s, worst {max(times):.2f} s ({len(times)})" if times else "none"
