"""The command `exporter`: metrics of any group on a real broker, which may go away."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, ResourceType

from spark_groupsource.cli.main import main
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import allow

from .exporter_process import ExporterProcess, Scraped
from .harness import Independent, wait_for
from .test_lag import SLACK_S, produce_at

pytestmark = pytest.mark.kafka

HOUR_S = 3_600.0


def test_a_group_without_members_has_the_lag_that_the_command_lag_prints(
    client: Independent, topic: str, group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 is behind, 1 is done, 2 has lost records, 3 has no offset, 4 is empty, 5 is empty and has no offset."""
    client.create_topic(topic, 6, **{"retention.ms": "3600000"})
    for partition in range(4):
        produce_at(client, topic, partition, [1_000.0, 900.0, 800.0, 700.0, 600.0])
    client.delete_records(topic, 2, 3)
    client.commit(group, {(topic, 0): 1, (topic, 1): 5, (topic, 2): 1, (topic, 4): 0})
    with ExporterProcess(tmp_path, client.bootstrap_servers, "--group", group, "--interval", "1") as exporter:
        wait_for("the group", lambda: exporter.up() == {group: 1}, 60, exporter.said)
        assert main(["lag", "--bootstrap-servers", client.bootstrap_servers, "--group", group, "--json"]) == 0
        lags = {(one["topic"], one["partition"]): one for one in json.loads(capsys.readouterr().out)["partitions"]}
        shown = {name[1]: (one["committed"], one["end"], one["lag"], one["lost"]) for name, one in lags.items()}
        assert shown == {
            0: (1, 5, 4, 0), 1: (5, 5, 0, 0), 2: (1, 5, 2, 2), 3: (None, 5, 5, 0), 4: (0, 0, 0, 0), 5: (None, 0, 0, 0),
        }  # fmt: skip
        assert {name[1] for name, one in lags.items() if one["behind_s"] is None and one["safe_s"] is None} == {1, 4, 5}
        assert exporter.of_group("lag", group) == {name: one["lag"] for name, one in lags.items()}
        assert exporter.of_group("offset", group) == {
            name: one["committed"] for name, one in lags.items() if one["committed"] is not None
        }
        assert exporter.of_group("lost_offsets", group) == {(topic, 2): 2}
        # Of one answer: a measurement between two would make them differ.
        found = exporter.scrape()
        behind = exporter.of_group("lag_seconds", group, found)
        safe = exporter.of_group("time_to_data_loss_seconds", group, found)
        for partition, age_s in {0: 900.0, 2: 700.0, 3: 1_000.0}.items():
            assert age_s <= behind[topic, partition] < age_s + SLACK_S
            assert safe[topic, partition] == pytest.approx(HOUR_S - behind[topic, partition], abs=0.002)
        assert {name: at for name, at in behind.items() if not at} == {(topic, 1): 0, (topic, 4): 0, (topic, 5): 0}
        latest = {dict(labels)["partition"]: at for labels, at in found["kafka_partition_latest_offset"].items()}
        earliest = {dict(labels)["partition"]: at for labels, at in found["kafka_partition_earliest_offset"].items()}
        assert latest == {"0": 5, "1": 5, "2": 5, "3": 5, "4": 0, "5": 0}
        assert earliest == {"0": 0, "1": 0, "2": 3, "3": 0, "4": 0, "5": 0}
        assert exporter.of_group("sum_lag", group) == {("", -1): 11}
        assert exporter.of_group("members", group) == {("", -1): 0}
        states = found["kafka_consumergroup_group_state"]
        assert [dict(labels)["state"] for labels, at in states.items() if at] == ["Empty"]
        assert exporter.stop() == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_of_another_program_is_found_by_its_name_and_left_alone(
    client: Independent, topic: str, group: str, tmp_path: Path, protocol: str
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(20)), 2)
    rebalances: list[int] = []
    consumer = Consumer(
        {
            "bootstrap.servers": client.bootstrap_servers, "group.id": group, "group.protocol": protocol,
            "client.id": "of-others", "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    pattern = ("--group-pattern", f"{group[:-2]}..", "--interval", "0.5")
    try:
        consumer.subscribe([topic], on_assign=lambda _, partitions: rebalances.append(len(partitions)))
        with ExporterProcess(tmp_path, client.bootstrap_servers, *pattern) as exporter:

            def all_lag() -> Scraped | None:
                """Return the answer once the member has all: under KIP-848 the lag is told before it has."""
                consumer.poll(0.2)
                answer = exporter.scrape()
                states = answer.get("kafka_consumergroup_group_state", {})
                stable = [dict(found)["state"] for found, at in states.items() if at] == ["Stable"]
                lag = exporter.of_group("lag", group, answer)
                return answer if stable and lag == {(topic, 0): 10, (topic, 1): 10} else None

            answer = wait_for("the lag of a group without offsets", all_lag, 60, exporter.said)
            labels = [dict(found) for found in answer["kafka_consumergroup_group_lag"]]
            assert {(one["client_id"], one["member_host"]) for one in labels} == {("of-others", "127.0.0.1")}
            assert all(one["consumer_id"] for one in labels)
            assert exporter.of_group("members", group, answer) == {("", -1): 1}
            consumer.poll(0.2)
            assert sum(rebalances) == 2
    finally:
        consumer.close()


def test_brokers_that_are_away_and_a_group_that_is_denied(topic: str, group: str, tmp_path: Path) -> None:
    """The exporter starts without a broker, and outlives outages. One group that is denied hides no other."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    denied = f"{group}-denied"
    with RealKafka(brokers=1, properties=rules) as kafka:
        client = Independent(kafka.bootstrap_servers)
        client.create_topic(topic, 1)
        client.produce(topic, ["a", "b"], 1)
        for name in (group, denied):
            client.commit(name, {(topic, 0): 1})
        kafka.stop_broker(1)
        words = ("--group", group, "--group", denied, "--interval", "0.5", "--cluster-name", "test")
        with ExporterProcess(tmp_path, kafka.bootstrap_servers, *words) as exporter:
            wait_for("both to be down", lambda: exporter.up() == {group: 0, denied: 0}, 60, exporter.said)

            def shows(ups: dict[str, float], lag: dict[tuple[str, int], float]) -> Callable[[], bool]:
                def check() -> bool:
                    answer = exporter.scrape()
                    return (exporter.up(answer), exporter.of_group("lag", group, answer)) == (ups, lag)

                return check

            kafka.start_broker(1)
            wait_for("both to be up", shows({group: 1, denied: 1}, {(topic, 0): 1}), 60, exporter.said)
            kafka.pause_broker(1)
            wait_for("both to be down again", shows({group: 0, denied: 0}, {}), 45, exporter.said)
            kafka.resume_broker(1)
            wait_for("both to be up again", shows({group: 1, denied: 1}, {(topic, 0): 1}), 60, exporter.said)
            allow(kafka.bootstrap_servers, "ANONYMOUS", [(ResourceType.GROUP, denied, AclOperation.ALTER_CONFIGS)])
            wait_for("one to be denied", shows({group: 1, denied: 0}, {(topic, 0): 1}), 60, exporter.said)
            refused = f"group {denied} is not measured: [GROUPKAFKA.OTHER_GROUP_ACCESS_DENIED]"
            wait_for("the reason", lambda: refused in exporter.said(), 30, exporter.said)
            # Once each, however many rounds an outage takes; a machine that stands still may have more of them.
            shown = [line.partition("the cluster is ")[2] for line in exporter.said().splitlines()]
            shown = [text.partition("]")[0] for text in shown if text]
            assert all(one != other for one, other in pairwise(shown)), exporter.said()
            assert shown[0].startswith("not measured: [GROUPKAFKA.")
            assert shown.count("measured again") >= 2, exporter.said()
            assert exporter.stop() == 0
