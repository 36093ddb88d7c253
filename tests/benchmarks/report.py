"""What the benchmark measured: series of numbers and their comparison, as tables, in words and as JSON. Pure.

Every metric is one of which less is better; its name ends in its unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

FORMAT_VERSION = 2
OURS = "groupkafka"
PEER = "kafka"
BARE = "bare"  # a Python source without Kafka: bare.py

ADD_BATCH = "addBatch, ms"
WHOLE_QUERY = "whole query, ms"
TRIGGER = "whole trigger, ms"
LATEST_OFFSET = "latestOffset, ms"
SEEN = "produced to seen, ms"
FIRST_BATCH = "start to the end of the first batch, ms"
WHOLE_JOB = "spark-submit, ms"
JOB_CPU = "CPU of all processes, ms"
CPU = "CPU, s per million records"
CPU_PART = "CPU of {}, s per million records"  # a part of `CPU`: no figure to compare by itself
PEAK = "peak memory, {}, MB"
MEMORY_GOAL_MB = 200.0  # more than the peer's

_LEVEL = 0.05  # ratios this near to 1 are neither ahead nor behind
_MANY = 20  # values of which a 95th percentile says something
_SPREAD_MATTERS = 3  # with fewer runs there is no spread to speak of


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured. Subjects that differ in `partitions` only show how a source grows with them."""

    group: str
    what: str
    partitions: int
    records: int = 0  # per value of addBatch, where a rate is of interest

    @property
    def name(self) -> str:
        return f"{self.what}, {self.partitions} partition{'s' if self.partitions != 1 else ''}"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one source, a value per run or batch. `goal` is the ratio to reach, of our series."""

    subject: Subject
    source: str
    metric: str
    values: tuple[float, ...]
    goal: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def rate(self) -> float | None:
        """Records per second in addBatch; None where that is not of interest."""
        if self.metric != ADD_BATCH or not self.subject.records or not self.median:
            return None
        return self.subject.records / self.median * 1000

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self.subject),
            "source": self.source,
            "metric": self.metric,
            "goal": self.goal,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "p95": percentile(self.values, 95),
            "values": list(self.values),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same metric of both sources."""

    ours: Series
    peer: Series

    @property
    def ratio(self) -> float | None:
        """The peer's median by ours: above 1, groupkafka is better. None when ours is 0."""
        return self.peer.median / self.ours.median if self.ours.median else None

    @property
    def overlaps(self) -> bool:
        """Whether the runs of one source reach into those of the other."""
        return min(self.ours.values) <= max(self.peer.values) and min(self.peer.values) <= max(self.ours.values)


@dataclass(frozen=True, slots=True)
class Growth:
    """What is left of each source's throughput with more partitions, as a share of that with the fewest."""

    what: str
    fewest: int
    most: int
    ours: float
    peer: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as `share` percent of them (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(1, math.ceil(len(ordered) * share / 100)) - 1]


def series_of(
    subject: Subject, source: str, runs: Sequence[Mapping[str, float]], goals: Mapping[str, float] | None = None
) -> list[Series]:
    """Turn one dictionary of metrics per run into series, in the order of the first run's metrics."""
    wanted = (goals or {}) if source == OURS else {}
    metrics = runs[0] if runs else {}
    return [
        Series(subject, source, metric, tuple(run[metric] for run in runs), wanted.get(metric)) for metric in metrics
    ]


def compare(series: Iterable[Series]) -> list[Comparison]:
    """Pair the series of both sources; those without a counterpart are left out."""
    by_key = {(one.subject, one.metric, one.source): one for one in series}
    return [
        Comparison(one, by_key[subject, metric, PEER])
        for (subject, metric, source), one in by_key.items()
        if source == OURS and (subject, metric, PEER) in by_key and not _is_part(metric)
    ]


def growths(comparisons: Iterable[Comparison]) -> list[Growth]:
    """Return how the throughput changes from the fewest to the most partitions, where both were measured."""
    by_what: dict[str, list[Comparison]] = {}
    for one in comparisons:
        if one.ours.rate and one.peer.rate:
            by_what.setdefault(one.ours.subject.what, []).append(one)
    found = []
    for what, several in by_what.items():
        few = min(several, key=lambda one: one.ours.subject.partitions)
        many = max(several, key=lambda one: one.ours.subject.partitions)
        if few is not many:
            kept = [few.ours.median / many.ours.median, few.peer.median / many.peer.median]
            found.append(Growth(what, few.ours.subject.partitions, many.ours.subject.partitions, *kept))
    return found


