"""Two drivers that read the same partitions with option `assign` and commit to one group."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from .application import Application
from .harness import Independent, Query, wait_for
from .holding import OffsetWatch

pytestmark = pytest.mark.kafka


def test_a_driver_that_comes_back_does_not_take_the_groups_offset_back(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: Callable[..., Query],
    application: Application,
) -> None:  # fmt: skip
    """Guards against: 1. a driver hangs with a batch that ends at 75; 2. another one commits 100; 3. it goes on."""
    chosen = {name: value for name, value in options.items() if name != "subscribe"}
    chosen["assign"] = json.dumps({topic: [0]})
    client.create_topic(topic, 1)
    client.produce(topic, map(str, range(50)), 1)
    old = start_query("old", chosen, batch_s=6)
    wait_for("the first commit", lambda: client.committed(group) == {(topic, 0): 50}, 90, old.log)
    planned = {path.name for path in (old.checkpoint / "offsets").glob("[0-9]*")}
    client.produce(topic, map(str, range(25)), 1)
    wait_for(
        "a second batch", lambda: {path.name for path in (old.checkpoint / "offsets").glob("[0-9]*")} - planned, 60
    )
    # Its sink hangs: the batch is in flight.
    os.kill(old.process.pid, signal.SIGSTOP)
    assert client.committed(group) == {(topic, 0): 50}

    new = application.start_query("new", chosen)
    wait_for("the takeover", lambda: client.committed(group) == {(topic, 0): 75}, 90, new.__repr__)
    client.produce(topic, map(str, range(25)), 1)
    wait_for("the new driver's commit", lambda: client.committed(group) == {(topic, 0): 100}, 90, new.__repr__)
    with OffsetWatch(client, group) as watch:
        os.kill(old.process.pid, signal.SIGCONT)
        assert old.wait_ended() == 1
    assert watch.went_back == []
    failure = old.failure()
    assert "ASSIGN_OVERTAKEN" in failure
    assert "Option 'assign'" in failure
    assert f"offset 75 of partition {topic}-0" in failure
    assert f"'{group}' back from offset 100" in failure

    client.produce(topic, map(str, range(5)), 1)
    wait_for("the new driver to go on", lambda: client.committed(group) == {(topic, 0): 105}, 60, new.__repr__)
    new.stop()
