"""The promises on a Spark cluster: two applications of one group, whose executors, Python and machines die."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.kafka.harness import Independent, Query, wait_for
from tests.sparkcluster.sparkcluster import Executor, SparkCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]

_PARTITIONS = 8


@contextmanager
def producing(client: Independent, topic: str) -> Iterator[None]:
    """Produce some hundred records a second for the length of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.5):
            client.produce(topic, (f"v{number}" for number in range(100)), _PARTITIONS)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(120)


def progress(cluster: SparkCluster, queries: list[Query], what: str) -> None:
    """Wait until each of the queries has completed two more batches with records."""
    wanted = {query.name: len(query.completed_batches()) + 2 for query in queries}
    wait_for(
        f"batches after {what}",
        lambda: all(len(query.completed_batches()) >= wanted[query.name] for query in queries),
        120,
        lambda: "".join(query.log() for query in queries) + cluster.executor_logs(15),
    )


def with_python(cluster: SparkCluster, name: str) -> Executor:
    """Return an executor of an application that runs Python."""
    found = wait_for(
        f"an executor of {name} with Python",
        lambda: [one for one in cluster.executors(name) if cluster.python_workers(one)],
        120,
        lambda: f"{cluster.executors()}\n{cluster.executor_logs(15)}",
    )
    return found[0]  # type: ignore[no-any-return]


def test_p1_p2_executors_python_and_a_worker_die(
    spark_cluster: SparkCluster, client: Independent, options: dict[str, str], topic: str, group: str,
    start_query: Callable[..., Query],
) -> None:  # fmt: skip
    """No record is lost, and none is in two completed batches of one checkpoint."""
    client.create_topic(topic, _PARTITIONS)
    client.produce(topic, (f"v{number}" for number in range(1_000)), _PARTITIONS)
    # One protocol is enough, since no member dies here. `scripts/faults --cluster` has the others.
    client.set_group_session_timeout(group, 10_000)
    options = {name: value for name, value in options.items() if "session" not in name and "heartbeat" not in name}
    read_by_executors = options | {"fastLaneMaxOffsets": "0", "kafka.group.protocol": "consumer"}
    each_second = {"processingTime": "1 second"}
    # The commit log says which batches are complete: it has to keep all of them.
    conf = spark_cluster.conf(cores=2) | {"spark.sql.streaming.minBatchesToRetain": "10000"}
    queries = [start_query(name, read_by_executors, conf=conf, trigger=each_second) for name in ("a", "b")]
    wait_for(
        "both applications to share the topic",
        lambda: sorted(map(len, client.members(group))) == [4, 4],
        180,
        lambda: "".join(query.log() for query in queries),
    )
    with producing(client, topic):
        progress(spark_cluster, queries, "the start")

        executor = with_python(spark_cluster, "a")
        spark_cluster.kill_executor(executor)
        progress(spark_cluster, queries, "the end of an executor")
        assert executor not in spark_cluster.executors()

        executor = with_python(spark_cluster, "b")
        assert spark_cluster.kill_daemon(executor)
        progress(spark_cluster, queries, "the end of a Python daemon")

        spark_cluster.kill_worker("worker-1")
        progress(spark_cluster, queries, "the end of a worker")
        spark_cluster.start_worker("worker-1")
        wait_for("executors on it", lambda: any(e.worker == "worker-1" for e in spark_cluster.executors()), 120)
        progress(spark_cluster, queries, "its return")

    everything = client.records(topic)
    wait_for(
        "all records to be in completed batches",
        lambda: everything <= set(itertools.chain(*(query.completed_records() for query in queries))),
        120,
        lambda: "".join(query.log() for query in queries),
    )
    for query in queries:
        query.stop()
    counted = {query.name: query.completed_records() for query in queries}
    lost = everything - set(itertools.chain(*counted.values()))
    doubled = {name: [record for record, times in found.items() if times > 1] for name, found in counted.items()}
    print(f"\nrecords={len(everything)} lost={len(lost)} doubled={doubled}")
    assert lost == set()
    assert doubled == {"a": [], "b": []}
    wait_for("no lag", lambda: client.lag(group, topic) == 0, 60, lambda: str(client.committed(group)))