# --- tables


def _is_part(metric: str) -> bool:
    return metric.startswith(CPU_PART.partition("{")[0])


def _number(value: float, metric: str) -> str:
    return f"{value:,.2f}" if metric == CPU or _is_part(metric) else f"{value:,.0f}"


def _shown(series: Series) -> str:
    numbers = [_number(value, series.metric) for value in (series.median, min(series.values), max(series.values))]
    text = f"{numbers[0]} ({numbers[1]} - {numbers[2]})"
    if len(series.values) >= _MANY:
        text += f", p95 {_number(percentile(series.values, 95), series.metric)}"
    return text


def _judged(one: Comparison) -> tuple[str, str]:
    """Return the last two cells: memory is compared by difference, all else by ratio."""
    if _is_memory(one):
        return f"{one.ours.median - one.peer.median:+,.0f} MB", f"{MEMORY_GOAL_MB:+,.0f} MB" if _is_total(one) else ""
    goal = "" if one.ours.goal is None else f"{one.ours.goal:.2f}"
    return "-" if one.ratio is None else f"{one.ratio:.2f}", goal


def _is_memory(one: Comparison) -> bool:
    return one.ours.metric.endswith(", MB")


def _is_total(one: Comparison) -> bool:
    return one.ours.metric == PEAK.format("all together")


