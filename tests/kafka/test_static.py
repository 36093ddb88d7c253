"""Static membership (M23): a restart moves nothing, and an instance id belongs to one live query."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .harness import Independent, Query, wait_for
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

StartQuery = Callable[..., Query]


def whole_log(query: Query) -> str:
    """Return all that the process has said: lines drop out of the end of it, which cannot be counted."""
    return (query.out / "log").read_text(errors="replace")


@pytest.mark.parametrize("protocol", ["cooperative", "kip848", "weighted"])
def test_m23_a_restart_of_a_static_member_moves_nothing(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    """Stopped and started again within the session timeout: the other member sees no rebalance."""
    chosen = with_protocol(options | {"kafka.session.timeout.ms": "90000"}, protocol)
    if protocol == "kip848":
        client.set_group_session_timeout(group, 60_000)  # the most that brokers allow
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(100)), 4)
    first = start_query("first", chosen | {"kafka.group.instance.id": "one"})
    first.wait_for_records(client.records(topic))
    second = start_query("second", chosen | {"kafka.group.instance.id": "two"})
    wait_for(
        "two partitions each",
        lambda: sorted(map(len, client.members(group))) == [2, 2],
        90,
        lambda: f"{first.log()}\n{second.log()}",
    )
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, first.log)
    before = sorted(map(sorted, client.members(group)))
    # The coordinator shows an assignment before the member has taken it.
    wait_for("the second member's own word", lambda: "owned=2" in whole_log(second), 30, second.log)
    seen = whole_log(second).count("rebalance:")

    first.stop()
    assert sorted(map(sorted, client.members(group))) == before, "a static member that stops keeps its place"
    client.produce(topic, (f"b{n}" for n in range(100)), 4)
    again = start_query("first", chosen | {"kafka.group.instance.id": "one"})
    everything = client.records(topic)
    wait_for(
        "all records",
        lambda: everything <= first.records().keys() | again.records().keys() | second.records().keys(),
        90,
        again.log,
    )
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, again.log)
    assert sorted(map(sorted, client.members(group))) == before
    assert whole_log(second).count("rebalance:") == seen, second.log()


def test_two_queries_with_one_instance_id_get_an_error(
    client: Independent, options: dict[str, str], topic: str, start_query: StartQuery
) -> None:
    """Under the classic protocol the broker fences the older of the two."""
    client.create_topic(topic, 1)
    client.produce(topic, ["a"], 1)
    static = options | {"kafka.group.instance.id": "one"}
    older = start_query("older", static)
    older.wait_for_records(client.records(topic))
    newer = start_query("newer", static)
    newer.wait_started()
    assert older.wait_ended(90) == 1
    assert "[GROUPKAFKA.INSTANCE_ID_IN_USE]" in older.failure()
    assert "'kafka.group.instance.id'" in older.failure()
    newer.stop()
