"""How far a group is behind, in records and in time: the command `lag`, the event `lag`, and Spark's own progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from spark_groupsource.cli.main import main
from spark_groupsource.spark.progress_listener import batch_figures, progress_line
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import allow

from .application import Application
from .harness import Independent, wait_for
from .holding import Events, Gate, released
from .local_query import open_transaction

pytestmark = pytest.mark.kafka

HOUR_S = 3_600.0
# What may pass between the production of a record and the look at it. The ages of records are further apart.
SLACK_S = 90.0

Asked = dict[tuple[str, int], dict[str, Any]]


class Tool:
    """A command in this process."""

    command = "lag"

    def __init__(self, servers: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.given = [self.command, "--bootstrap-servers", servers, "--group", group]
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str, str]:
        """Return the exit code, and what went to stdout and stderr."""
        self._capsys.readouterr()
        code = main([*self.given, *words])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def shown(self, *words: str) -> dict[str, Any]:
        """Return what --json says."""
        code, out, err = self.run("--json", *words)
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    def ask(self, *words: str) -> Asked:
        """Return what --json says of each partition."""
        return {(found["topic"], found["partition"]): found for found in self.shown(*words)["partitions"]}


@pytest.fixture
def tool(client: Independent, group: str, capsys: pytest.CaptureFixture[str]) -> Tool:
    """Return the command line for the test's group."""
    return Tool(client.bootstrap_servers, group, capsys)


def produce_at(client: Independent, topic: str, partition: int, ages_s: list[float], key: str = "k") -> None:
    """Produce a record per age; its time is so long ago."""
    producer = Producer({"bootstrap.servers": client.bootstrap_servers})
    now_s = time.time()
    for age_s in ages_s:
        producer.produce(topic, b"v", key=key.encode(), partition=partition, timestamp=int((now_s - age_s) * 1000))
    assert producer.flush(30) == 0


def test_safe_for_is_when_retention_takes_the_next_record(
    client: Independent, topic: str, group: str, tool: Tool
) -> None:
    """What is told is never too long, and the record goes soon after."""
    client.create_topic(topic, 1, **{"retention.ms": "30000"})
    produce_at(client, topic, 0, [0.0])
    client.commit(group, {(topic, 0): 0})
    promised: list[tuple[float, float]] = []  # between these two, since an answer takes time

    def lost() -> bool:
        asked_s = time.time()
        one = tool.ask()[topic, 0]
        # Neither is known of a record that goes between the look at the log's start and the one at the record.
        if not one["lost"] and one["behind_s"] is not None:
            promised.append((asked_s + one["safe_s"], time.time() + one["safe_s"]))
        return bool(one["lost"])

    wait_for("the record's end", lost, 60)
    lost_s = time.time()
    (first_s, first_most_s), (later_s, later_most_s) = promised[0], promised[len(promised) // 2]
    assert first_s <= lost_s < first_most_s + 60.0
    assert later_s <= first_most_s + 1.0
    assert first_s <= later_most_s + 1.0


def test_compacted_and_transactional_logs(client: Independent, topic: str, group: str, tool: Tool) -> None:
    """The next record may be far behind the group's offset; at a log's end there may be none, only a marker."""
    compacted, marked, aborted = f"{topic}-compacted", f"{topic}-marked", f"{topic}-aborted"
    config = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100", "retention.ms": "3600000",
    }  # fmt: skip
    client.create_topic(compacted, 1, **config)
    produce_at(client, compacted, 0, [3_000.0 - 60.0 * number for number in range(30)])

    def is_compacted() -> bool:
        # A record into a new segment makes the old one eligible.
        produce_at(client, compacted, 0, [0.0], key="another")
        return min(offset for _, _, offset in client.records(compacted)) == 29

    wait_for("the log cleaner", is_compacted, 120)
    for name in (marked, aborted):
        client.create_topic(name, 1)
    client.transact(marked, ("abc", True))
    client.transact(aborted, ("abc", False))
    client.commit(group, {(compacted, 0): 1, (marked, 0): 3, (aborted, 0): 0})
    found = tool.ask()
    one = found[compacted, 0]
    assert 3_000.0 - 29 * 60.0 <= one["behind_s"] < 3_000.0 - 29 * 60.0 + SLACK_S + 120.0
    # A compacted log keeps the last record of each key whatever retention.ms says.
    assert (one["safe_s"], one["retention_ms"]) == (None, None)
    # Kafka's own tools count the marker too.
    assert (found[marked, 0]["lag"], found[marked, 0]["behind_s"]) == (1, None)
    assert tool.run("--topic", marked, "--max-behind", "1")[::2] == (0, ""), "no record is left"
    assert found[aborted, 0]["lag"] == 4
    assert found[aborted, 0]["behind_s"] is not None


