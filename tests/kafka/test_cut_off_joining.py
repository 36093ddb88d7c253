"""A member that is cut off from the group's coordinator while it joins again, and keeps its partitions meanwhile.

F1 its group's offsets never go back (P5). F2 it reads no longer than a session (P6). F3 no record is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.realkafka.proxy import Action, Api, KafkaProxy, Rule

from .application import AppQuery
from .harness import wait_for
from .holding import OffsetWatch
from .test_coordinator import PARTITIONS, WAIT_S, Group, Producing, kafka, make_group, proxy

__all__ = ["kafka", "make_group", "proxy"]

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.rule("R72")
def test_a_member_that_is_cut_off_while_it_joins(
    static: bool, make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    """1. The second query joins; the first one's JoinGroup goes nowhere. 2. Its session ends, the second one gets all
    and reads on; the first one goes on with what it has. 3. The first one reaches the coordinator again.
    """
    group, client = make_group("cooperative"), "first-member"
    if static:
        group.options = {**group.options, "kafka.group.instance.id": "one"}
    first = group.start_first()
    with OffsetWatch(group.client, group.name) as watch, Producing(group.client.bootstrap_servers, group.topic):
        cut = proxy.add(Rule(Api.JOIN_GROUP, client=client, action=Action.BLACK_HOLE, times=None))
        if static:
            group.options = {**group.options, "kafka.group.instance.id": "two"}
        second = group.start("second")
        cut.wait_fired(WAIT_S)
        group.wait_shared([PARTITIONS])
        wait_for("records in the second", second.completed_records, WAIT_S, group.evidence)
        wait_for("the end of the first one's plans", lambda: not _reads(first), WAIT_S, group.evidence)
        proxy.remove(cut)
        proxy.cut_all(client)
        group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
        wait_for("records in the first", lambda: _reads(first), WAIT_S, group.evidence)
    group.wait_done()
    assert watch.went_back == []
    assert group.events["first"].lines("lost")


def _reads(query: AppQuery) -> bool:
    """Return whether a batch comes. A query that reads has one in this time, also on a busy machine."""
    before, until_s = len(query.records()), time.monotonic() + 12.0
    while len(query.records()) == before and time.monotonic() < until_s:
        time.sleep(0.1)
    return len(query.records()) > before
