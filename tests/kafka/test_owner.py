"""`run_when_owner` with real drivers of a stateful query: one kill, one clean stop, one pause beyond the session.

`python -m tests.kafka.owner_rig --kills 20 --stops 20 --pauses 10` does it more often.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from spark_groupsource import run_when_owner
from spark_groupsource.errors import OptionError

from . import owner_rig
from .harness import Independent

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.rule("R67")
def test_p1_p2_a_stateful_query_goes_on_at_another_driver(
    protocol: str, client: Independent, topic: str, tmp_path: Path
) -> None:
    """In an order of its own each time. Nothing is lost or counted twice, and an old owner runs no new batch."""
    random.seed()
    actions = {"kill": 1, "stop": 1, "pause": 1}
    rig, is_right = owner_rig.run(tmp_path, client.bootstrap_servers, topic, actions, protocol=protocol)
    owner_rig.report(rig)
    assert is_right, rig.faults
    assert {kind: len(times) for kind, times in rig.owner_s.items()} == {"SIGKILL": 1, "clean stop": 1, "SIGSTOP": 1}


def test_a_missing_topic_of_the_lock_is_an_error_at_once(client: Independent, topic: str, group: str) -> None:
    options = {"kafka.bootstrap.servers": client.bootstrap_servers}
    with pytest.raises(OptionError, match=rf"TOPIC_UNKNOWN.*'{topic}' does not exist"):
        run_when_owner(pytest.fail, group=group, topic=topic, options=options)  # type: ignore[arg-type]