def test_read_committed_counts_to_the_end_of_what_is_committed(
    client: Independent, topic: str, group: str, tool: Tool, tmp_path: Path
) -> None:
    client.create_topic(topic, 1)
    client.produce(topic, ["a", "b"], 1)
    client.commit(group, {(topic, 0): 1})
    file = tmp_path / "client.properties"
    file.write_text("isolation.level=read_committed\n")
    with open_transaction(client, topic, 1):
        assert tool.ask()[topic, 0]["lag"] == 2
        assert tool.ask("--config", str(file))[topic, 0]["lag"] == 1
        client.commit(group, {(topic, 0): 2})
        one = tool.ask("--config", str(file))[topic, 0]
        assert (one["lag"], one["behind_s"]) == (0, None)


@pytest.mark.parametrize(
    ("protocol", "config"),
    [
        (
            "classic",
            "session.timeout.ms=6000\nmax.poll.interval.ms=10000\nheartbeat.interval.ms=1000\ngroup.instance.id=me\n"
            "max.partition.fetch.bytes=1000\nfetch.min.bytes=1000000\nqueued.min.messages=7\n",
        ),
        ("consumer", "group.protocol=consumer\ngroup.remote.assignor=range\nisolation.level=read_uncommitted\n"),
    ],
)
def test_a_group_of_another_program_is_left_alone(
    client: Independent, topic: str, group: str, tool: Tool, tmp_path: Path, protocol: str, config: str
) -> None:
    """A query's properties file will do: what in it is about a member is none of the command's business."""
    file = tmp_path / "client.properties"
    file.write_text(config)
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(20)), 2)
    rebalances: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": client.bootstrap_servers, "group.id": group, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    try:
        consumer.subscribe([topic], on_assign=lambda _, partitions: rebalances.append(len(partitions)))
        messages: list[Any] = []
        wait_for("12 records", lambda: messages.extend(consumer.consume(1, 1.0)) or len(messages) >= 12)
        consumer.commit(message=messages[11], asynchronous=False)
        before, last = client.members(group), messages[11]
        found = tool.ask("--config", str(file))
        assert found[topic, last.partition()]["committed"] == last.offset() + 1
        assert found[topic, last.partition()]["lag"] == 9 - last.offset()
        assert found[topic, 1 - last.partition()]["committed"] is None
        consumer.poll(1.0)
        assert client.members(group) == before
        assert sum(rebalances) == 2
    finally:
        consumer.close()
    offsets = {name: (one["committed"], one["end"], one["lag"]) for name, one in found.items()}
    assert {name: (one["committed"], one["end"], one["lag"]) for name, one in tool.ask().items()} == offsets


def test_exit_codes(client: Independent, topic: str, group: str, tool: Tool) -> None:
    client.create_topic(topic, 1)
    produce_at(client, topic, 0, [100.0, 50.0])
    code, out, err = tool.run()
    assert (code, out) == (1, "")
    assert f"Group '{group}' has no committed offsets" in err
    client.commit(group, {(topic, 0): 0})
    assert tool.run("--max-lag", "2", "--max-behind", "1000")[0] == 0
    assert tool.run("--max-lag", "1")[0] == 3
    assert tool.run("--max-behind", "60", "--watch", "1")[0] == 3
    code, _, err = tool.run("--topic", "no-such-topic")
    assert code == 1
    assert "these topics do not exist: no-such-topic" in err


