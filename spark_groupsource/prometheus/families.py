"""Define metrics of Prometheus, and their values: one `Family` per name, one `Sample` per set of labels. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, TypeAlias

# Type of a metric, by Prometheus's name. The name of a counter ends in `_total`.
MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of values up to each bound, and above all of them; `total` is their sum. Replaced as a whole."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, *bounds: float) -> Histogram:
        """Return a histogram without values."""
        return cls(bounds, (0,) * (len(bounds) + 1))

    def plus(self, value: float) -> Histogram:
        """Return the histogram with one more value."""
        counts = list(self.counts)
        counts[bisect_left(self.bounds, value)] += 1
        return replace(self, counts=tuple(counts), total=self.total + value)

    def cumulated(self) -> list[tuple[float, int]]:
        """Return (upper bound, number of values up to it), the last bound being infinity."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, type, labels, and meaning for users."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()

    def of(self, value: float | Histogram, *labels: str) -> Sample:
        """Return a sample with these label values, in the order of `labels`."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(labels)}")
        return Sample(self, labels, value)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric."""

    family: Family
    labels: tuple[str, ...]
    value: float | Histogram
