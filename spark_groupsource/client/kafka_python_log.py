"""kafka-python's log, in this package's: masked, repeats collapsed, and no louder than a warning.

The client has no logger to be given: its modules log under `kafka`, and would show as root's, or not at all.
"""

from __future__ import annotations

import logging

from spark_groupsource.client.settings import quiet_logger

_ROLE = "member"


class _Forward(logging.Handler):
    """Hands each record to this package's logger of the member's client, whose filters decide."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record again, under this package's name."""
        if "event loop" in str(record.msg) and record.levelno <= logging.WARNING:
            # How long a step of the client's took: on a busy machine any may take longer than it likes.
            return
        quiet_logger(_ROLE).handle(
            logging.LogRecord(
                f"spark_groupsource.client.settings.{_ROLE}", record.levelno, record.pathname, record.lineno,
                "kafka-python: " + record.getMessage(), None, None, record.funcName,
            )
        )  # fmt: skip


def quiet() -> None:
    """Lead the client's log through this package's. Idempotent; leaves a logger alone that somebody has set up."""
    client = logging.getLogger("kafka")
    # The client gives itself a NullHandler, as libraries do.
    if not all(isinstance(handler, logging.NullHandler) for handler in client.handlers):
        return
    client.addHandler(_Forward())
    client.propagate = False
    if client.level == logging.NOTSET:
        client.setLevel(logging.WARNING)
