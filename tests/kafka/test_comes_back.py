"""A partition that is lost with its batch in flight, and comes back when the batch is complete, on a real broker.

F1 the handover before the next plan commits the batch: nothing is repeated (P6). F2 no offset goes back (P5). F3 no
record is lost.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.realkafka.groupwire import parse_heartbeat
from tests.realkafka.proxy import Action, Api, KafkaProxy, Rule

from .harness import wait_for
from .holding import Gate, Held, OffsetWatch, released
from .test_coordinator import PARTITIONS, WAIT_S, Group, kafka, make_group, proxy
from .test_fenced import stopped

__all__ = ["kafka", "make_group", "proxy"]

pytestmark = pytest.mark.kafka


def joining(protocol: str, client: str) -> Rule:
    """Return a rule that holds a client's requests to join."""
    if protocol == "kip848":
        return Rule(
            Api.CONSUMER_GROUP_HEARTBEAT,
            client=client,
            action=Action.HOLD,
            times=None,
            where=lambda request: parse_heartbeat(request).member_epoch == 0,
        )
    return Rule(Api.JOIN_GROUP, client=client, action=Action.HOLD, times=None)


@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848", "weighted"])
@pytest.mark.rule("R77")
def test_p6_a_partition_that_comes_back_after_its_batch_is_handed_over_with_the_batch(
    protocol: str, make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    """1. The first query's batch is in the sink; its reader is stopped for longer than a session. 2. It cannot join
    again before the batch is complete and the next trigger has reported that. 3. Its partitions come back. 4. A second
    query joins before the first one can plan, and gets half of them.
    """
    group, gate = make_group(protocol), Gate()
    first, seen = group.start_first(gate), group.events["first"]
    wait_for("lag 0", lambda: group.client.lag(group.name, group.topic) == 0, WAIT_S, group.evidence)
    before, assigned = group.client.committed(group.name), len(seen.lines("assigned"))
    gate.armed = True
    plan = Held("first", "before-start-positions")
    with released(gate, plan), OffsetWatch(group.client, group.name) as watch:
        group.client.produce(group.topic, (str(n) for n in range(40)), PARTITIONS)
        gate.wait_reached(group.evidence)
        join = proxy.add(joining(protocol, "first-member"))
        with stopped(seen.reader_pid()):
            wait_for("the session's end", lambda: not group.client.member_count(group.name), WAIT_S, group.evidence)
        seen.wait_for("lost")
        completed = len(seen.lines("completed"))
        gate.release()
        seen.wait_for("completed", completed + 1)
        assert group.client.committed(group.name) == before
        proxy.remove(join)
        seen.wait_for("assigned", assigned + 1)
        plan.wait_reached(group.evidence)
        group.start("second")
        group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
        group.events["second"].wait_for("assigned")
        plan.release()
        group.client.produce(group.topic, (str(n) for n in range(40)), PARTITIONS)
        repeated = group.wait_done()
    assert first.completed_records()
    assert repeated == set()
    assert watch.went_back == []
