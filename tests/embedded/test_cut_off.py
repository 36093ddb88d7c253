"""A member that reaches all brokers but its coordinator (P6)."""

from __future__ import annotations

import time

import pytest

from spark_groupsource.driver.session import Session
from spark_groupsource.embedded import EmbeddedKafka
from spark_groupsource.model.offsets import SourceOffset, new_lineage
from spark_groupsource.options.parse import parse_options
from spark_groupsource.spark.assembly import make_session

_WAIT_S = 120.0
_PAUSE_S = 0.5
# So many looks in a row that find nothing to plan, though there are records.
_LOOKS = 8


class Query:
    """Spark's calls for one query, batch after batch. Each look finds a new record."""

    def __init__(self, session: Session, kafka: EmbeddedKafka) -> None:
        self._session = session
        self._kafka = kafka
        self._start = SourceOffset(new_lineage())

    def look(self) -> bool:
        """Whether a batch was planned; it is complete then."""
        self._kafka.produce("orders", [b"x"])
        end = self._session.latest_offset(self._start)
        planned = end != self._start
        if planned:
            self._session.tasks(self._start, end)
            self._start = end
        return planned

    def wait_for_a_batch(self) -> None:
        """Look until one is planned."""
        deadline = time.monotonic() + _WAIT_S
        while not self.look():
            assert time.monotonic() < deadline, f"no batch for {_WAIT_S:.0f} s"
            time.sleep(_PAUSE_S)


@pytest.mark.rule("R71")
def test_p6_a_member_of_kip_848_plans_no_longer_than_a_session_without_its_coordinator() -> None:
    """The client goes on as a member, without an end; the group may have given its partitions to another one."""
    with EmbeddedKafka(brokers=2, topics={"orders": 1}) as kafka:
        kafka.set_leader("orders", 0, 2)
        kafka.set_coordinator("shop", 1)
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": "shop",
            "kafka.group.protocol": "consumer",
            "subscribe": "orders",
            "startingOffsets": "earliest",
        }
        session, _ = make_session(parse_options(options))
        try:
            query = Query(session, kafka)
            query.wait_for_a_batch()
            kafka.broker_down(1)
            down_s = time.monotonic()
            batches, idle = 0, 0
            while idle < _LOOKS:
                planned = query.look()
                batches, idle = batches + planned, 0 if planned else idle + 1
                assert time.monotonic() - down_s < _WAIT_S, "it plans on and on"
                time.sleep(_PAUSE_S)
            # One at least: with a broker away a look takes some seconds, and the session is assumed to have six.
            assert batches, "batches go on while the coordinator is away (M09)"
            kafka.broker_up(1)
            query.wait_for_a_batch()
        finally:
            session.stop()