def test_the_rights_it_takes(topic: str, group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """DESCRIBE on the group; of a topic DESCRIBE, READ for the times, and DESCRIBE_CONFIGS for its retention.

    Everybody is ANONYMOUS here, and may do what he likes with what no rule names.
    """
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    every = {"full": "DESCRIBE READ DESCRIBE_CONFIGS", "no-configs": "DESCRIBE READ", "least": "DESCRIBE", "hidden": ""}
    with RealKafka(brokers=1, properties=rules) as kafka:
        client, tool = Independent(kafka.bootstrap_servers), Tool(kafka.bootstrap_servers, group, capsys)
        everybody = partial(allow, kafka.bootstrap_servers, "ANONYMOUS")
        for name in every:
            client.create_topic(f"{topic}-{name}", 1, **{"retention.ms": "3600000"})
            client.produce(f"{topic}-{name}", ["a", "b"], 1)
        client.commit(group, {(f"{topic}-{name}", 0): 1 for name in every})
        granted = [
            (ResourceType.TOPIC, f"{topic}-{name}", AclOperation[operation])
            for name, operations in every.items()
            for operation in operations.split() or ["ALTER_CONFIGS"]
        ]
        everybody([(ResourceType.GROUP, group, AclOperation.DESCRIBE), *granted])
        wait_for("the rules", lambda: len(tool.ask()) == 3, 30)
        found = {name[0].removeprefix(f"{topic}-"): one for name, one in tool.ask().items()}
        assert {name: (one["lag"], one["behind_s"] is None, one["safe_s"] is None) for name, one in found.items()} == {
            "full": (1, False, False), "no-configs": (1, False, True), "least": (1, True, True),
        }  # fmt: skip
        assert tool.run()[1].splitlines()[-1].endswith(f"on the topic): {topic}-least, {topic}-no-configs")
        assert tool.run("--max-behind", "1000", "--topic", f"{topic}-full")[::2] == (0, "")
        code, _, err = tool.run("--max-behind", "1000")
        assert (code, err.rpartition(": ")[2]) == (3, f"{topic}-least-0\n")
        everybody([(ResourceType.GROUP, f"{group}-other", AclOperation.ALTER_CONFIGS)])
        other = Tool(kafka.bootstrap_servers, f"{group}-other", capsys)
        wait_for("the group's rule", lambda: "[GROUPKAFKA.OTHER_GROUP_ACCESS_DENIED]" in other.run()[2], 30)


def test_a_broker_that_is_not_there(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes in bounded time, and names the servers."""
    started_s = time.monotonic()
    code, out, err = Tool("127.0.0.1:1", group, capsys).run()
    assert (code, out) == (1, "")
    assert "waiting for an answer from Kafka: servers=127.0.0.1:1 " in err
    assert "[GROUPKAFKA.BROKER_UNREACHABLE]" in err
    assert "127.0.0.1:1" in err
    assert time.monotonic() - started_s < 60


# --- a running query


def details(line: Mapping[str, Any]) -> dict[int, list[Any]]:
    """Return what an event says, by partition."""
    return {number: rest for _, number, *rest in line["details"]["lag"]}


def test_the_lag_of_a_running_query(
    application: Application, client: Independent, options: dict[str, str], topic: str, tool: Tool, tmp_path: Path
) -> None:
    """What counts is what the group has: a batch that the sink has, but Spark has not recorded, is still behind."""
    client.create_topic(topic, 2, **{"retention.ms": "3600000"})
    seen, gate = Events(tmp_path, "query"), Gate()
    gate.armed = True

    def lag_is(*wanted: int) -> Callable[[], bool]:
        def check() -> bool:
            lines = seen.lines("lag")
            return bool(lines) and tuple(details(lines[-1])[n][0] for n in range(2)) == wanted

        return check

    with released(gate):
        chosen = options | {"metricsLagIntervalMs": "200", "kafka.session.timeout.ms": "45000"}
        query = application.start_query("query", chosen | seen.options, batch=gate)
        wait_for("the first event", lag_is(0, 0), 120, seen.tail)
        produce_at(client, topic, 0, [300.0] * 3)
        gate.wait_reached(seen.tail)
        wait_for("the lag of the batch in flight", lag_is(3, 0), 30, seen.tail)
        line = seen.lines("lag")[-1]
        records, behind_s, safe_s = details(line)[0]
        assert 300.0 <= behind_s < 300.0 + SLACK_S + 60.0
        assert safe_s == pytest.approx(HOUR_S - behind_s, abs=0.002)
        assert details(line)[1] == [0, None, None]
        assert line["details"]["total"] == {"records": records, "lost": 0, "behind_s": behind_s, "safe_s": safe_s}
        assert (line["state"], line["partitions"]) == ("JOINED", [[topic, 0], [topic, 1]])
        assert tool.ask()[topic, 0]["lag"] == 3
    wait_for("the end of the lag", lag_is(0, 0), 30, seen.tail)
    assert [one["lag"] for one in tool.ask().values()] == [0, 0]
    assert seen.metrics()["assignments"] == 1
    pid = seen.reader_pid()
    query.stop()
    seen.wait_for("left")
    wait_for("the reader process's end", lambda: not Path(f"/proc/{pid}").exists(), 30, seen.tail)
    assert seen.lines()[-1]["event"] == "left"


def test_the_lag_of_assigned_partitions(
    application: Application, client: Independent, options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(10)), 2)
    seen = Events(tmp_path, "query")
    chosen = {name: value for name, value in options.items() if name != "subscribe"}
    chosen |= {"assign": json.dumps({topic: [1]}), "metricsLagIntervalMs": "200"}
    application.start_query("query", chosen | seen.options)
    wait_for(
        "an event", lambda: any(details(line) == {1: [0, None, None]} for line in seen.lines("lag")), 120, seen.tail
    )


def test_no_event_when_it_is_off(
    application: Application, client: Independent, options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    client.create_topic(topic, 1)
    client.produce(topic, map(str, range(10)), 1)
    seen = Events(tmp_path, "query")
    query = application.start_query("query", options | seen.options | {"metricsLagIntervalMs": "0"})
    query.wait_for_records(client.records(topic))
    query.stop()
    seen.wait_for("left")
    assert seen.lines("lag") == []


@pytest.mark.parametrize("fast_lane", ["0", "10000"])
def test_sparks_progress_reports_the_newest_offsets(
    application: Application, client: Independent, options: dict[str, str], topic: str, fast_lane: str
) -> None:
    """Each batch takes 10 of 40 offsets; the fast lane's reader is asked like any other (reportLatestOffset)."""
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(40)), 2)
    query = application.start_query("query", options | {"maxOffsetsPerTrigger": "10", "fastLaneMaxOffsets": fast_lane})
    query.wait_for_records(client.records(topic))

    def reports() -> list[dict[str, Any]]:
        found = [json.loads(progress.json) for progress in query.query.recentProgress]
        return [one for one in found if one["numInputRows"]]

    wait_for("four reports", lambda: len(reports()) == 4, 30)
    newest = {topic: {"0": 20, "1": 20}}
    for number, report in enumerate(reports()):
        (source,) = report["sources"]
        latest = source["latestOffset"]
        assert (json.loads(latest) if isinstance(latest, str) else latest) == newest
        found = batch_figures(report)
        assert found is not None
        assert f" lag={30 - 10 * number} partitions={topic}[0,1]" in progress_line(found)
    ranges = [source[name]["topics"][topic]["ranges"] for name in ("startOffset", "endOffset")]
    assert ranges == [{"0": [10, 15], "1": [10, 15]}, {"0": [15, 20], "1": [15, 20]}]
    query.stop()
