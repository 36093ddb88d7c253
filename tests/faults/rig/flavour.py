"""The mix of options of a run, by its seed and protocol: where it starts, what it subscribes, what Spark keeps."""

from __future__ import annotations

from dataclasses import dataclass

EARLIEST, LATEST, TIMESTAMP = "earliest", "latest", "timestamp"


@dataclass(frozen=True, slots=True)
class Flavour:
    """One mix. `session_s` is that of a KIP-848 group, which is the broker's to set; classic members ask for 6 s."""

    name: str
    starting: str = EARLIEST
    pattern: bool = False
    retain: int = 100_000  # spark.sql.streaming.minBatchesToRetain
    session_s: float = 6.0


FLAVOURS = (
    Flavour("earliest-list"),
    Flavour("latest-pattern-retain2", LATEST, pattern=True, retain=2, session_s=9.0),
    Flavour("timestamp-list-retain2", TIMESTAMP, retain=2, session_s=7.5),
    Flavour("earliest-pattern", pattern=True, session_s=9.0),
    Flavour("latest-list", LATEST, session_s=7.5),
)
BY_NAME = {one.name: one for one in FLAVOURS}


def flavour_of(seed: int, place: int) -> Flavour:
    """Return the mix of the run at this place among the protocols: five protocols have all mixes."""
    return FLAVOURS[(seed + place) % len(FLAVOURS)]
