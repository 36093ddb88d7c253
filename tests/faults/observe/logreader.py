"""Reads topics with a client of its own: what is in the log, whatever the source has made of it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from tests.faults.history import Logged
from tests.faults.observe.observer import CLIENT, Partition
from tests.faults.waiting import RigError

_READ_S = 120.0


def read_log(bootstrap_servers: str, ends: Mapping[Partition, int]) -> list[Logged]:
    """Return the committed records of each partition from its beginning up to (not including) its end."""
    consumer = Consumer(
        {
            **CLIENT, "bootstrap.servers": bootstrap_servers, "group.id": "rig-log", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": "read_committed",
        }
    )  # fmt: skip
    found: list[Logged] = []
    left = {partition for partition, end in ends.items() if end > 0}
    deadline = time.monotonic() + _READ_S
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in sorted(left)])
        while left:
            if time.monotonic() > deadline:
                raise RigError(f"did not reach the end of {sorted(left)} in {_READ_S:.0f} s")
            for message in consumer.consume(5000, 0.5):
                partition = (str(message.topic()), int(message.partition() or 0))
                offset = int(message.offset() or 0)
                if partition not in ends:  # an error that is no partition's
                    continue
                # While records are written there may never be an end-of-partition event, which has an offset too.
                if offset + (message.error() is None) >= ends[partition]:
                    left.discard(partition)
                if message.error() is None and offset < ends[partition]:
                    found.append(Logged(*partition, offset, (message.value() or b"").decode()))
    finally:
        consumer.close()
    return found
