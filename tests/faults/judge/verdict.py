"""What the checker finds: violations per promise, and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

PROMISES: Mapping[str, str] = {
    "P1": "no loss",
    "P2": "once per checkpoint",
    "P3": "same replay",
    "P4": "never ahead",
    "P5": "fenced",
    "P6": "bounded repeats",
    "P7": "order",
    "P8": "no silent loss",
}

# Classes of repeats. Only SAME_LINEAGE and UNEXPLAINED are wrong by themselves; the others have bounds.
SAME_LINEAGE = "same lineage in two completed batches"
REPLAY = "replay of one batch"
UNCLEAN = "across members after an unclean handover"
BEHIND = "planned while the group took no commits"
CHECKPOINT = "after a lost or old checkpoint"
RESET = "after a reset or rewound group"
UNEXPLAINED = "across members without an unclean handover"
CLASSES = (SAME_LINEAGE, REPLAY, UNCLEAN, BEHIND, CHECKPOINT, RESET, UNEXPLAINED)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that did not hold; `text` names what, where and when."""

    promise: str
    text: str


@dataclass(frozen=True, slots=True)
class Figures:
    """How much was judged. `repeats` counts records by class; a replay's are those of its earlier runs.

    `lost` are records that had to be read and are in no completed batch; `reported_lost` what the product reported.
    """

    records: int = 0
    acknowledged: int = 0
    completed: int = 0
    attempts: int = 0
    commits: int = 0
    lost: int = 0
    reported_lost: int = 0
    repeats: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one history. `doubts` say what is wrong with the history itself."""

    violations: Mapping[str, tuple[Violation, ...]]
    figures: Figures
    doubts: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether every promise holds, and the history can be believed."""
        return not self.doubts and not any(self.violations.values())

    def violated(self) -> list[str]:
        """Return the promises that do not hold."""
        return [promise for promise in PROMISES if self.violations.get(promise)]


def spans(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return sorted half-open ranges that hold exactly these offsets."""
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def shown(offsets: Iterable[int], limit: int = 4) -> str:
    """Return offsets as ranges, the first few of them, with their number: "[3, 5) [9, 10) (3 records)"."""
    found = list(offsets)
    ranges = spans(found)
    more = f" and {len(ranges) - limit} more ranges" if len(ranges) > limit else ""
    return " ".join(f"[{start}, {end})" for start, end in ranges[:limit]) + f"{more} ({len(found)} records)"
