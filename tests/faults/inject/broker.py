"""Faults of brokers: restarted, killed, the coordinator moved. One of three is away at a time."""

from __future__ import annotations

import time

from tests.faults.observe.observer import attempt
from tests.faults.rig.rig import Done, Rig
from tests.faults.waiting import wait_for


def _some_broker(rig: Rig) -> int:
    return rig.rng.randint(1, rig.shape.brokers)


def restart(rig: Rig) -> Done:
    """A broker is shut down cleanly and started again."""
    broker = _some_broker(rig)
    rig.kafka.stop_broker(broker)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False)


def kill(rig: Rig) -> Done:
    """SIGKILL of a broker, which is started again at once."""
    broker = _some_broker(rig)
    rig.kafka.kill_broker(broker)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False)


def kill_coordinator(rig: Rig) -> Done:
    """SIGKILL of the group's coordinator, which stays away until another broker has taken the group over."""
    broker = wait_for("the coordinator", 30, lambda: attempt(rig.observer.coordinator), rig.evidence)
    since = time.time()
    rig.kafka.kill_broker(broker)

    def moved() -> bool:
        found = attempt(rig.observer.coordinator)
        return found is not None and found != broker

    wait_for("another coordinator", 180, moved, rig.evidence)
    moved_s = round(time.time() - since, 2)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False, {"moved_s": moved_s})
