"""What `doctor` asks the brokers, on a scripted client."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.cli.doctor.broker_facts import ClusterFacts
from tests.unit.fakes import make_options


def test_no_request_for_the_newest_records_has_so_many_partitions_that_it_ends_while_it_is_being_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts, sizes = ClusterFacts(make_options()), []

    def list_offsets(request: dict[ClientPartition, Any], **_: Any) -> dict[ClientPartition, Future[Any]]:
        sizes.append(len(request))
        answers: dict[ClientPartition, Future[Any]] = {partition: Future() for partition in request}
        for partition, answer in answers.items():
            answer.set_result(SimpleNamespace(timestamp=partition.partition))
        return answers

    monkeypatch.setattr(facts._requests, "client", lambda: SimpleNamespace(list_offsets=list_offsets))
    assert facts.newest_record_ms("orders", 1200) == 1199
    assert sizes == [500, 500, 200]
