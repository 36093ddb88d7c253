"""Option metricsPort: the samples of a query, and when its port is open."""

from __future__ import annotations

import logging
import socket
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.membership.events import DrainOutcome, GroupEvent, HandOver
from spark_groupsource.membership.machine import MemberMachine
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.metrics import EVENTS, REBALANCE_OUTCOMES, MetricsLog
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.sidecars.metrics_port import QUERY_METRICS, open_metrics_port, query_samples
from tests.unit.fakes import ManualClock, flight, make_options, tp

P0, P1 = tp(0), tp(1)
ITEMS = flight(OffsetRange(P0, 0, 10)).items


def found(log: MetricsLog, options: SourceOptions | None = None) -> dict[str, dict[tuple[str, ...], Any]]:
    """Return the values by name without its beginning, and by labels without the group."""
    values: dict[str, dict[tuple[str, ...], Any]] = {}
    for sample in query_samples(options or make_options(), log):
        name = sample.family.name.removeprefix("groupkafka_")
        assert sample.labels[0] == "shop"
        assert sample.labels[1:] not in values.setdefault(name, {}), f"{name}{sample.labels} twice"
        values[name][sample.labels[1:]] = sample.value
    return values


@pytest.fixture
def log() -> MetricsLog:
    return MetricsLog(None, "shop", ManualClock(5.0))


@pytest.fixture
def report(log: MetricsLog) -> MemberReport:
    machine = MemberMachine()
    machine.handle(GroupEvent.STARTED)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0, P1))
    return MemberReport("shop", machine, log)


def test_a_query_that_has_just_started_has_all_counters_at_zero(log: MetricsLog) -> None:
    """A counter that first appears with the value 1 has no increase for Prometheus."""
    values = found(log)
    assert values["rebalances_total"] == {(outcome,): 0 for outcome in REBALANCE_OUTCOMES}
    assert values["events_total"] == {(event,): 0 for event in EVENTS}
    assert values["commits_total"] == {("accepted",): 0, ("refused",): 0, ("retried",): 0}
    assert values["batches_read_total"] == {("driver",): 0, ("executors",): 0}
    assert "last_event_timestamp_seconds" not in values
    assert {state for (state,), value in values["state"].items() if value} == {"DOWN"}


def test_what_a_member_does_is_counted(log: MetricsLog, report: MemberReport) -> None:
    log.lineage = "abc"
    report.assigned((P0, P1))
    report.answered(CommitResult(acknowledged=ITEMS))
    report.answered(CommitResult(refused=((ITEMS[0], Refusal.REBALANCE),), reason="rebalance"))
    report.retried()
    report.completed(1_000, 0.3)
    report.completed(1_001, 1_000.0)
    report.released((P0,), HandOver(ITEMS, DrainOutcome.COMPLETE), 1, 0, 0.25)
    report.released((P0,), HandOver(ITEMS, DrainOutcome.DEADLINE), 0, 10, 400.0)
    report.lost((P1,), 7)
    values = found(log)
    assert {state for (state,), value in values["state"].items() if value} == {"JOINED"}
    assert values["info"].keys() == {labels for labels in values["info"] if labels[2] == "abc"}
    assert values["assigned_partitions"] == {(): 2}
    assert values["assignments_total"] == {(): 1}
    assert {outcome for (outcome,), count in values["rebalances_total"].items() if count} == {
        "clean", "deadline", "lost",
    }  # fmt: skip
    drains = values["drain_seconds"][()]
    assert (sum(drains.counts), drains.counts[drains.bounds.index(0.25)], drains.counts[-1]) == (2, 1, 1)
    assert drains.total == 400.25
    assert values["batches_completed_total"] == {(): 2}
    records, seconds = values["batch_records"][()], values["batch_seconds"][()]
    assert dict(zip(records.bounds, records.counts, strict=False))[1_000.0] == 1
    assert dict(zip(records.bounds, records.counts, strict=False))[10_000.0] == 1
    assert (records.total, seconds.total, seconds.counts[-1]) == (2_001, 1_000.3, 1)
    assert values["commits_total"] == {("accepted",): 1, ("refused",): 1, ("retried",): 1}
    assert values["records_repeated_total"] == {(): 17}
    assert values["events_total"][("revoked",)] == 2
    assert values["last_event_timestamp_seconds"][("lost",)] == 1_700_000_005.0


