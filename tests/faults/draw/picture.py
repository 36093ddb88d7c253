"""Draws a run as SVG text, with no library: a lane per partition over time.

A lane's background is its owner's colour; a block is a completed batch, as high as it has records; a tick below is a
commit of the group; a vertical line is a fault, with a light band until the group had recovered. Everything is merged
to about a pixel, so that the size depends on the width and the lanes, not on the length of the run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from tests.faults.history import Fault, History
from tests.faults.judge.facts import Batch, Facts, Ownership, Partition, facts_of
from tests.faults.judge.verdict import PROMISES, REPLAY, Verdict

WIDTH = 1200
LEFT, RIGHT = 104, 14
LANE, GAP = 22, 5
_LABEL_ROW = 13
_MOST_LABEL_ROWS = 8
_CHAR = 5.4  # mean width of a character at 9 px
_SMALLEST_BLOCK = 1.6  # px; narrower neighbours become one
# Told apart by colour-blind people too (Okabe and Ito), without the red of faults.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f", "#b5bd00")
_UNCLEAN, _CLEAN, _INK, _GREY, _PAPER = "#c62828", "#455a64", "#1f2328", "#6e7781", "#fcfcfd"


@dataclass(frozen=True, slots=True)
class _Block:
    start: float  # px
    end: float
    records: int


class _Canvas:
    """Where things are: x from a time, y from a partition."""

    def __init__(self, facts: Facts, label_rows: int) -> None:
        run = facts.history.run
        # Brokers and Spark take their time to start: the picture begins with the first member.
        begins = [stay.start for stays in facts.owned.values() for stay in stays]
        begins += [batch.planned_at for batch in facts.batches]
        self.start_s = min(begins, default=run.started_at)
        ends = [batch.at or batch.planned_at for batch in facts.batches]
        ends += [fault.recovered_at for fault in facts.history.faults] + [commit.at for commit in facts.commits]
        self.end_s = max([run.ended_at, *ends, self.start_s + 1.0])
        known = {(log[0], log[2]) for batch in facts.batches for log in batch.ranges}
        self.lanes = sorted(
            known | {(log[0], log[2]) for log in facts.log} | {partition for _, partition in facts.owned}
        )
        self.top = 56 + label_rows * _LABEL_ROW
        self.bottom = self.top + len(self.lanes) * (LANE + GAP)
        self.height = self.bottom + 34
        self._y = {partition: self.top + n * (LANE + GAP) for n, partition in enumerate(self.lanes)}

    def x(self, at: float) -> float:
        """Return the horizontal place of a moment, within the lanes."""
        share = (at - self.start_s) / (self.end_s - self.start_s)
        return round(LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, partition: Partition) -> int:
        """Return the upper edge of a lane."""
        return self._y[partition]


def draw(history: History, verdict: Verdict) -> str:
    """Return the picture of a run."""
    facts = facts_of(history)
    queries = sorted({batch.query for batch in facts.batches} | {query for query, _ in facts.owned})
    colours = {query: _COLOURS[n % len(_COLOURS)] for n, query in enumerate(queries)}
    canvas = _Canvas(facts, 0)
    labels = list(_placed(canvas, history.faults))
    rows = max((row for _, _, row in labels), default=-1) + 1
    canvas = _Canvas(facts, rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{canvas.height}"'
        f' viewBox="0 0 {WIDTH} {canvas.height}" font-family="Verdana, DejaVu Sans, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{canvas.height}" rx="6" fill="{_PAPER}"/>',
        *_head(facts, verdict, colours),
        *_bands(canvas, history.faults),
        *_lanes(canvas, facts, colours),
        *_fault_marks(canvas, labels),
        *_axis(canvas),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, size: float = 11, fill: str = _INK, *, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{more}>{escape(text)}</text>'


# --- head and axis


def _head(facts: Facts, verdict: Verdict, colours: dict[str, str]) -> Iterator[str]:
    run, figures = facts.history.run, verdict.figures
    violated = verdict.violated()
    repeated = sum(count for name, count in figures.repeats.items() if name != REPLAY)
    told = (
        f"seed {run.seed}, {run.protocol}{f', Kafka {run.kafka}' if run.kafka else ''}: {figures.records:,} records, "
        f"{figures.completed:,} batches, {len(facts.history.faults)} faults, {repeated:,} records repeated"
    )
    if violated:
        judged = ", ".join(f"{name} ({len(verdict.violations[name])})" for name in violated)
        judged = f"VIOLATED: {judged}"
    else:
        judged = "history in doubt" if verdict.doubts else f"{next(iter(PROMISES))}-{list(PROMISES)[-1]} hold"
    colour = "#1a7f37" if verdict.good else _UNCLEAN
    yield _text(LEFT, 20, told, 13, more=' font-weight="bold"')
    yield _text(WIDTH - RIGHT, 20, judged, 13, colour, more=' font-weight="bold" text-anchor="end"')
    x = float(LEFT)
    for query, colour in colours.items():
        yield f'<rect x="{x:g}" y="30" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 16, 40, query)
        x += 30 + 7 * len(query)
    x += 12
    for shape, name in (
        ('<rect x="{x}" y="30" width="12" height="12" fill="#8c959f" opacity="0.25"/>', "owns the partition"),
        ('<path d="M{x} 42h12v-9h-12z" fill="#8c959f"/>', "completed batch, height: records"),
        (f'<path d="M{{x}} 32v8m4 -8v8m4 -8v8" stroke="{_INK}"/>', "commit of the group"),
        (f'<path d="M{{x}} 30v13" stroke="{_CLEAN}" stroke-width="2"/>', "clean fault"),
        (f'<path d="M{{x}} 30v13" stroke="{_UNCLEAN}" stroke-width="2"/>', "unclean fault, band: until recovered"),
    ):
        yield shape.format(x=f"{x:g}")
        yield _text(x + (16 if "rect" in shape or "h12" in shape else 12), 40, name, fill=_GREY)
        x += 34 + 6.3 * len(name)


def _axis(canvas: _Canvas) -> Iterator[str]:
    length = canvas.end_s - canvas.start_s
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800) if length / s <= 16), 3600)
    y = canvas.bottom
    yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="{_GREY}"/>'
    for second in range(0, math.floor(length) + 1, step):
        x = canvas.x(canvas.start_s + second)
        yield f'<path d="M{x} {y}v5" stroke="{_GREY}"/>'
        yield _text(x, y + 17, f"{second} s", 10, _GREY, more=' text-anchor="middle"')


# --- lanes


def _lanes(canvas: _Canvas, facts: Facts, colours: dict[str, str]) -> Iterator[str]:
    batches: dict[tuple[Partition, str], list[tuple[float, float, int]]] = defaultdict(list)
    for batch in facts.completed:
        start = _started(batch)
        for log, (low, high) in batch.ranges.items():
            if high > low:
                batches[(log[0], log[2]), batch.query].append((start, batch.at or start, high - low))
    most = max((records for found in batches.values() for _, _, records in found), default=1)
    commits: dict[Partition, set[float]] = defaultdict(set)
    for commit in facts.commits:
        commits[commit.log[0], commit.log[2]].add(round(canvas.x(commit.at)))
    for partition in canvas.lanes:
        y = canvas.y(partition)
        name = f"{partition[0]}-{partition[1]}"
        yield f"<g data-lane={quoteattr(name)}>"
        yield _text(LEFT - 6, y + 15, name, more=' text-anchor="end"')
        yield f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}" fill="none" stroke="#d8dee4"/>'
        for one in _owners(facts, partition):
            x = canvas.x(one.start)
            width = round(canvas.x(one.end) - x, 1)
            if width > 0:
                place = f'x="{x:g}" y="{y}" width="{width:g}" height="{LANE}"'
                yield f'<rect {place} fill="{colours[one.query]}" opacity="0.25"/>'
        for query, colour in colours.items():
            blocks = _merged(canvas, batches.get((partition, query), []))
            path = "".join(_block_path(block, y + LANE - 3, most) for block in blocks)
            if path:
                yield f'<path d="{path}" fill="{colour}"/>'
        ticks = "".join(f"M{x} {y + LANE - 2}v4" for x in sorted(commits[partition]))
        if ticks:
            yield f'<path d="{ticks}" stroke="{_INK}" stroke-width="0.8" opacity="0.8"/>'
        yield "</g>"


def _started(batch: Batch) -> float:
    """Return when the run that counts began: after a crash that is long after its plan."""
    counted = [run.started_at for run in batch.attempts if run.rows is batch.rows]
    return counted[0] if counted else batch.planned_at


def _block_path(block: _Block, floor: float, most: int) -> str:
    height = round(3 + (LANE - 7) * math.sqrt(block.records / most), 1)
    width = round(max(block.end - block.start, 1.0), 1)
    return f"M{block.start:g} {floor:g}h{width:g}v-{height:g}h-{width:g}z"


def _merged(canvas: _Canvas, batches: Iterable[tuple[float, float, int]]) -> list[_Block]:
    """Join what is too narrow to be seen with its left neighbour; the larger number of records counts."""
    found: list[_Block] = []
    for start, end, records in sorted(batches):
        left, right = canvas.x(start), canvas.x(end)
        last = found[-1] if found else None
        if last is not None and left - last.start < _SMALLEST_BLOCK + 1:
            found[-1] = _Block(last.start, max(last.end, right), max(last.records, records))
        else:
            found.append(_Block(left, right, records))
    return found


def _owners(facts: Facts, partition: Partition) -> Iterator[Ownership]:
    """Yield who had the partition, as the group saw it: until the next one came, or until it was killed."""
    stays = [one for (_, other), found in facts.owned.items() if other == partition for one in found]
    stays.sort(key=lambda one: one.start)
    for n, one in enumerate(stays):
        end = min([one.end, *(later.start for later in stays[n + 1 : n + 2])])
        if math.isinf(one.end):
            kills = [f.started_at for f in facts.history.faults if f.target == one.query and "kill" in f.kind]
            end = min([end, *(at for at in kills if at > one.start)])
        yield Ownership(one.query, partition, one.start, end)


# --- faults


def _placed(canvas: _Canvas, faults: Iterable[Fault]) -> Iterator[tuple[Fault, str, int]]:
    """Yield each fault with its label and the row in which the label has room; -1 when no row has."""
    taken: list[float] = []
    for fault in sorted(faults, key=lambda fault: fault.started_at):
        label = f"{fault.kind} {fault.target}"
        x, width = canvas.x(fault.started_at), _CHAR * len(label) + 8
        start = min(x, WIDTH - RIGHT - width)
        row = next((n for n, end in enumerate(taken) if end <= start), len(taken))
        if row >= _MOST_LABEL_ROWS:
            yield fault, "", -1
            continue
        if row == len(taken):
            taken.append(0.0)
        taken[row] = start + width
        yield fault, label, row


def _bands(canvas: _Canvas, faults: Iterable[Fault]) -> Iterator[str]:
    for fault in faults:
        x, end = canvas.x(fault.started_at), canvas.x(fault.recovered_at)
        place = (
            f'x="{x}" y="{canvas.top - 4}" width="{max(1.0, end - x):.1f}" height="{canvas.bottom - canvas.top + 4}"'
        )
        yield f'<rect {place} fill="{_CLEAN if fault.clean else _UNCLEAN}" opacity="0.07"/>'


def _fault_marks(canvas: _Canvas, labels: Iterable[tuple[Fault, str, int]]) -> Iterator[str]:
    for fault, label, row in labels:
        x, colour = canvas.x(fault.started_at), _CLEAN if fault.clean else _UNCLEAN
        y = 52 + (row if row >= 0 else _MOST_LABEL_ROWS - 1) * _LABEL_ROW
        title = (
            f"{fault.number} {fault.kind} {fault.target}, recovered in {fault.recovered_at - fault.started_at:.1f} s"
        )
        yield f"<g><title>{escape(title)}</title>"
        yield f'<path d="M{x} {y}V{canvas.bottom}" stroke="{colour}" stroke-width="1.2" opacity="0.75"/>'
        if label:
            place = min(x + 3, WIDTH - RIGHT - _CHAR * len(label))
            yield _text(place, y + 8, label, 9, colour)
        yield "</g>"
