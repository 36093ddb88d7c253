"""Lag in records and seconds, and until when unread records are safe."""

from __future__ import annotations

import pytest

from spark_groupsource.lag.model import CLOCK_SKEW_MS, LagInput, Retention, lag_of, shown_duration, total
from tests.unit.fakes import tp

P0, P1 = tp(0), tp(1)
NOW_MS = 1_700_000_100_000
HOUR = Retention(after_ms=3_600_000)


def test_behind_in_records_and_seconds() -> None:
    lag = lag_of(LagInput(P0, 40, 10, 100, NOW_MS - 12_500, HOUR), NOW_MS)
    assert (lag.records, lag.lost, lag.behind_s, lag.safe_s) == (60, 0, 12.5, 3587.5)


def test_nothing_unread() -> None:
    lag = lag_of(LagInput(P0, 100, 10, 100, None, HOUR), NOW_MS)
    assert (lag.records, lag.lost, lag.behind_s, lag.safe_s) == (0, 0, None, None)


def test_a_group_without_an_offset_has_all_before_it() -> None:
    lag = lag_of(LagInput(P0, None, 10, 100, NOW_MS - 1_000), NOW_MS)
    assert (lag.records, lag.lost, lag.behind_s, lag.safe_s) == (90, 0, 1.0, None)


def test_unread_records_that_are_removed_already() -> None:
    lag = lag_of(LagInput(P0, 4, 10, 100, NOW_MS - 4_000_000, HOUR), NOW_MS)
    assert (lag.records, lag.lost, lag.behind_s, lag.safe_s) == (90, 6, 4000.0, 0.0)


@pytest.mark.parametrize("next_ms", [None, -1])
def test_a_record_without_a_time(next_ms: int | None) -> None:
    lag = lag_of(LagInput(P0, 40, 10, 100, next_ms, HOUR), NOW_MS)
    assert (lag.records, lag.behind_s, lag.safe_s) == (60, None, None)


@pytest.mark.parametrize("ahead_ms", [0, 2_000, 60_000, CLOCK_SKEW_MS])
def test_a_record_that_is_ahead_by_a_clocks_error_is_not_behind(ahead_ms: int) -> None:
    lag = lag_of(LagInput(P0, 40, 10, 100, NOW_MS + ahead_ms, HOUR), NOW_MS)
    assert (lag.behind_s, lag.safe_s, lag.age_known) == (0.0, 3600.0, True)


@pytest.mark.parametrize("next_ms", [NOW_MS + CLOCK_SKEW_MS + 1, NOW_MS + 86_400_000, NOW_MS * 1_000, 2**63 - 1])
def test_of_a_record_from_the_future_no_age_is_known(next_ms: int) -> None:
    """0 seconds would hide the lag until that time."""
    lag = lag_of(LagInput(P0, 40, 10, 100, next_ms, HOUR), NOW_MS)
    assert (lag.records, lag.behind_s, lag.safe_s, lag.age_known) == (60, None, None, False)
    assert total([lag]) == (60, 0, None, None)
    read = lag_of(LagInput(P0, 100, 10, 100, next_ms, HOUR), NOW_MS)
    assert read.age_known, "nothing is unread"


def test_an_offset_ahead_of_the_log() -> None:
    """The topic may have been recreated: nothing of it was read, and no age may say otherwise."""
    lag = lag_of(LagInput(P0, 120, 10, 100), NOW_MS)
    assert (lag.records, lag.is_ahead, lag.behind_s, lag.age_known) == (0, True, None, False)
    read = lag_of(LagInput(P0, 100, 10, 100), NOW_MS)
    assert (read.is_ahead, read.age_known) == (False, True)


def test_all_partitions_together() -> None:
    lags = [
        lag_of(LagInput(P0, 40, 10, 100, NOW_MS - 5_000, HOUR), NOW_MS),
        lag_of(LagInput(P1, 4, 10, 20, NOW_MS - 9_000, Retention()), NOW_MS),
    ]
    assert total(lags) == (70, 6, 9.0, 3595.0)
    assert total([]) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (0.0, "0ms"), (0.85, "850ms"), (12.34, "12.3s"), (60.0, "1m00s"), (250.0, "4m10s"),
        (3_600.0, "1h00m"), (11_100.0, "3h05m"), (604_799.0, "6d23h"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, shown: str) -> None:
    assert shown_duration(seconds) == shown
