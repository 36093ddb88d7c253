"""`run_when_owner` with real drivers of a stateful query: one kill, one clean stop, one pause beyond the session.

`python -m tests.kafka.owner_rig --kills 20 --stops 20 --pauses 10` does it more often.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from spark_groupsource import run_when_owner
from spark_groupsource.errors import OptionError

from . import owner_rig
from .harness import Independent, newest_commit, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.rule("R67")
def test_p1_p2_a_stateful_query_goes_on_at_another_driver(
    protocol: str, client: Independent, topic: str, tmp_path: Path
) -> None:
    """In an order of its own each time. Nothing is lost or counted twice, and an old owner runs no new batch."""
    random.seed()
    actions = {"kill": 1, "stop": 1, "pause": 1}
    rig = owner_rig.make(tmp_path, client.bootstrap_servers, topic, protocol=protocol)
    is_right = owner_rig.run(rig, actions)
    owner_rig.report(rig)
    assert is_right, rig.faults
    assert {kind: len(times) for kind, times in rig.owner_s.items()} == {"SIGKILL": 1, "clean stop": 1, "SIGSTOP": 1}


def test_a_missing_topic_of_the_lock_is_an_error_at_once(client: Independent, topic: str, group: str) -> None:
    options = {"kafka.bootstrap.servers": client.bootstrap_servers}
    with pytest.raises(OptionError, match=rf"TOPIC_UNKNOWN.*'{topic}' does not exist"):
        run_when_owner(pytest.fail, group=group, topic=topic, options=options)  # type: ignore[arg-type]


def test_an_owner_goes_on_if_a_former_one_has_recorded_its_batch(
    client: Independent, topic: str, tmp_path: Path
) -> None:
    """1. The owner runs a batch. 2. A former owner, which ran it, too, wakes up and records its end first. 3. Spark
    refuses the owner's entry. The owner has the lock, so it starts its query again.
    """
    rig = owner_rig.make(tmp_path, client.bootstrap_servers, topic)
    ids = owner_rig.Ids(client.bootstrap_servers, topic)
    rig.add()
    (driver,) = rig.drivers
    try:
        ids.start()
        wait_for("two batches", lambda: newest_commit(rig.checkpoint) >= 1, 120, rig.evidence)
        held = rig.hold(driver)
        commits = rig.checkpoint / "commits"
        (commits / str(held)).write_text((commits / str(held - 1)).read_text())
        rig.release(driver)
        wait_for("a new start", lambda: len([e for e in driver.events() if e["event"] == "started"]) == 2, 120,
                 rig.evidence)  # fmt: skip
        assert "a former owner was in the way" in driver.log()
        assert "CONCURRENT_STREAM_LOG_UPDATE" in driver.log()
        wait_for("new batches", lambda: newest_commit(rig.checkpoint) > held, 120, rig.evidence)
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(120) == 0, rig.evidence()
        assert driver.events()[-1]["how"] == "DRAINED"
    finally:
        ids.end(wait_read=lambda: None)
        rig.close()
