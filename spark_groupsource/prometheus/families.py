"""Define metrics of Prometheus, and their values: one `Family` per name, one `Sample` per set of labels. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class MetricKind(Enum):
    """Type of a metric, by Prometheus's name."""

    GAUGE = "gauge"
    # Its name ends in `_total`.
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Distribution:
    """The value of a histogram. `counts` has the values up to each bound, and at its end those above all bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.bounds)} bounds need {len(self.bounds) + 1} counts, not {len(self.counts)}")

    def cumulated(self) -> list[tuple[float, int]]:
        """Return (upper bound, number of values up to it), the last bound being infinity."""
        found, below = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            below += count
            found.append((bound, below))
        return found


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, type, labels, and meaning for users."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()

    def of(self, value: float | Distribution, *labels: str) -> Sample:
        """Return a sample with these label values, in the order of `labels`."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(labels)}")
        return Sample(self, labels, value)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    family: Family
    labels: tuple[str, ...]
    value: float | Distribution


def family_table(families: Sequence[Family]) -> str:
    """Return the metrics as a table in Markdown, for the reference pages."""
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for one in families:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind.value} | {labels} | {one.meaning} |")
    return "\n".join(lines)
