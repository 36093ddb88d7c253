"""The clean stop's order of events, without Spark."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_groupsource.spark.clean_stop import CleanStop, StoppedBeforeBatch


class FakeQuery:
    """Answers as a streaming query does; `stop` is what Spark does first: it is no longer active."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.isActive = False
        self.stopped.set()

    def awaitTermination(self, _timeout_s: float) -> bool:
        return self.stopped.wait(0.01)


def test_a_batch_in_flight_is_waited_for_until_spark_has_recorded_it() -> None:
    stop, query = CleanStop(), FakeQuery()
    stop.batch_starts(query)
    stop.request()
    stopper = threading.Thread(target=stop.stop, args=(query,))
    stopper.start()
    assert not query.stopped.wait(0.2)
    stop.batch_ended(0)
    assert not query.stopped.wait(0.2)  # written, but Spark could still run it again
    query.lastProgress = {"batchId": 0}
    assert query.stopped.wait(2)
    stopper.join(2)


def test_a_batch_after_the_stop_was_requested_writes_nothing() -> None:
    stop, query = CleanStop(), FakeQuery()
    stop.batch_starts(query)
    stop.batch_ended(0)
    stop.request()
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
    stop.request()
    stop.stop(query)
    assert query.stopped.is_set()


def test_a_batch_that_does_not_end_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    stop, query = CleanStop(timeout_s=0.1), FakeQuery()
    stop.batch_starts(query)
    stop.request()
    stop.stop(query)
    assert query.stopped.is_set()
    assert "did not end within" in caplog.text


def test_the_jvm_is_held_until_the_program_is_done() -> None:
    stop = CleanStop()
    hook = threading.Thread(target=stop.run)
    hook.start()
    deadline = time.monotonic() + 2
    while not stop.requested and time.monotonic() < deadline:
        time.sleep(0.01)
    assert stop.requested
    assert hook.is_alive()
    stop.finished()
    hook.join(2)
    assert not hook.is_alive()


def test_an_idle_query_is_stopped() -> None:
    query = FakeQuery()
    CleanStop().run_until_stopped(query, idle_s=0)
    assert query.stopped.is_set()


def test_the_first_batch_waits_until_its_query_is_known() -> None:
    stop, query = CleanStop(), FakeQuery()
    written: list[tuple[object, int, object]] = []
    on_batch = stop.each_batch(lambda *batch: written.append(batch))
    batch = threading.Thread(target=on_batch, args=("rows", 0))
    batch.start()
    batch.join(0.2)
    assert written == []
    main = threading.Thread(target=stop.run_until_stopped, args=(query,))
    main.start()
    batch.join(5)
    assert written == [("rows", 0, query)]
    query.lastProgress = {"batchId": 0}
    stop.request()
    main.join(5)
    assert query.stopped.is_set()


def test_a_batch_without_its_query_is_an_error() -> None:
    with pytest.raises(TimeoutError, match=r"run_until_stopped\(query\) was not called"):
        CleanStop(timeout_s=0.1).each_batch(lambda *_batch: None)("rows", 0)


@pytest.mark.parametrize("requested", [True, False])
def test_a_failed_query_is_an_error_unless_a_stop_was_requested(requested: bool) -> None:
    """Spark reports the batch that was held back as failed."""

    def fail(_timeout_s: float) -> bool:
        raise StreamingQueryException(message="the batch failed")

    stop, query = CleanStop(), FakeQuery()
    query.awaitTermination = fail
    if requested:
        stop.request()
        stop.run_until_stopped(query)
    else:
        with pytest.raises(StreamingQueryException):
            stop.run_until_stopped(query)
