"""One real broker for all processes of a test run.

The first process of pytest-xdist that needs it starts it and writes its address down; the others read that. Each of
them holds a shared lock while it uses the broker, and the one that has started it waits at its end until it is alone:
the processes run out of tests at different times. A process that dies lets go of its lock by itself, and the broker
ends with the process that has started it, however that ends (see `RealKafka`).
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.realkafka.realkafka import RealKafka


@dataclass(frozen=True, slots=True)
class SharedBroker:
    """A broker that nobody may stop: other tests use it at the same time."""

    bootstrap_servers: str


@contextlib.contextmanager
def shared_broker(folder: Path) -> Iterator[SharedBroker]:
    """Use the broker of all processes that name this folder; start it if nobody has. Raises RealKafkaError."""
    address = folder / "kafka-address"
    with (
        (folder / "kafka-starting").open("w") as starting,
        (folder / "kafka-users").open("w") as users,
        contextlib.ExitStack() as owned,
    ):
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not address.exists():
            broker = owned.enter_context(RealKafka(brokers=1))
            address.write_text(broker.bootstrap_servers)
            # Runs before the broker is closed.
            owned.callback(fcntl.flock, users, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_UN)
        try:
            yield SharedBroker(address.read_text())
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
