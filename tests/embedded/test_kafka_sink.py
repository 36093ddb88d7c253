"""The recipe of docs/how-to/sinks.md that writes to Kafka without a JAR, on the embedded broker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark import cloudpickle
from pyspark.sql import Row

from spark_groupsource.embedded.broker import EmbeddedKafka
from tests.checkout import ROOT

Recipe = dict[str, Any]


@pytest.fixture
def recipe(embedded_kafka: EmbeddedKafka) -> Recipe:
    """Return the names of the page's code; it writes to the embedded broker."""
    page = (ROOT / "docs" / "how-to" / "sinks.md").read_text(encoding="utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def produce_rows(" in code)
    assert "localhost:9092" in code
    names: Recipe = {"__name__": "__main__"}
    exec(compile(code.replace("localhost:9092", embedded_kafka.bootstrap_servers), "sinks.md", "exec"), names)
    embedded_kafka.create_topic(names["OUTPUT"], 1)
    return names


@pytest.fixture
def written(recipe: Recipe, embedded_kafka: EmbeddedKafka) -> Iterator[Callable[[int], list[Any]]]:
    """Return a function that reads the first records of the output."""
    consumer = Consumer({"bootstrap.servers": embedded_kafka.bootstrap_servers, "group.id": "reader"})

    def read(count: int) -> list[Any]:
        consumer.assign([TopicPartition(recipe["OUTPUT"], 0, 0)])
        return consumer.consume(count, timeout=30)

    yield read
    consumer.close()


def rows(count: int) -> Iterator[Row]:
    return (Row(topic="orders", partition=3, offset=n, key=None, value=b"v%d" % n) for n in range(count))


def test_each_row_arrives_in_order_with_its_source(recipe: Recipe, written: Callable[[int], list[Any]]) -> None:
    sent_with_a_task = cloudpickle.loads(cloudpickle.dumps(recipe["produce_rows"]))  # type: ignore[no-untyped-call]
    sent_with_a_task(rows(100))
    found = written(100)
    assert [message.value() for message in found] == [b"v%d" % n for n in range(100)]
    assert found[7].headers() == [("topic", b"orders"), ("partition", b"3"), ("offset", b"7")]


def test_a_full_queue_is_waited_for(recipe: Recipe, written: Callable[[int], list[Any]]) -> None:
    recipe["PRODUCER"]["queue.buffering.max.messages"] = 10
    recipe["produce_rows"](rows(500))
    assert [message.value() for message in written(500)] == [b"v%d" % n for n in range(500)]


@pytest.mark.parametrize("queue", [10, 1000])
def test_records_without_an_answer_fail_the_task(queue: int, recipe: Recipe) -> None:
    nobody = {"bootstrap.servers": "127.0.0.1:1", "delivery.timeout.ms": 1000, "queue.buffering.max.messages": queue}
    recipe["PRODUCER"].update(nobody)
    with pytest.raises(RuntimeError, match=r"\d+ records refused, 0 unanswered.*timed out"):
        recipe["produce_rows"](rows(100))
