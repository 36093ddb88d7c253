"""The application that other tests of this directory run their queries in."""

from __future__ import annotations

import threading

import pytest

from .application import Application
from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka


def test_queries_of_one_application_are_members_of_their_own(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    client.create_topic(topic, 4)
    client.produce(topic, (str(n) for n in range(100)), 4)
    everything = client.records(topic)
    gate, reached = threading.Event(), threading.Event()

    def hold(_number: int, _records: object) -> None:
        reached.set()
        assert gate.wait(60)

    first = application.start_query("first", options, batch=hold)
    assert reached.wait(60), first
    assert set(first.records()) == everything
    assert first.completed_records() == {}, "a batch counts only when Spark has recorded it"
    gate.set()
    first.wait_for_records(everything)

    second = application.start_query("second", options)
    wait_for("two members", lambda: sorted(map(len, client.members(group))) == [2, 2], 60)
    assert second.checkpoint != first.checkpoint
    first.stop()
    wait_for("one member", lambda: list(map(len, client.members(group))) == [4], 30)

    again = application.start_query("first", options)
    assert again.completed_records() == first.completed_records()
    second.check()
    second.stop()
    with pytest.raises(AssertionError, match="second has ended"):
        second.check()
