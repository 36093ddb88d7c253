"""What the benchmark's topics hold: a content is described, made and written here."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Producer

from tests.realkafka.deliveries import Deliveries
from tests.steps import say

COMPRESSIONS = ("none", "lz4", "zstd", "snappy", "gzip")
_DISTINCT_TEXTS = 5_000  # more than a producer's batch of 1 KB values holds: a batch does not repeat itself
_FLUSH_TIMEOUT_S = 300.0
_STATES = ("created", "paid", "packed", "shipped", "delivered", "returned")
_CITIES = ("Amsterdam", "Bogota", "Cairo", "Dakar", "Edinburgh", "Fukuoka", "Gdansk", "Helsinki", "Istanbul", "Jakarta")


class BenchError(RuntimeError):
    """A measurement is not valid: a query failed or stalled, or the sources did not read the same."""


@dataclass(frozen=True, slots=True)
class Content:
    """A topic's records: values of `size` bytes without keys, random bytes or (`text`) JSON that can be compressed."""

    records: int
    size: int
    partitions: int
    compression: str = "none"
    text: bool = False

    def __str__(self) -> str:
        kind = f" of JSON, {self.compression}" if self.text else ""
        return f"{self.records:,} x {size_name(self.size)}{kind}"


def size_name(size: int) -> str:
    """Return 100 B, 10 KB."""
    return f"{size // 1000} KB" if size % 1000 == 0 else f"{size} B"


def json_texts(size: int, count: int, seed: int = 1) -> list[bytes]:
    """Return different JSON objects of exactly `size` bytes each: half of what they say is names, half is numbers.

    Below some 100 bytes they are cut off.
    """
    chosen = random.Random(seed)
    texts = []
    for number in range(count):
        order = {"id": f"{chosen.getrandbits(64):016x}", "number": number, "at": 1_700_000_000_000 + number * 37}
        lines: list[dict[str, object]] = []
        text = b""
        while len(text) < size:
            line = {
                "article": chosen.randrange(100_000),
                "state": chosen.choice(_STATES),
                "city": chosen.choice(_CITIES),
            }
            lines.append({**line, "quantity": chosen.randrange(1, 20), "price": round(chosen.uniform(1, 500), 2)})
            text = json.dumps({**order, "lines": lines}, separators=(",", ":")).encode()
        texts.append(text[:size])
    return texts


def values_of(content: Content) -> Sequence[bytes]:
    """Return values to write in turn."""
    if content.text:
        return json_texts(content.size, min(content.records, _DISTINCT_TEXTS))
    noise = os.urandom(content.size + 4096)
    return [noise[start : start + content.size] for start in range(min(content.records, 4096))]


def producer(bootstrap_servers: str, compression: str = "none") -> Producer:
    """Return a producer of large batches."""
    return Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": compression,
            "linger.ms": 20,
            "batch.size": 1024 * 1024,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
            "log_level": 5,  # without a note about its queue at each end
        }
    )


def produce(client: Producer, topic: str, content: Content, values: Sequence[bytes]) -> None:
    """Write the records, evenly over the partitions; return when all are acknowledged. Raises `BenchError`."""
    delivered = Deliveries()
    shown = time.monotonic()
    for number in range(content.records):
        value, partition = values[number % len(values)], number % content.partitions
        while True:
            try:
                client.produce(topic, value, partition=partition, on_delivery=delivered)
                break
            except BufferError:
                client.poll(0.1)
        if number % 10_000 == 0:
            client.poll(0)
            if time.monotonic() - shown > 3.0:
                shown = time.monotonic()
                say(f"    produced {number:,} of {content.records:,} records")
    client.flush(_FLUSH_TIMEOUT_S)
    if delivered.errors or delivered.acknowledged != content.records:
        said = f"{delivered.acknowledged} of {content.records} records were acknowledged"
        raise BenchError(f"{said}; {delivered.errors[:1]}")
