"""The embedded broker's calls into librdkafka, which frees what a call uses. The library is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_groupsource.embedded import EmbeddedKafka, EmbeddedKafkaError, broker
from tests.unit.fakes import WAIT_S

# Seconds in which a thread that is not held up has closed the broker.
MOMENT_S = 0.2


class SlowLibrary:
    """A `Library` of which one function takes until the cluster is destroyed, or a moment."""

    def __init__(self, _path: str) -> None:
        self.slow = ""
        self.inside, self.destroyed = threading.Event(), threading.Event()
        self.destroyed_inside: bool | None = None

    def __call__(self, name: str, *_: Any) -> Any:
        if name == self.slow:
            self.inside.set()
            self.destroyed_inside = self.destroyed.wait(MOMENT_S)
        if name == "mock_cluster_destroy":
            self.destroyed.set()
        return {"mock_cluster_bootstraps": b"127.0.0.1:1", "conf_set": 0, "mock_get_requests": None}.get(name, 1)

    def check(self, name: str, *arguments: Any) -> None:
        self(name, *arguments)

    def has(self, _name: str) -> bool:
        return True


@pytest.mark.parametrize(
    ("slow", "call"),
    [
        ("mock_broker_set_rtt", lambda kafka: kafka.slow_down(5)),
        ("mock_clear_request_errors", lambda kafka: kafka.clear_failures(1)),
        ("mock_get_requests", lambda kafka: kafka.requests()),
    ],
)
def test_close_waits_for_the_call_of_another_thread(
    slow: str, call: Callable[[EmbeddedKafka], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A thread is inside of a call. 2. Another one closes the broker. 3. librdkafka frees what the call uses."""
    monkeypatch.setattr(broker, "Library", SlowLibrary)
    kafka = EmbeddedKafka()
    library: Any = kafka._library
    library.slow = slow
    caller = threading.Thread(target=call, args=(kafka,))
    caller.start()
    assert library.inside.wait(WAIT_S)
    kafka.close()
    caller.join(WAIT_S)
    assert library.destroyed_inside is False
    assert library.destroyed.is_set()
    with pytest.raises(EmbeddedKafkaError, match="closed"):
        call(kafka)
    kafka.close()


def test_a_broker_that_nobody_holds_any_more_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "Library", SlowLibrary)
    kafka = EmbeddedKafka()
    library: Any = kafka._library
    del kafka
    assert library.destroyed.is_set()
