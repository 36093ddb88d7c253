"""Option metricsPort: what Prometheus can read of running queries, and when the port is open."""

from __future__ import annotations

import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.realkafka.cluster import free_ports

from .application import Application
from .exporter_process import Scraped, scrape
from .harness import Independent, wait_for
from .holding import Events

pytestmark = pytest.mark.kafka


def values(port: int) -> Scraped:
    """Return what a query's port shows; nothing while it is not open."""
    try:
        return scrape(port)
    except urllib.error.HTTPError:
        raise
    except OSError:
        return {}


def one(found: Scraped, name: str, **labels: str) -> float:
    """Return the only value with these labels; 0 without one."""
    wanted = labels.items()
    (value,) = [at for given, at in found.get(f"groupkafka_{name}", {}).items() if wanted <= dict(given).items()] or [0]
    return value


def test_two_queries_of_an_application_have_two_ports_with_their_own_counters(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """A handover is counted at the port of the member that hands over; the file of metricsPath has the same."""
    client.create_topic(topic, 2, **{"retention.ms": "3600000"})
    ports = dict(zip(("first", "second"), free_ports(2), strict=True))
    seen = Events(tmp_path, "first")

    def start(name: str, **more: Any) -> Any:
        chosen = {"metricsPort": str(ports[name]), "metricsLagIntervalMs": "200"}
        return application.start_query(name, options | chosen | more)

    first = start("first", **seen.options)
    wait_for("two partitions", lambda: one(values(ports["first"]), "assigned_partitions") == 2, 60, seen.tail)
    client.produce(topic, map(str, range(20)), 2)
    first.wait_for_records(client.records(topic))
    second = start("second")
    wait_for("a partition", lambda: one(values(ports["second"]), "assigned_partitions") == 1, 60, seen.tail)
    client.produce(topic, map(str, range(20)), 2)
    wait_for("all records", lambda: client.records(topic) <= (first.records() + second.records()).keys(), 60, seen.tail)

    def settled() -> tuple[Scraped, Scraped, dict[str, Any]] | None:
        """Return both ports and the file once all records are counted: the sink has them before that.

        A batch is counted before its line is in the file, so the two are compared only when they agree.
        """
        found, other, counters = values(ports["first"]), values(ports["second"]), seen.metrics()
        counted = sum(one(port, "batch_records_sum") for port in (found, other)) >= 40
        done = all("groupkafka_lag_records" in port and one(port, "lag_records") == 0 for port in (found, other))
        committed = one(found, "commits_total", result="accepted") >= 3
        written = counters["batches_completed"] == one(found, "batches_completed_total")
        return (found, other, counters) if counted and done and committed and written else None

    found, other, counters = wait_for("both ports and the file to settle", settled, 60, seen.tail)
    assert one(found, "rebalances_total", outcome="clean") == counters["rebalances"]["clean"] == 1
    assert one(found, "drain_seconds_count") == 1
    assert one(found, "batches_completed_total") == counters["batches_completed"]
    assert one(found, "batch_records_sum") == 30
    assert one(other, "batch_records_sum") == 10
    assert one(other, "rebalances_total", outcome="clean") == 0
    assert one(found, "state", state="JOINED") == 1
    assert {dict(labels)["group"] for labels in found["groupkafka_info"]} == {group}
    readers = {reader: one(found, "batches_read_total", reader=reader) for reader in ("driver", "executors")}
    assert sum(readers.values()) > 0
    # With the fast lane, too, the driver leaves a batch that takes it too long to the executors.
    assert options["fastLaneMaxOffsets"] != "0" or readers["driver"] == 0
    assert readers["driver"] == 0 or one(found, "driver_read_bytes_total") > 0
    first.stop()
    wait_for("the port's end", lambda: not values(ports["first"]), 15, seen.tail)
    assert one(values(ports["second"]), "info") == 1
