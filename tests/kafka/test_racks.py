"""Executors read from the replicas in their own rack, which each reads from its environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import checkout
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.wire import Api

from .harness import Independent, Query
from .spark_home import spark_home

__all__ = ["spark_home"]  # a fixture of another module

pytestmark = [pytest.mark.kafka]

SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
RECORDS, RECORD_BYTES = 4_000, 1_000
# An executor's working directory is named after its number, 0 or 1: their racks are those of the followers.
PYTHON = f"""#!/bin/sh
case "$(basename "$PWD")" in
    0) export KAFKA_RACK=rack-2;;
    1) export KAFKA_RACK=rack-3;;
    *) export KAFKA_RACK=rack-1;;
esac
exec {sys.executable} "$@"
"""


def test_each_executor_reads_from_the_replica_in_its_own_rack(
    options: dict[str, str], topic: str, tmp_path: Path, spark_home: Path, start_query: Callable[..., Query]
) -> None:
    """Three brokers in a rack each. The first one leads all partitions, and sends next to nothing."""
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    with RealKafka(brokers=3, proxied=True, properties=SELECTOR) as cluster:
        client = Independent(cluster.bootstrap_servers)
        client.create_replicated(topic, [1, 2, 3], {}, partitions=4)
        client.produce(topic, (os.urandom(RECORD_BYTES // 2).hex() for _ in range(RECORDS)), 4)
        chosen = options | {
            "kafka.bootstrap.servers": cluster.proxied_servers, "kafka.client.rack.env": "KAFKA_RACK",
            "fastLaneMaxOffsets": "0", "minPartitions": "4",
        }  # fmt: skip
        conf = {
            "spark.master": "local-cluster[2,1,600]", "spark.executor.memory": "600m",
            # Both executors are there before the first batch.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
        }  # fmt: skip
        environment = {"SPARK_HOME": str(spark_home), "PYTHONPATH": str(checkout.ROOT)}
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        query = start_query("query", chosen, conf=conf, environment=environment)
        query.wait_for_records(client.records(topic))
        received = {number: cluster.proxy.received(Api.FETCH, number, "executor") for number in (1, 2, 3)}
        query.stop()
    total = RECORDS * RECORD_BYTES
    assert received[2] + received[3] >= total
    assert min(received[2], received[3]) > total / 10
    assert received[1] < total / 100
