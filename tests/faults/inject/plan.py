"""Which faults a run makes, in which order: pure, from the seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from tests.faults.inject.kinds import KINDS, Kind

# Quick ones fill up a run that has had every kind.
QUICK = (
    "query-stopped", "worker-killed", "reader-paused-short", "app-paused-short", "commit-entry-lost", "jvm-killed",
    "app-ended", "checkpoint-lost",
)  # fmt: skip
# Nothing is left to grow into after a few.
MOST = {"partitions-added": 2, "records-deleted": 2, "loss-refused": 1, "topic-recreated": 2, "topic-replaced": 2}


def of(protocol: str, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS) -> list[str]:
    """Return the kinds that a protocol has in the table, of those that are named (all without names)."""
    return [name for name, kind in table.items() if protocol in kind.protocols and (not kinds or name in kinds)]


def deal(
    seed: int, protocols: Sequence[str], faults: int, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS
) -> dict[str, list[str]]:
    """Share `faults` faults out: each protocol gets its part, and together they have every kind.

    A fault that its protocol does not know goes to one that does. Shuffled; the same for the same arguments.
    """
    rng = Random(seed)
    share = {protocol: faults // len(protocols) + (n < faults % len(protocols)) for n, protocol in enumerate(protocols)}
    dealt: dict[str, list[str]] = {protocol: [] for protocol in protocols}
    everything = [name for name in table if not kinds or name in kinds]
    rng.shuffle(everything)
    for name in everything:
        able = [protocol for protocol in protocols if protocol in table[name].protocols]
        if able:
            dealt[min(able, key=lambda protocol: len(dealt[protocol]) - share[protocol])].append(name)
    for protocol, names in dealt.items():
        known = of(protocol, kinds, table)
        fill = [name for name in known if name in QUICK] or known
        while known and len(names) < share[protocol]:
            names.append(rng.choice(fill if rng.random() < 0.6 else known))
        rng.shuffle(names)
    return {protocol: _within_bounds(names) for protocol, names in dealt.items()}


def _within_bounds(names: list[str]) -> list[str]:
    kept: list[str] = []
    for name in names:
        kept.append(name if kept.count(name) < MOST.get(name, len(names)) else "query-stopped")
    return kept


def endless(seed: int, protocol: str, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS) -> Iterator[str]:
    """Return kinds for ever, each as often as the others."""
    rng = Random(seed)
    while True:
        round_of_all = of(protocol, kinds, table)
        rng.shuffle(round_of_all)
        yield from round_of_all
