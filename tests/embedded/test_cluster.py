"""What the driver asks the cluster, on the embedded broker."""

from __future__ import annotations

import time

from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.embedded import EmbeddedKafka
from spark_groupsource.options.parse import parse_options


def test_brokers_that_are_slow_to_connect_are_waited_for() -> None:
    """The first answer takes two round trips, which is longer than one look at the topics: the client goes on."""
    with EmbeddedKafka(topics={"orders": 2}) as broker:
        broker.slow_down(1_600)
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.group.id": "shop"}
        options = parse_options({**given, "subscribePattern": "ord.*"})
        cluster = LibrdkafkaCluster(options, SystemClock(), time.sleep)
        try:
            assert cluster.matching_topics(options.subscription) == ("orders",)
        finally:
            cluster.close()
