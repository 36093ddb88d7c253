"""The texts of committed offsets, which clients in several languages write and read."""

from __future__ import annotations

import time

import pytest
from kafka import KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as WriterPartition

from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.clock import SystemClock
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.port import MemberListener
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options

from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka

PARTITIONS = 16
READS = 60


class Silent(MemberListener):
    """A listener of a client that joins nothing."""


@pytest.fixture
def parsed(client: Independent, options: dict[str, str], topic: str) -> SourceOptions:
    client.create_topic(topic, PARTITIONS)
    return parse_options(options)


def read_again_and_again(parsed: SourceOptions, wanted: dict[TopicPartition, GroupOffset]) -> None:
    """Let a member and the command line read the group's offsets, many times each."""
    member = LibrdkafkaGroup(parsed)
    member.open(Silent())
    try:
        for _ in range(READS):
            assert member.fetch_offsets(list(wanted), 30.0) == wanted
    finally:
        member.close()
    admin = GroupAdmin(parsed, SystemClock(), time.sleep)
    for _ in range(READS):
        assert admin.group_offsets() == wanted


def test_m27_a_text_that_another_client_has_written_is_read_to_its_end(
    client: Independent, parsed: SourceOptions, topic: str, group: str
) -> None:
    """The sequence: a member on another client commits and leaves; the next owner must know its lineage.

    The Java client, and kafka-python, end no text with a zero byte, and confluent-kafka reads on until it meets one.
    """
    text = CommitMetadata("880f53ec-818b-4a8f-8cb3-ef0211d8e83b", "WUDuNY", 325, 350, Pin(0, PARTITIONS)).to_text()
    numbers = range(PARTITIONS)
    writer = KafkaConsumer(bootstrap_servers=client.bootstrap_servers, group_id=group, enable_auto_commit=False)
    writer.assign([WriterPartition(topic, number) for number in numbers])
    writer.commit({WriterPartition(topic, number): OffsetAndMetadata(350, text, -1) for number in numbers})
    writer.close()
    read_again_and_again(parsed, {TopicPartition(topic, number): GroupOffset(350, text) for number in numbers})


def test_m19_a_member_on_kafka_python_ends_its_texts_as_librdkafka_does(
    client: Independent, parsed: SourceOptions, options: dict[str, str], topic: str, group: str
) -> None:
    """Readers of the group with librdkafka, of any version of this package, find what was written."""
    text = "a text of no form that tells where it ends"
    member = group_client(parse_options(options | {"assignors": "weighted"}))
    member.open(Silent())
    numbers = range(PARTITIONS)
    items = [CommitItem(TopicPartition(topic, number), 7, text) for number in numbers]

    def committed() -> bool:
        member.poll()
        return len(member.commit_now(items).acknowledged) == PARTITIONS

    try:
        member.subscribe([topic])
        wait_for("a commit of the member", committed, 30)
    finally:
        member.close()
    read_again_and_again(parsed, {TopicPartition(topic, number): GroupOffset(7, text) for number in numbers})
