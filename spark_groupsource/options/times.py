"""Parse times that users write in options and commands: relative, by day, or in ISO 8601. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from spark_groupsource.model.offsets import TIME_MAX_MS

# What is allowed besides milliseconds, as a text for users.
MOMENTS = "a relative time (-24h, -7d; units s, m, h, d, w), today, yesterday (UTC), or ISO 8601 (2026-01-31T12:00:00Z)"
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_RELATIVE = re.compile(r"-\s*([0-9]{1,9})\s*([smhdw])", re.IGNORECASE)
_DAYS_AGO = {"today": 0, "yesterday": 1}


class NotBetweenYearsError(ValueError):
    """Raised for a time before 1970 or after 9999."""

    def __init__(self) -> None:
        super().__init__("not between 1970 and 9999")


def shown_time(time_ms: int) -> str:
    """Return a time in UTC as text for users, to the millisecond."""
    moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment_ms(text: str, now_s: float) -> int:
    """Return a time as milliseconds since the epoch. `now_s` is the time now, in seconds since the epoch.

    Days begin at midnight UTC, and a time without a zone is in UTC: the same text means the same time on every machine.
    Raises `ValueError` for another form, and `NotBetweenYearsError` for a time before 1970 or after 9999.
    """
    given = text.strip()
    relative = _RELATIVE.fullmatch(given)
    if relative is not None:
        found = int(now_s * 1000) - int(relative[1]) * _UNITS_S[relative[2].lower()] * 1000
    elif given.lower() in _DAYS_AGO:
        today = datetime.fromtimestamp(now_s, tz=timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
        found = round((today - timedelta(days=_DAYS_AGO[given.lower()])).timestamp() * 1000)
    else:
        moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", given))
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
        found = round(moment.timestamp() * 1000)
    if not 0 <= found <= TIME_MAX_MS:
        raise NotBetweenYearsError
    return found
