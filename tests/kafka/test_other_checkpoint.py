"""A source that is given the checkpointLocation of another query: one warning, with what both sides say."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from .harness import Independent, Query, wait_for

pytestmark = pytest.mark.kafka

WARNING = "the checkpoint at checkpointLocation belongs to another query"


@pytest.mark.timeout(400)
def test_p6_another_querys_checkpoint_is_reported_once(
    start_query: Callable[..., Query], client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """1. a query completes batches, 2. another one is given its location, by mistake: the warning comes before its
    first batch, and no more of them later. The first one, which is started again on its own checkpoint, gets none.
    """
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(20)), 2)
    first = start_query("first", options)
    first.wait_for_records(client.records(topic))
    first.stop()
    again = start_query("first", options)
    again.wait_started()
    other = options | {"kafka.group.id": f"{group}-other", "checkpointLocation": str(first.checkpoint)}
    second = start_query("second", other)
    second.wait_for_records(client.records(topic))
    client.produce(topic, (f"b{n}" for n in range(20)), 2)
    second.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, again.log)
    second.stop()
    again.stop()

    found = [line for line in (second.out / "log").read_text().splitlines() if WARNING in line]
    assert len(found) == 1, found
    assert re.search(rf"Spark starts from lineage=\S+ ends=\[\]; checkpointLocation={first.checkpoint} ", found[0])
    assert re.search(rf"newest_batch=\d+ completed_batch=\d+ of lineage=\S+ ends=\[{topic}-0:10", found[0])
    for query in (first, again):
        assert WARNING not in (query.out / "log").read_text()