def markdown_table(comparisons: Sequence[Comparison]) -> str:
    """Return the table: medians with (min - max), the ratio of the medians, and the ratio to reach."""
    lines = [
        f"| case | metric | {OURS} | {PEER} (Spark's own) | {PEER} / {OURS} | goal | values |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        judged, goal = _judged(one)
        count = f"{len(one.ours.values)} / {len(one.peer.values)}"
        cells = (one.ours.subject.name, one.ours.metric, _shown(one.ours), _shown(one.peer), judged, goal, count)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _rates_table(comparisons: Sequence[Comparison]) -> str:
    lines = [f"| case | {OURS}, records/s in addBatch | {PEER} (Spark's own), records/s |", "|---|---|---|"]
    for one in comparisons:
        if one.ours.rate and one.peer.rate:
            lines.append(f"| {one.ours.subject.name} | {one.ours.rate:,.0f} | {one.peer.rate:,.0f} |")
    return "\n".join(lines)


def _growth_table(found: Sequence[Growth]) -> str:
    lines = [f"| case | partitions | {OURS} keeps | {PEER} (Spark's own) keeps |", "|---|---|---|---|"]
    for one in found:
        lines.append(f"| {one.what} | {one.fewest} to {one.most} | {one.ours:.0%} | {one.peer:.0%} |")
    return "\n".join(lines)


def tables(comparisons: Sequence[Comparison]) -> str:
    """Return a Markdown table per group of cases, one of rates, and one of how throughput grows with partitions."""
    parts = []
    for group in dict.fromkeys(one.ours.subject.group for one in comparisons):
        parts += [f"### {group}", markdown_table([one for one in comparisons if one.ours.subject.group == group])]
    if any(one.ours.rate for one in comparisons):
        parts += ["### records per second", _rates_table(comparisons)]
    found = growths(comparisons)
    if found:
        parts += ["### throughput kept with more partitions", _growth_table(found)]
    return "\n\n".join(parts)


def bare_table(series: Sequence[Series]) -> str:
    """Return what PySpark's Data Source API takes by itself, beside what both sources took; "" where not measured."""
    by_key = {(one.subject, one.metric, one.source): one for one in series}
    lines = []
    for one in (one for one in series if one.source == BARE):
        others = [by_key.get((one.subject, one.metric, source)) for source in (OURS, PEER)]
        shown = ["-" if other is None else _number(other.median, one.metric) for other in others]
        lines.append(f"| {' | '.join((one.subject.name, one.metric, _shown(one), *shown))} |")
    head = f"| case | metric | a Python source without Kafka | {OURS} | {PEER} (Spark's own) |"
    title = "### what PySpark's Data Source API takes by itself"
    return "\n".join([title, "", head, "|---|---|---|---|---|", *lines]) if lines else ""


# --- ahead or behind


def _by_ratio(one: Comparison, ratio: float) -> tuple[str, str]:
    if ratio >= 1 + _LEVEL:
        place, text = "Ahead", f"{ratio:.2f} x"
    elif ratio > 1 - _LEVEL:
        place, text = "Level", f"{ratio:.2f} x"
    else:
        more = _number(one.ours.median - one.peer.median, one.ours.metric)
        place, text = "Behind", f"{ratio:.2f} x, {more} {one.ours.metric.rsplit(', ', 1)[1]} more"
    if one.overlaps and len(one.ours.values) >= _SPREAD_MATTERS:
        text += "; the spreads overlap"
    if one.ours.goal is not None:
        text += f"; goal {one.ours.goal:.2f} {'reached' if ratio >= one.ours.goal else 'NOT reached'}"
    return place, text


def _by_difference(one: Comparison) -> tuple[str, str]:
    more = one.ours.median - one.peer.median
    level = abs(more) <= one.peer.median * _LEVEL
    goal = f"goal {MEMORY_GOAL_MB:+,.0f} MB {'reached' if more <= MEMORY_GOAL_MB else 'NOT reached'}"
    return "Level" if level else "Ahead" if more < 0 else "Behind", f"{more:+,.0f} MB; {goal}"


def verdict(comparisons: Sequence[Comparison]) -> str:
    """Return in words which figures are ahead of the peer's, which are behind, and by how much."""
    places: dict[str, list[str]] = {"Ahead": [], "Level": [], "Behind": []}
    for one in comparisons:
        if _is_memory(one):
            if not _is_total(one):
                continue  # the peer has no Python processes to compare with
            place, text = _by_difference(one)
        elif one.ratio is None or one.ours.metric == LATEST_OFFSET:  # a part of the trigger
            continue
        else:
            place, text = _by_ratio(one, one.ratio)
        places[place].append(f"- {one.ours.subject.name}, {one.ours.metric.rsplit(', ', 1)[0]}: {text}")
    for grown in growths(comparisons):
        kept = f"{grown.ours:.0%} of the throughput is kept, {grown.peer:.0%} by Spark's own source"
        difference = grown.ours - grown.peer
        place = "Level" if abs(difference) < _LEVEL else "Ahead" if difference > 0 else "Behind"
        places[place].append(f"- {grown.what}, {grown.fewest} to {grown.most} partitions: {kept}")
    notes = {"Ahead": "of Spark's own source", "Level": f"within {_LEVEL:.0%}", "Behind": "Spark's own source"}
    parts = []
    for place, lines in places.items():
        parts.append("\n".join([f"**{place} {notes[place]}: {len(lines)}**", "", *lines]).rstrip())
    return "\n\n".join(parts)


# --- JSON


def to_json(environment: Mapping[str, Any], settings: Mapping[str, Any], series: Sequence[Series]) -> dict[str, Any]:
    """Return all results; `ratio` is the peer's median by ours, `kept` the shares of the throughput."""
    compared = compare(series)
    return {
        "v": FORMAT_VERSION,
        "environment": dict(environment),
        "settings": dict(settings),
        "series": [one.to_json() for one in series],
        "ratios": [{"case": c.ours.subject.name, "metric": c.ours.metric, "ratio": c.ratio} for c in compared],
        "kept": [asdict(one) for one in growths(compared)],
    }


def series_from_json(results: Mapping[str, Any]) -> list[Series]:
    """Read back what `to_json` wrote. Raises ValueError for another format."""
    if results.get("v") != FORMAT_VERSION:
        raise ValueError(f"not results of this benchmark: v is {results.get('v')!r}, not {FORMAT_VERSION}")
    found = []
    for one in results["series"]:
        subject = Subject(one["group"], one["what"], one["partitions"], one["records"])
        found.append(Series(subject, one["source"], one["metric"], tuple(one["values"]), one["goal"]))
    return found
