"""Commands on the embedded broker. It reports no topic configuration, like a broker without the right to."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_groupsource.cli.main import main
from spark_groupsource.embedded import EmbeddedKafka


def test_lag_without_a_word_about_retention(capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        broker.produce("orders", ["a", "b", "c"])
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "shop", "log_level": 0})
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        consumer.close()
        assert main(["lag", "--bootstrap-servers", broker.bootstrap_servers, "--group", "shop"]) == 0
    _, first, last, note = capsys.readouterr().out.splitlines()
    assert first.split()[:4] == ["orders", "0", "1", "3"]
    assert (last.split()[:2], last.split()[-1]) == (["total", "2"], "-")
    needs = "needs a real Kafka broker, and the right DESCRIBE_CONFIGS on the topic"
    assert note == f"retention not known ({needs}): orders"


@pytest.mark.parametrize(
    "words",
    [("savepoint", "--group", "shop", "now.json"), ("adopt", "--group", "new", "--from-group", "shop")],
    ids=["savepoint", "adopt"],
)
def test_commands_that_need_a_list_of_offsets(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """The broker lists no offsets of a group that has some: the group must not be reported as one without offsets."""
    with EmbeddedKafka(topics={"orders": 1}) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "shop", "log_level": 0})
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()
        assert main([words[0], "--bootstrap-servers", broker.bootstrap_servers, *words[1:]]) == 1
    assert "[GROUPKAFKA.COMMAND_UNSUPPORTED]" in capsys.readouterr().err
