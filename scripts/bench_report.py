"""What the benchmark measured: series of numbers, their medians and spread, as a table and as JSON. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FORMAT_VERSION = 1
OURS = "groupkafka"
PEER = "kafka"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric of one source in one case, a value per run or batch; smaller is better."""

    case: str
    source: str
    metric: str
    values_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.values_ms)

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "source": self.source,
            "metric": self.metric,
            "median_ms": self.median_ms,
            "min_ms": min(self.values_ms),
            "max_ms": max(self.values_ms),
            "values_ms": list(self.values_ms),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same metric of both sources."""

    ours: Series
    peer: Series

    @property
    def ratio(self) -> float | None:
        """The peer's median by ours: above 1, groupkafka is faster. None when ours is 0."""
        return self.peer.median_ms / self.ours.median_ms if self.ours.median_ms else None


def series_of(case: str, source: str, runs: Sequence[dict[str, float]]) -> list[Series]:
    """Turn one dictionary of metrics per run into series, in the order of the first run's metrics."""
    return [Series(case, source, metric, tuple(run[metric] for run in runs)) for metric in (runs[0] if runs else {})]


def compare(series: Iterable[Series]) -> list[Comparison]:
    """Pair the series of both sources; those without a counterpart are left out."""
    by_key = {(one.case, one.metric, one.source): one for one in series}
    return [
        Comparison(one, by_key[case, metric, PEER])
        for (case, metric, source), one in by_key.items()
        if source == OURS and (case, metric, PEER) in by_key
    ]


def _shown(series: Series) -> str:
    low, high = min(series.values_ms), max(series.values_ms)
    return f"{series.median_ms:,.0f} ({low:,.0f} - {high:,.0f})"


def markdown_table(comparisons: Sequence[Comparison]) -> str:
    """Return the table: milliseconds as median (min - max), and the ratio of the medians."""
    lines = [
        f"| case | metric, ms | {OURS} | {PEER} (Spark's own) | {PEER} / {OURS} | values |",
        "|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        ratio = "-" if one.ratio is None else f"{one.ratio:.2f}"
        count = f"{len(one.ours.values_ms)} / {len(one.peer.values_ms)}"
        lines.append(
            f"| {one.ours.case} | {one.ours.metric} | {_shown(one.ours)} | {_shown(one.peer)} | {ratio} | {count} |"
        )
    return "\n".join(lines)


def to_json(environment: dict[str, Any], settings: dict[str, Any], series: Sequence[Series]) -> dict[str, Any]:
    """Return all results; `ratio` is the peer's median by ours."""
    ratios = [{"case": one.ours.case, "metric": one.ours.metric, "ratio": one.ratio} for one in compare(series)]
    return {
        "v": FORMAT_VERSION,
        "environment": environment,
        "settings": settings,
        "series": [one.to_json() for one in series],
        "ratios": ratios,
    }
