"""Filter the log of Kafka clients: mask secrets, collapse repeats."""

from __future__ import annotations

import logging
import re
import threading

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.redaction import MaskSecrets

LOG = logging.getLogger("spark_groupsource.client")


class CollapseRepeats(logging.Filter):
    """Pass each message of a client once per interval. For an unreachable broker a client logs ~20 lines a second.

    Numbers are ignored in the comparison, because they are ports, counters and milliseconds.
    """

    def __init__(self, interval_s: float = 30.0, clock: Clock | None = None) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the first message of its kind in each interval and count the others."""
        kind = re.sub(r"\d+", "#", record.getMessage())
        now_s = self._clock.monotonic_s()
        with self._lock:
            last_s, repeats = self._seen.get(kind, (-self._interval_s, 0))
            if now_s - last_s < self._interval_s:
                self._seen[kind] = (last_s, repeats + 1)
                return False
            if len(self._seen) > 500:
                self._seen.clear()
            self._seen[kind] = (now_s, 0)
        if repeats:
            record.msg = f"{record.getMessage()} (and {repeats} more like it)"
            record.args = ()
        return True


def quiet_logger(role: str) -> logging.Logger:
    """Return the logger for a client's setting `logger`."""
    logger = LOG.getChild(role)
    if not any(isinstance(known, CollapseRepeats) for known in logger.filters):
        logger.addFilter(MaskSecrets())
        logger.addFilter(CollapseRepeats())
    return logger
