"""A topic with a record per hour of the last days, and where the times of docs/how-to/reset.md are in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from .harness import Independent

# The ISO 8601 time of the pages' examples.
NOON = datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))
_HOUR_MS = 3_600_000


def fill_days(client: Independent, topic: str) -> list[int]:
    """Create a topic of one partition: an hour before `NOON`, at it, and each half hour past of the last 60 hours.

    Return the timestamps (ms). No record is near to 24 hours old, however long a test takes.
    """
    client.create_topic(topic, 1, **{"retention.ms": "-1"})
    noon_ms, now_ms = _ms(NOON), int(time.time() * 1000)
    assert noon_ms < now_ms - 61 * _HOUR_MS, "this clock is before the pages' example"
    recent = [now_ms - hours * _HOUR_MS + _HOUR_MS // 2 for hours in range(60, 0, -1)]
    times = [noon_ms - _HOUR_MS, noon_ms, *recent]
    client.produce_at(topic, times)
    return times


def first_since(times: Sequence[int], moment: str) -> int:
    """Return the offset of the first record at or after a time as the pages write it."""
    now = datetime.now(timezone.utc)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    meant = {
        "-24h": now - timedelta(days=1),
        "today": midnight,
        "yesterday": midnight - timedelta(days=1),
        NOON.isoformat(): NOON,
    }
    since_ms = _ms(meant[moment])
    return next((offset for offset, at_ms in enumerate(times) if at_ms >= since_ms), len(times))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
