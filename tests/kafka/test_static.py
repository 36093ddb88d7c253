"""Static membership (M23): a restart moves nothing, and an instance id belongs to one live query."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, wait_for
from .holding import Events
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

# What a member tells of a rebalance.
MOVES = {"assigned", "standby", "revoking", "revoked", "lost"}


@pytest.mark.parametrize("protocol", ["cooperative", "kip848", "weighted"])
def test_m23_a_restart_of_a_static_member_moves_nothing(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path,
    application: Application,
) -> None:  # fmt: skip
    """Stopped and started again within the session timeout: the other member sees no rebalance."""
    chosen = with_protocol(options | {"kafka.session.timeout.ms": "90000"}, protocol)
    if protocol == "kip848":
        client.set_group_session_timeout(group, 60_000)  # the most that brokers allow
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(100)), 4)
    first = application.start_query("first", chosen | {"kafka.group.instance.id": "one"})
    first.wait_for_records(client.records(topic))
    shown = Events(tmp_path, "second")
    second = application.start_query("second", chosen | shown.options | {"kafka.group.instance.id": "two"})
    wait_for(
        "two partitions each",
        lambda: sorted(map(len, client.members(group))) == [2, 2],
        90,
        lambda: f"{first}\n{second}\n{shown.tail()}",
    )
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, shown.tail)
    before = sorted(map(sorted, client.members(group)))
    # The coordinator shows an assignment before the member has taken it.
    wait_for("the second member's own word", lambda: shown.metrics()["assigned_partitions"] == 2, 30, shown.tail)
    seen = moves(shown)

    first.leave()
    # Whatever the coordinator decides now, the other member hears of it with a heartbeat, every 2 s at most.
    time.sleep(6)
    assert sorted(map(sorted, client.members(group))) == before, "a static member that stops keeps its place"
    client.produce(topic, (f"b{n}" for n in range(100)), 4)
    again = application.start_query("first", chosen | {"kafka.group.instance.id": "one"})
    everything = client.records(topic)
    wait_for(
        "all records",
        lambda: everything <= again.records().keys() | second.records().keys(),
        90,
        lambda: f"{again}\n{second}\n{shown.tail()}",
    )
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, shown.tail)
    assert sorted(map(sorted, client.members(group))) == before
    assert moves(shown) == seen, shown.tail()


def moves(shown: Events) -> list[str]:
    """Return what a member has told of rebalances."""
    return [line["event"] for line in shown.lines() if line["event"] in MOVES]


def test_two_queries_with_one_instance_id_get_an_error(
    client: Independent, options: dict[str, str], topic: str, application: Application
) -> None:
    """Under the classic protocol the broker fences the older of the two."""
    client.create_topic(topic, 1)
    client.produce(topic, ["a"], 1)
    static = options | {"kafka.group.instance.id": "one"}
    older = application.start_query("older", static)
    older.wait_for_records(client.records(topic))
    application.start_query("newer", static)
    failure = older.failure()
    assert "[GROUPKAFKA.INSTANCE_ID_IN_USE]" in failure
    assert "'kafka.group.instance.id'" in failure
