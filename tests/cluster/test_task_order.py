"""A task that Spark runs again gives the same rows in the same order (promises P1, P2 and P3 on a cluster).

Guards against:
1. A task with several ranges is read; its rows go through a shuffle that deals them out by their position.
2. Two of four reducers finish. Spark keeps their results.
3. The executor with the map output dies. Spark takes a scan for deterministic, so it runs the map task again and gives
   the new output to the reducers that are left only.
4. The second run's rows come in another order: some records are in no reducer now, others in two of them, and the
   batch is recorded as complete.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.harness import Independent, Record, wait_for
from tests.realkafka.proxy import Action, Api, On, Rule
from tests.realkafka.realkafka import RealKafka
from tests.sparkcluster.sparkcluster import Executor, SparkCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]

_SCRIPT = Path(__file__).with_name("order_process.py")
_PARTITIONS, _RECORDS = 8, 9_000


class OrderRun:
    """An application that reads one batch of a topic on one executor with one core."""

    def __init__(self, cluster: SparkCluster, options: dict[str, str], out: Path) -> None:
        self.cluster = cluster
        self.out = out
        self.checkpoint = out / "checkpoint"
        self._settings = {
            "conf": cluster.conf(cores=1),
            "options": options | {"checkpointLocation": str(self.checkpoint)},
            "checkpoint": str(self.checkpoint),
            "out": str(out),
        }
        self._process: subprocess.Popen[bytes] | None = None
        out.mkdir()

    def start(self) -> None:
        """Start the driver."""
        with (self.out / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), json.dumps(self._settings)],
                stdout=log, stderr=log, start_new_session=True, env=dict(os.environ),
            )  # fmt: skip

    def log(self) -> str:
        """Return the end of the driver's output and of the executors'."""
        return f"{(self.out / 'log').read_text(errors='replace')[-4000:]}\n{self.cluster.executor_logs(15)}"

    def maps(self) -> list[dict[str, Any]]:
        """Return what each run of the map task gave."""
        return [json.loads(path.read_text()) for path in sorted(self.out.glob("map-*.json"))]

    def executor_of_the_map(self) -> Executor:
        """Return the executor that holds the map output."""
        daemon = self.maps()[-1]["daemon"]
        return next(one for one in self.cluster.executors("order") if daemon in self.cluster.daemons(one))

    def wait_holding(self) -> None:
        """Wait until two reducers have finished and the third one waits."""

        def holding() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            return (self.out / "holding").exists()

        wait_for("two reducers to finish", holding, 240, self.log)

    def finish(self) -> Counter[Record]:
        """Let the reducers go on; return how often each record is in the completed batch."""
        (self.out / "killed").touch()
        assert self._process is not None
        assert self._process.wait(300) == 0, self.log()
        assert (self.checkpoint / "commits" / "0").exists(), "the batch is not complete"
        assert not (self.checkpoint / "commits" / "1").exists(), "it was more than one batch"
        result = json.loads((self.out / "result.json").read_text())
        return Counter((t, p, o) for rows in result.values() for t, p, o in rows)

    def close(self) -> None:
        """End what is left."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)


@pytest.fixture(scope="module")
def kafka() -> Iterator[RealKafka]:
    """Return a broker behind a proxy."""
    with RealKafka(proxied=True) as broker:
        yield broker


@pytest.fixture
def records(client: Independent, topic: str) -> set[Record]:
    """Produce the records before the application starts; return them as the producer knows them."""
    client.create_topic(topic, _PARTITIONS)
    # Partitions of different lengths: none of them ends where another one does.
    weights = [partition for partition in range(_PARTITIONS) for _ in range(partition + 1)]
    partitions = [weights[number % len(weights)] for number in range(_RECORDS)]
    client.produce_to(topic, ((f"{number:06d} {uuid.uuid4().hex * 3}", p) for number, p in enumerate(partitions)))
    return {(topic, p, o) for p, count in Counter(partitions).items() for o in range(count)}


@pytest.fixture
def order_run(
    records: set[Record], spark_cluster: SparkCluster, kafka: RealKafka, options: dict[str, str], tmp_path: Path
) -> Iterator[OrderRun]:
    """Return the application, not started yet, whose records come in many answers of the broker."""
    many_answers = {
        "kafka.bootstrap.servers": kafka.proxied_servers,
        "kafka.max.partition.fetch.bytes": "4096",
        "kafka.fetch.max.bytes": "16384",
        "fastLaneMaxOffsets": "0",
    }
    run = OrderRun(spark_cluster, options | many_answers, tmp_path / "order")
    yield run
    kafka.proxy.clear()
    run.close()


@pytest.mark.rule("R56")
def test_a_task_that_runs_again_gives_the_same_rows_in_the_same_order(
    records: set[Record], order_run: OrderRun, kafka: RealKafka, order_run_number: int
) -> None:
    """One run of the task gets its records answer by answer, the other one gets them all at once."""
    slow_first = order_run_number % 2 == 0
    # Longer than the reader waits for one answer, so that it sees each of them by itself.
    slow = Rule(Api.FETCH, on=On.RESPONSE, action=Action.DELAY, delay_s=0.15, times=None)
    if slow_first:
        kafka.proxy.add(slow)
    order_run.start()
    order_run.wait_holding()
    first = order_run.maps()
    assert len(first) == 1, "all ranges are in one task"
    assert {p for _, p, _ in first[0]["rows"]} == set(range(_PARTITIONS))
    if slow_first:
        kafka.proxy.remove(slow)
    else:
        kafka.proxy.add(slow)
    order_run.cluster.kill_executor(order_run.executor_of_the_map())
    found = order_run.finish()

    maps = [one["rows"] for one in order_run.maps()]
    assert len(maps) >= 2, "the map task did not run again: this was no test"
    assert slow.fired >= 5, "the records came in a few answers: this was no test"
    lost, doubled = records - found.keys(), sum(found.values()) - len(found)
    moved = sum(a != b for a, b in zip(*maps[:2], strict=True))
    print(f"\nrun {order_run_number}: lost={len(lost)} doubled={doubled} moved={moved} answers={slow.fired}")
    assert (len(lost), doubled) == (0, 0)
    assert found.keys() == records
    assert all(rows == maps[0] for rows in maps), f"{moved} rows at another place"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat the test as often as --order-runs asks for."""
    if "order_run_number" in metafunc.fixturenames:
        metafunc.parametrize("order_run_number", range(metafunc.config.getoption("--order-runs")))
