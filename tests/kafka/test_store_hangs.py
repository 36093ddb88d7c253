"""A store of the checkpoint that never answers, or late: the query goes on, and hands over in time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Query, assert_once, wait_for
from .holding import Events
from .slow_store import slow_store
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

DRAIN_S = 12.0
ONCE = {"processingTime": "7 days"}  # Only the first trigger comes.


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the processes that a test starts credentials for a store."""
    given = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def hanging_store(credentials: None) -> Iterator[str]:
    """Return a location in an S3 store that never answers."""
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
    seen = Events(tmp_path, "first")
    given = options | seen.options | {"checkpointLocation": hanging_store, "drainTimeoutMs": str(int(DRAIN_S * 1000))}
    first = start_query("first", given, trigger=ONCE)
    first.wait_for_records(client.records(topic))
    second = application.start_query("second", options)
    revoking = seen.wait_for("revoking")
    revoked = seen.wait_for("revoked")
    waited_s = revoked["at"] - revoking["at"]
    print(f"handed over after {waited_s:.1f} s of {DRAIN_S:.0f} s")
    assert DRAIN_S - 0.5 <= waited_s < DRAIN_S + 30.0, seen.tail()
    assert revoked["details"]["outcome"] == "DEADLINE"
    # It reads its share, and so what the first one could not commit of it.
    wait_for("the second query's share", lambda: second.check() and len(second.records()) >= 10, 60, seen.tail)
    assert first.failure() == ""
    reader = seen.reader_pid()
    first.stop()
    # Where the output of a stopped query's reader goes to, nobody reads it: only what it does counts.
    seen.wait_for("left", timeout_s=30)
    wait_for("the reader's end", lambda: not is_running(reader), 20, seen.tail)
    log = (first.out / "log").read_text()
    assert "checkpoint not answering for " in log
    assert "option checkpointLocation=s3a://bucket/checkpoint?endpoint_override=127.0.0.1" in log
    assert "coordinator is reachable" not in log
    second.wait_for_records(client.records(topic))


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.rule("R103")
@pytest.mark.usefixtures("credentials")
def test_p6_a_batch_that_is_complete_before_the_drain_deadline_is_not_repeated_for_a_slow_store(
    protocol: str,
    start_query: Callable[..., Query],
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """1. A second member joins, and the revoke looks at the commit log. The store answers late. 2. The batch is
    complete. 3. drainTimeoutMs passes, and then the answer comes: the batch was not complete when it was asked.
    """
    drain_s = 6.0
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(40)), 4)
    if protocol == "kip848":
        client.set_group_session_timeout(group, 20_000)
    chosen, seen, gate = with_protocol(options, protocol), Events(tmp_path, "first"), tmp_path / "gate"
    checkpoint = tmp_path / "first" / "checkpoint"
    checkpoint.mkdir(parents=True)
    with slow_store(checkpoint) as store:
        given = chosen | seen.options | {
            "checkpointLocation": store.location, "drainTimeoutMs": str(round(drain_s * 1000))
        }  # fmt: skip
        first = start_query("first", given, trigger=ONCE, gate=str(gate), checkpoint=str(checkpoint))
        wait_for("a held batch", gate.with_name("gate.reached").exists, 120, first.log)
        second = application.start_query("second", chosen)
        revoking = seen.wait_for("revoking")
        # pyarrow asks again after 3 s without an answer.
        time.sleep(max(0.0, revoking["at"] + drain_s - 1.8 - time.time()))
        store.hold("commits/0")
        store.wait_held()
        gate.touch()
        wait_for("the batch's end", (checkpoint / "commits" / "0").exists, 30, first.log)
        assert time.time() < revoking["at"] + drain_s, "the machine is too slow to show anything"
        time.sleep(max(0.0, revoking["at"] + drain_s + 0.5 - time.time()))
        store.release()
        revoked = seen.wait_for("revoked")
        print(f"{protocol}: handed over after {revoked['at'] - revoking['at']:.3f} s, {revoked['details']}")
        client.produce(topic, (f"b{n}" for n in range(40)), 4)
        wait_for("the second query's share", lambda: second.check() and len(second.records()) >= 20, 60, seen.tail)
        first.stop()
    everything = client.records(topic)
    second.wait_for_records(everything - set(first.completed_records()))
    assert revoked["details"]["outcome"] == "COMPLETE"
    assert drain_s <= revoked["at"] - revoking["at"] < drain_s + 4.0
    assert_once([first, second], everything)
