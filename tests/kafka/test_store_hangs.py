"""A store of the checkpoint that takes connections and never answers: the query goes on, and hands over in time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Query, wait_for
from .holding import Told

pytestmark = pytest.mark.kafka

DRAIN_S = 12.0
ONCE = {"processingTime": "7 days"}  # Only the first trigger comes.


@pytest.fixture
def hanging_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a location in an S3 store that never answers."""
    credentials = {
        "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_EC2_METADATA_DISABLED": "true"
    }  # fmt: skip
    for name, value in credentials.items():
        monkeypatch.setenv(name, value)
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    port = server.getsockname()[1]
    yield f"s3a://bucket/checkpoint?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(30)
    for connection in held:
        connection.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.timeout(400)
@pytest.mark.rule("R30")
def test_p6_a_store_that_hangs_holds_up_neither_a_handover_nor_a_stop(
    hanging_store: str,
    start_query: Callable[..., Query],
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """Guards against: 1. a second member joins, and the revoke looks at the commit log, 2. the store does not answer
    for 100 s, 3. nothing is handed over, and the first query fails with a cause that names the coordinator."""
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(40)), 4)
    told = Told(tmp_path, "first")
    given = options | told.options | {"checkpointLocation": hanging_store, "drainTimeoutMs": str(int(DRAIN_S * 1000))}
    first = start_query("first", given, trigger=ONCE)
    first.wait_for_records(client.records(topic))
    second = application.start_query("second", options)
    revoking = told.wait_for("revoking")
    revoked = told.wait_for("revoked")
    waited_s = revoked["at"] - revoking["at"]
    print(f"handed over after {waited_s:.1f} s of {DRAIN_S:.0f} s")
    assert DRAIN_S - 0.5 <= waited_s < DRAIN_S + 30.0, told.tail()
    assert revoked["details"]["outcome"] == "DEADLINE"
    # It reads its share, and so what the first one could not commit of it.
    wait_for("the second query's share", lambda: second.check() and len(second.records()) >= 10, 60, told.tail)
    assert first.failure() == ""
    reader = told.reader_pid()
    first.stop()
    # Where the output of a stopped query's reader goes to, nobody reads it: only what it does counts.
    told.wait_for("left", timeout_s=30)
    wait_for("the reader's end", lambda: not is_running(reader), 20, told.tail)
    log = (first.out / "log").read_text()
    assert "checkpoint not answering for " in log
    assert "option checkpointLocation=s3a://bucket/checkpoint?endpoint_override=127.0.0.1" in log
    assert "coordinator is reachable" not in log
    second.wait_for_records(client.records(topic))