def test_what_the_main_thread_does_is_counted(log: MetricsLog) -> None:
    log.records_lost = 5
    log.batches_read["driver"] += 2
    log.driver_read_bytes += 300
    log.write("commits", behind=True)
    values = found(log)
    assert (values["records_lost_total"], values["driver_read_bytes_total"]) == ({(): 5}, {(): 300})
    assert values["batches_read_total"] == {("driver",): 2, ("executors",): 0}
    assert values["commits_behind"] == {(): 1}
    log.write("commits", behind=False)
    assert found(log)["commits_behind"] == {(): 0}


def test_the_lag_is_that_of_owned_partitions_only(log: MetricsLog) -> None:
    """The lag is measured every 30 s. A partition that was handed over since is another member's."""
    log.owned = frozenset({P0, P1})
    rows = [["orders", 0, 10, 2.5, 60.0], ["orders", 1, 0, None, None]]
    log.write("lag", (P0, P1), lag=rows, total={})
    values = found(log)
    assert values["lag_records"] == {("orders", "0"): 10, ("orders", "1"): 0}
    assert values["lag_seconds"] == {("orders", "0"): 2.5}
    assert values["time_to_data_loss_seconds"] == {("orders", "0"): 60.0}
    log.owned = frozenset({P1})
    assert found(log)["lag_records"] == {("orders", "1"): 0}


def test_the_table_is_complete(log: MetricsLog, report: MemberReport) -> None:
    report.assigned((P0,))
    log.owned = frozenset({P0})
    log.write("lag", (P0,), lag=[["orders", 0, 10, 2.5, 60.0]], total={})
    assert {sample.family for sample in query_samples(make_options(), log)} == set(QUERY_METRICS)
    assert all(family.name.startswith("groupkafka_") for family in QUERY_METRICS)
    assert all(family.labels[0] == "group" for family in QUERY_METRICS)


# --- the port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield int(other.getsockname()[1])


def test_a_free_port_is_logged(log: MetricsLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        port = open_metrics_port(make_options(), 0, log, ManualClock(), print)
    try:
        assert f"metrics for Prometheus: group=shop address=127.0.0.1 port={port.port}" in caplog.text
        with urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10) as answer:
            assert b'groupkafka_batches_completed_total{group="shop"} 0.0\n' in answer.read()
    finally:
        port.close()


def test_a_port_that_stays_in_use_ends_the_query(log: MetricsLog, taken: int) -> None:
    clock = ManualClock()
    begun_s = clock.now_s
    with pytest.raises(OptionError, match=rf"LISTENING_FAILED.*'metricsPort'.*port {taken}: Address already in use"):
        open_metrics_port(make_options(), taken, log, clock, clock.advance)
    assert 10 <= clock.now_s - begun_s < 11


def test_a_port_of_the_query_before_is_waited_for(log: MetricsLog) -> None:
    """A query is stopped and started again. The old one's process may still run when the new one starts."""
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    opened = open_metrics_port(make_options(), port, log, ManualClock(), lambda _: other.close())
    assert opened.port == port
    opened.close()


@pytest.mark.parametrize("address", ["192.0.2.1", "a..b"])
def test_an_address_of_another_machine_or_of_none_is_an_error_at_once(log: MetricsLog, address: str) -> None:
    options = replace(make_options(), metrics_address=address)
    with pytest.raises(OptionError, match=rf"LISTENING_FAILED.*'metricsAddress'.*address '{address}'"):
        open_metrics_port(options, 0, log, ManualClock(), print)


def test_without_the_extra_the_query_names_it(log: MetricsLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "spark_groupsource.prometheus.server", raising=False)
    with pytest.raises(OptionError, match=r"METRICS_NOT_INSTALLED.*'metricsPort'.*'\.\[metrics\]'"):
        open_metrics_port(make_options(), 0, log, ManualClock(), print)
