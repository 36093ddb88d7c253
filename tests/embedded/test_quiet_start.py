"""What a start on the embedded broker logs: nothing that the user cannot act on."""

from __future__ import annotations

import logging
import time

import pytest

from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.embedded import EmbeddedKafka
from spark_groupsource.options.parse import parse_options


def test_a_broker_that_does_not_report_a_groups_configuration_is_no_line(
    embedded_kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    options = {
        "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers,
        "kafka.group.id": "orders-to-lake",
        "kafka.group.protocol": "consumer",
        "subscribe": "orders",
    }
    cluster = LibrdkafkaCluster(parse_options(options, None), SystemClock(), time.sleep)
    try:
        with caplog.at_level(logging.INFO, "spark_groupsource"):
            assert cluster.group_session_s("orders-to-lake") is None
    finally:
        cluster.close()
    assert caplog.messages == []
