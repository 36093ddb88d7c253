"""The flight delays job without Spark: its settings, and the clean stop's order of events."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flight_delays
import pytest
from flight_delays import CleanStop, StoppedBeforeBatch, parse_arguments, read_properties, settings_from

REQUIRED = {
    "kafka.bootstrap.servers": "localhost:9092",
    "kafka.group.id": "g",
    "job.output": "/out",
    "job.checkpoint": "/checkpoint",
}


class FakeQuery:
    """Answers as a streaming query does; `stop` is what Spark does first: it is no longer active."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.isActive = False
        self.stopped.set()


def test_settings_go_to_the_job_or_to_the_source() -> None:
    settings = settings_from({**REQUIRED, "job.trigger": "1 minute", "job.stop-when-idle": "30", "subscribe": "t"})
    assert (settings.output, settings.trigger, settings.stop_when_idle_s) == ("/out", "1 minute", 30.0)
    assert settings.source == {"kafka.bootstrap.servers": "localhost:9092", "kafka.group.id": "g", "subscribe": "t"}
    assert settings.trigger_options() == {"processingTime": "1 minute"}


def test_available_now_is_a_trigger() -> None:
    assert settings_from({**REQUIRED, "job.trigger": "available-now"}).trigger_options() == {"availableNow": True}


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_a_missing_setting_is_named(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        settings_from({name: value for name, value in REQUIRED.items() if name != key})


def test_an_unknown_job_setting_is_named() -> None:
    with pytest.raises(ValueError, match="unknown job settings: triger"):
        settings_from({**REQUIRED, "job.triger": "1 second"})


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "job.properties"
    config.write_text("# comment\n\nsubscribe = flights\nkafka.group.id=from-file\njob.output=/a=b\n", encoding="utf-8")
    arguments = ["--config", str(config), "--bootstrap-servers", "h:1", "--group-id", "mine", "--checkpoint", "/c"]
    settings = parse_arguments([*arguments, "--option", "kafka.sasl.password=a=b"])
    assert settings.output == "/a=b"
    assert settings.source == {
        "subscribe": "flights",
        "kafka.group.id": "mine",
        "kafka.bootstrap.servers": "h:1",
        "kafka.sasl.password": "a=b",
    }


def test_a_line_that_is_no_setting_is_named_without_its_content(tmp_path: Path) -> None:
    config = tmp_path / "job.properties"
    config.write_text("subscribe=flights\nkafka.sasl.password: hunter2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 2: expected key=value") as raised:
        read_properties(config)
    assert "hunter2" not in str(raised.value)


def test_the_shipped_settings_are_complete_but_for_the_places() -> None:
    properties = read_properties(flight_delays.DEFAULT_CONFIG)
    assert properties["subscribe"] == "flights"
    with pytest.raises(ValueError, match=r"missing settings: kafka\.bootstrap\.servers, job\.output, job\.checkpoint"):
        settings_from(properties)


def test_a_batch_in_flight_is_waited_for_until_spark_has_recorded_it() -> None:
    stop, query = CleanStop(), FakeQuery()
    stop.batch_starts(query)
    stop.ask()
    stopper = threading.Thread(target=stop.stop, args=(query,))
    stopper.start()
    assert not query.stopped.wait(0.2)
    stop.batch_ended(0)
    assert not query.stopped.wait(0.2)  # written, but Spark could still run it again
    query.lastProgress = {"batchId": 0}
    assert query.stopped.wait(2)
    stopper.join(2)


def test_a_batch_after_the_stop_was_asked_for_writes_nothing() -> None:
    stop, query = CleanStop(), FakeQuery()
    stop.batch_starts(query)
    stop.batch_ended(0)
    stop.ask()
    refused: list[BaseException] = []

    def next_batch() -> None:
        try:
            stop.batch_starts(query)
        except StoppedBeforeBatch as error:
            refused.append(error)

    batch = threading.Thread(target=next_batch)
    batch.start()
    stop.stop(query)  # Spark began batch 1, so batch 0 is recorded, though no progress was reported yet
    batch.join(2)
    assert len(refused) == 1


def test_a_query_without_a_batch_stops_at_once() -> None:
    stop, query = CleanStop(), FakeQuery()
    stop.ask()
    stop.stop(query)
    assert query.stopped.is_set()


def test_a_batch_that_does_not_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flight_delays, "STOP_TIMEOUT_S", 0.1)
    stop, query = CleanStop(), FakeQuery()
    stop.batch_starts(query)
    stop.ask()
    stop.stop(query)
    assert query.stopped.is_set()
    assert "did not end within" in caplog.text


def test_the_jvm_is_held_until_the_job_is_done() -> None:
    stop = CleanStop()
    hook = threading.Thread(target=stop.run)
    hook.start()
    deadline = time.monotonic() + 2
    while not stop.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stop.asked
    assert hook.is_alive()
    stop.finished()
    hook.join(2)
    assert not hook.is_alive()


def test_an_idle_job_stops_itself() -> None:
    stop = CleanStop()
    query = FakeQuery()
    waiting = SimpleNamespace(
        awaitTermination=lambda _seconds: not query.isActive, stop=query.stop, isActive=True, lastProgress=None
    )
    flight_delays.run(waiting, settings_from({**REQUIRED, "job.stop-when-idle": "0"}), stop)
    assert query.stopped.is_set()
