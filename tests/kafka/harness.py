"""What the tests on a real broker share: query processes, an independent client, waiting with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from tests import checkout
from tests.realkafka.evict import remove_member
from tests.realkafka.jars import RealKafkaError, class_path, find_java

Record = tuple[str, int, int]
T = TypeVar("T")
NO_KAFKA = "NO REAL KAFKA, the promises are not shown"
_PATIENCE = 2.0  # tests run two at a time
_PASSING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


def run_script(command: Sequence[str], output: Path, timeout_s: float) -> tuple[int, str]:
    """Run a script of this project to its end; return its exit code and what it said.

    One that takes too long is terminated: it ends its own brokers and applications.
    """
    with output.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=checkout.ROOT)
        try:
            code = process.wait(timeout_s)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    return code, output.read_text(errors="replace")


@contextmanager
def skipped(text: str, without: type[Exception] = RealKafkaError) -> Iterator[None]:
    """Skip a test, with this text, for what a machine may lack; in CI that is a failure."""
    import pytest  # here, since processes below the tests import this module, too

    try:
        yield
    except without as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"{text}: {error}")


def need_kafka() -> None:
    """Skip a test that starts brokers of its own where none can be had."""
    with skipped(NO_KAFKA):
        class_path(find_java())


def check_commands(
    script: str, run_dir: Path, setting: str, *start: str, answers: Callable[[str], bool] = bool
) -> None:
    """Start, show, refuse to start again, and stop the cluster of a run directory by its script.

    `start` prints `setting` with the cluster's address, at which it answers.
    """

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(checkout.ROOT / "scripts" / script), *arguments, "--run-dir", str(run_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    assert (call("status").returncode, call("stop").returncode) == (3, 0)
    started = call("start", *start)
    try:
        assert started.returncode == 0, started.stderr
        assert started.stdout.startswith(setting)
        assert answers(started.stdout.strip().partition("=")[2])
        status = call("status")
        assert status.returncode == 0
        assert started.stdout in status.stdout
        again = call("start")
        assert again.returncode == 1
        assert "is running already" in again.stderr
    finally:
        stopped = call("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "deletes" in started.stderr
    assert "Deleted" in stopped.stdout
    assert not run_dir.exists()
    assert call("status").returncode == 3


def assert_once(queries: Iterable[Any], everything: set[Record]) -> None:
    """Assert that the queries completed each record once: none lost, none doubled."""
    total = sum((query.completed_records() for query in queries), start=Counter[Record]())
    assert set(total) == everything
    assert {record: times for record, times in total.items() if times > 1} == {}


def wait_for(
    what: str, condition: Callable[[], Any], timeout_s: float = 90.0, evidence: Callable[[], str] = str
) -> Any:
    """Return the condition's first true value; fail saying what was waited for, and the evidence.

    The time is what a test needs on a machine of its own, and then some.
    """
    timeout_s *= _PATIENCE
    since = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited_s = time.monotonic() - since
        if waited_s > timeout_s:
            raise AssertionError(f"waited {timeout_s:.0f} s for: {what}\n{evidence()}")
        # The machine is busy, and most conditions ask a broker or read files.
        time.sleep(min(0.15, 0.05 + waited_s / 20))


# The options of a member on each client.
CLIENTS: dict[str, dict[str, str]] = {"librdkafka": {}, "kafka-python": {"assignors": "weighted"}}


def _asked_again(ask: Callable[[], T]) -> T:
    """Return the coordinator's answer. Asks again, for 30 s, while the coordinator is being made, or moves."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Independent:
    """A client that shares no code with the source: it makes topics, produces, and reads the group's offsets."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        # A client serves one thread at a time.
        self._lock = threading.Lock()
        self._readers: dict[str, Consumer] = {}

    def create_topic(self, topic: str, partitions: int, **config: str) -> None:
        """Create a topic and wait until it is there.

        Brokers with ZooKeeper list a deleted topic no more some time before they let it be created again. A request
        that was sent twice, since its first answer was late, is answered by "exists", and the topic is listed.
        """

        def created() -> bool:
            try:
                self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return self._leaders(topic) == partitions
            return True

        wait_for(f"topic {topic} to be created", created, 30)
        wait_for(f"topic {topic}", lambda: self._leaders(topic) == partitions, 30)

    def create_replicated(
        self, topic: str, brokers: Sequence[int], config: Mapping[str, str], partitions: int = 1
    ) -> None:
        """Create a topic whose partitions' replicas are on these brokers; the first one is their leader."""
        wanted = NewTopic(topic, partitions, replica_assignment=[list(brokers)] * partitions, config=dict(config))
        self._admin.create_topics([wanted])[topic].result(30)
        wait_for(f"topic {topic}", lambda: self._leaders(topic) == partitions, 30)

    def replicas(self, topic: str) -> tuple[int, set[int]]:
        """Return the leader of a topic's only partition, and its in-sync replicas."""
        found = self._admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
        return found.leader, set(found.isrs)

    def led_by(self, topic: str) -> dict[int, set[tuple[str, int]]]:
        """Return the partitions of a topic by their leaders."""
        found: dict[int, set[tuple[str, int]]] = {}
        for number, partition in self._admin.list_topics(topic, timeout=10).topics[topic].partitions.items():
            found.setdefault(partition.leader, set()).add((topic, number))
        return found

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow a topic to `total` partitions."""
        self._admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)
        wait_for(f"{total} partitions of {topic}", lambda: self._leaders(topic) == total, 30)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._admin.delete_topics([topic])[topic].result(30)
        wait_for(f"end of topic {topic}", lambda: self._found(topic) is None, 30)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the id of each topic."""
        found = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=30)
        return {topic: str(future.result(30).topic_id) for topic, future in found.items()}

    def ends_known(self, topic: str) -> bool:
        """Return whether the topic is there."""
        return self._leaders(topic) > 0

    def _found(self, topic: str) -> TopicMetadata | None:
        """Return what a broker knows of a topic. Not of all: late in a test run there are hundreds."""
        found = self._admin.list_topics(topic, timeout=10).topics[topic]
        unknown = found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        return None if unknown else found

    def _leaders(self, topic: str) -> int:
        found = self._found(topic)
        return 0 if found is None else sum(p.leader >= 0 for p in found.partitions.values())

    def set_group_session_timeout(self, group: str, timeout_ms: int, heartbeat_ms: int = 2_000) -> None:
        """Set the session timeout and the heartbeat interval of a KIP-848 group, which are the broker's to set.

        librdkafka waits for an answer as long as the interval is, and never learns an assignment that comes later.
        """
        self.set_group_config(
            group, {"consumer.session.timeout.ms": timeout_ms, "consumer.heartbeat.interval.ms": heartbeat_ms}
        )

    def set_group_config(self, group: str, settings: Mapping[str, int]) -> None:
        """Set what the broker has of a KIP-848 group's own configuration."""
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def produce(self, topic: str, values: Iterable[str], partitions: int) -> None:
        """Produce values round robin over the partitions; returns when all are acknowledged."""
        # A fresh producer each time: a longer-lived one would not know new partitions at once.
        producer = self._producer()
        for number, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=number % partitions)
        assert producer.flush(60) == 0

    def produce_to(self, topic: str, values: Iterable[tuple[str, int]]) -> None:
        """Produce values to the partitions that they name; returns when all are acknowledged."""
        producer = self._producer()
        for value, partition in values:
            producer.produce(topic, value.encode(), partition=partition)
        assert producer.flush(60) == 0

    def produce_at(self, topic: str, times_ms: Sequence[int]) -> None:
        """Produce a record with each timestamp to partition 0; returns when all are acknowledged."""
        producer = self._producer()
        for at_ms in times_ms:
            producer.produce(topic, str(at_ms).encode(), partition=0, timestamp=at_ms)
        assert producer.flush(60) == 0

    def transact(self, topic: str, *transactions: tuple[Iterable[str], bool]) -> None:
        """Write transactions to partition 0: the values of each, and whether it commits. A marker takes an offset."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, "transactional.id": f"writer-{topic}"})
        producer.init_transactions(60)
        for values, commits in transactions:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value.encode(), partition=0)
            assert producer.flush(30) == 0
            producer.commit_transaction(60) if commits else producer.abort_transaction(60)

    def _producer(self) -> Producer:
        # `flush` does not wait for the rest of the linger time, so the values of a partition arrive at once: no plan of
        # a running query has only the first ones.
        return Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 60_000})

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets.

        A consumer that never joins asks: librdkafka's AdminClient.list_consumer_group_offsets crashes the process when
        the coordinator has just moved.
        """
        topics = self._admin.list_topics(timeout=10).topics.values()
        names = [(t.topic, number) for t in topics if not t.topic.startswith("__") for number in t.partitions]
        with self._lock:
            if group not in self._readers:
                self._readers[group] = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
            wanted = [TopicPartition(*name) for name in names]
            found = _asked_again(lambda: self._readers[group].committed(wanted, timeout=30))
        return {(p.topic, p.partition): p.offset for p in found if p.error is None and p.offset >= 0}

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set offsets of a group without members."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
        found = consumer.commit(offsets=[TopicPartition(*name, at) for name, at in offsets.items()], asynchronous=False)
        consumer.close()
        assert found is not None
        assert all(part.error is None for part in found)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the records before an offset, as retention does."""
        wanted = [TopicPartition(topic, partition, before)]
        for future in self._admin.delete_records(wanted).values():
            future.result(30)

    def ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Return the end of each partition's log."""
        numbers = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in numbers}
        return {(p.topic, p.partition): f.result(30).offset for p, f in self._admin.list_offsets(wanted).items()}

    def lag(self, group: str, topic: str) -> int:
        """Return the group's lag on a topic; a partition without a committed offset counts whole."""
        committed = self.committed(group)
        return sum(end - committed.get(partition, 0) for partition, end in self.ends(topic).items())

    def members(self, group: str) -> list[set[tuple[str, int]]]:
        """Return the assignment of each live member, as the coordinator tells it."""
        members = self._described(group).members
        return [{(p.topic, p.partition) for p in m.assignment.topic_partitions} for m in members]

    def remove_members(self, group: str, *, consumer: bool) -> None:
        """Remove all members from a KIP-848 group (`consumer`) or a classic one. Only the coordinator knows."""
        for member in self.member_ids(group):
            self.remove_member(group, member, consumer=consumer)

    def remove_member(self, group: str, member: str, *, consumer: bool) -> None:
        """Remove one member; see `remove_members`."""
        remove_member(self.bootstrap_servers, group, member, consumer=consumer)

    def member_ids(self, group: str) -> list[str]:
        """Return the ids of all members that the coordinator knows."""
        return [each.member_id for each in self._described(group).members]

    def strategy(self, group: str) -> str:
        """Return the assignment strategy that the coordinator names."""
        return str(self._described(group).partition_assignor)

    def member_count(self, group: str) -> int:
        """Return how many members the coordinator knows, with or without an assignment."""
        return len(self._described(group).members)

    def _described(self, group: str) -> ConsumerGroupDescription:
        return _asked_again(lambda: self._admin.describe_consumer_groups([group])[group].result(30))

    def records(self, topic: str, isolation: str = "read_uncommitted") -> set[Record]:
        """Read a topic from its beginning to its end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers, "group.id": "independent", "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": isolation,
            }
        )  # fmt: skip
        left = set(self.ends(topic))
        consumer.assign([TopicPartition(topic, number, 0) for _, number in sorted(left)])
        found: set[Record] = set()
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"did not reach the end of {left}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.add((message.topic(), message.partition(), message.offset()))
            elif message is not None:
                left.discard((message.topic(), message.partition()))
        consumer.close()
        return found


def newest_commit(checkpoint: Path) -> int:
    """Return the number of the newest completed batch, -1 without one.

    All before it are complete: Spark completes batches in their order, and keeps the entries of the newest hundred.
    """
    return max((int(entry.name) for entry in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def planned_records(checkpoint: Path, batch: int) -> list[Record]:
    """Return the records of the ranges that Spark's offset log holds for a batch."""
    text = (checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
    return [
        (topic, int(number), offset)
        for topic, entry in json.loads(text)["topics"].items()
        for number, (start, end) in entry["ranges"].items()
        for offset in range(start, end)
    ]


class Query:
    """A query in a process of its own (see query_process.py)."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.out = folder / name / f"run-{len(list((folder / name).glob('run-*')))}"
        self.out.mkdir(parents=True)
        self.checkpoint = Path(settings.get("checkpoint", folder / name / "checkpoint"))
        options = {"checkpointLocation": str(self.checkpoint)} | settings["options"]
        text = json.dumps(
            {**settings, "name": name, "out": str(self.out), "checkpoint": str(self.checkpoint), "options": options}
        )
        self._log = (self.out / "log").open("wb")
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= settings.get("environment", {})
        command = checkout.command("tests.kafka.query_process", text)
        self.process = subprocess.Popen(
            [environment["PYSPARK_PYTHON"], *command[1:]],
            stdout=self._log,
            stderr=self._log,
            # Not PYTHONPATH: executors would get it from the driver, and find this checkout.
            cwd=checkout.ROOT,
            env=environment,
            start_new_session=True,
        )

    def log(self) -> str:
        """Return the end of the process's output."""
        return f"--- {self.name} ---\n" + (self.out / "log").read_text(errors="replace")[-6000:]

    def batches(self) -> list[dict[str, Any]]:
        """Return what the sink wrote, in order."""
        files = sorted(self.out.glob("*-*.json"), key=lambda path: path.stat().st_mtime)
        return [json.loads(path.read_text()) for path in files]

    def records(self) -> Counter[Record]:
        """Return how often the sink wrote each record."""
        return Counter((t, p, o) for batch in self.batches() for t, p, o, _ in batch["rows"])

    def completed_batches(self) -> dict[int, list[Record]]:
        """Return the records of each batch that Spark recorded as complete and that has any; a replay counts once."""
        last = {batch["batch"]: batch["rows"] for batch in self.batches()}
        done = {number for number in last if (self.checkpoint / "commits" / str(number)).exists()}
        return {number: [(t, p, o) for t, p, o, _ in last[number]] for number in done if last[number]}

    def completed_records(self) -> Counter[Record]:
        """Return how often each record is in a batch that Spark recorded as complete; a replay counts once."""
        return Counter(record for rows in self.completed_batches().values() for record in rows)

    def wait_for_records(self, wanted: set[Record], timeout_s: float = 120.0) -> None:
        """Wait until all of these records are in completed batches.

        That the sink has them is not enough: a query that is stopped before Spark has recorded the batch repeats it.
        """
        wait_for(
            f"{self.name} to complete {len(wanted)} records",
            lambda: self._alive() and wanted <= self.completed_records().keys(),
            timeout_s,
            lambda: f"missing {sorted(wanted - self.completed_records().keys())[:10]}\n{self.log()}",
        )

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log()
        return True

    def wait_started(self) -> None:
        """Wait until the query runs."""
        wait_for(f"{self.name} to start", lambda: self._alive() and (self.out / "started").exists(), 120, self.log)

    def wait_ended(self, timeout_s: float = 120.0) -> int:
        """Wait until the process has ended by itself and return its exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end\n{self.log()}") from None

    def failure(self) -> str:
        """Return the query's error."""
        path = self.out / "failure"
        return path.read_text() if path.exists() else ""

    def jvm_pid(self) -> int:
        """Return the process id of the driver's JVM (Linux only)."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if parent == self.process.pid and b"java" in command:
                    return int(entry.name)
        raise AssertionError(f"no JVM below {self.process.pid}\n{self.log()}")

    def stop(self) -> None:
        """Stop the query cleanly and wait for the process."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.wait_ended(60)

    def kill(self) -> None:
        """SIGKILL the whole process group: driver, JVM, reader and workers."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._log.close()
