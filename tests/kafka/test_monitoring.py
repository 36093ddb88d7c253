"""A real Prometheus server scrapes two queries and the exporter: every query of the dashboard returns data."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts import dashboard
from tests.checkout import ROOT
from tests.monitoring.conftest import prometheus_programs
from tests.monitoring.prometheus import Prometheus, promtool
from tests.realkafka.cluster import free_ports

from .application import Application
from .exporter_process import ExporterProcess
from .harness import Independent, wait_for
from .test_metrics_port import one, values

__all__ = ["prometheus_programs"]  # a fixture of another module

pytestmark = pytest.mark.kafka

# Queries of the dashboard that return nothing here, and why.
EMPTY = {"groupkafka_standby_partitions": "no strategy of this test has standby members"}
# What Grafana puts in the place of its variables.
CHOSEN = {"$cluster": ".*", "$group": ".*", "$__rate_interval": "20s", "$__range": "10m"}


def expressions() -> list[str]:
    """Return all queries of the dashboard, as Grafana sends them."""
    found = []
    for panel in json.loads(dashboard.dashboard())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in CHOSEN.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def numbers(series: list[dict[str, Any]]) -> list[float]:
    """Return the values that are numbers."""
    return [float(one["value"][1]) for one in series if one["value"][1] != "NaN"]


@contextmanager
def traffic(client: Independent, topic: str) -> Iterator[None]:
    """Produce records all the time."""
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.5):
            client.produce(topic, map(str, range(10)), 2)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(60)


def make_behind(client: Independent, topic: str, group: str) -> None:
    """Make a group without members that is behind, and has lost records."""
    client.create_topic(topic, 1, **{"retention.ms": "3600000"})
    client.produce(topic, map(str, range(10)), 1)
    client.commit(group, {(topic, 0): 1})
    client.delete_records(topic, 0, 4)


@pytest.mark.usefixtures("prometheus_programs")
def test_every_query_of_the_dashboard_returns_data(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    client.create_topic(topic, 2, **{"retention.ms": "3600000"})
    behind = f"{group}-behind"
    make_behind(client, f"{topic}-behind", behind)
    ports = free_ports(2)

    def start(name: str, port: int) -> None:
        application.start_query(name, options | {"metricsPort": str(port), "metricsLagIntervalMs": "1000"})
        wait_for(f"partitions of {name}", lambda: one(values(port), "assigned_partitions") > 0, 90)

    words = ("--group", group, "--group", behind, "--interval", "1", "--cluster-name", "test")
    with ExporterProcess(tmp_path, client.bootstrap_servers, *words) as exporter, traffic(client, topic):
        start("first", ports[0])
        targets = {"queries": ports, "exporter": [exporter.port]}
        rules = ROOT / "conf" / "monitoring" / "alerts.yml"
        with Prometheus(tmp_path / "prometheus", targets, rules) as server:
            wait_for("the server", server.ready, 60, server.log)
            # After the first scrape: it counts from there.
            wait_for("a scrape", lambda: numbers(server.query("groupkafka_drain_seconds_count")), 60, server.log)
            start("second", ports[1])
            check_queries(server)
            check_rules(server, behind)
            wait_for(
                "the lag of the group",
                lambda: numbers(server.query(f'kafka_consumergroup_group_sum_lag{{group="{behind}"}}')) == [6.0],
                30,
            )

            def up() -> bool:
                found = {one["metric"]["job"]: one["value"][1] for one in server.query("min by (job) (up)")}
                return found == {"queries": "1", "exporter": "1"}

            # A busy machine may miss the second that a scrape has.
            wait_for("all targets to be scraped", up, 60, server.log)
        for port in (*ports, exporter.port):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                assert promtool("check", "metrics", given=answer.read().decode()) == (0, "")


def check_queries(server: Prometheus) -> None:
    """Wait until each query has data, but for the reasoned ones. Those must have none: their reason is gone else."""
    for expression in expressions():
        if any(name in expression and "> 0" in expression for name in EMPTY):
            assert server.query(expression) == [], expression
        else:
            wait_for(expression, lambda expression=expression: numbers(server.query(expression)), 60, server.log)
    for variable in json.loads(dashboard.dashboard())["templating"]["list"][1:]:
        (selector, label), *_ = re.findall(r"label_values\((.*), (\w+)\)", variable["definition"])
        count = f"count by ({label}) ({selector})"
        wait_for(variable["name"], lambda count=count: server.query(count), 60, server.log)


def check_rules(server: Prometheus, behind: str) -> None:
    """Check that the server evaluates all rules, and that records that were lost raise their alert."""

    def evaluated() -> bool:
        rules = server.rules()
        assert all(rule["health"] in ("ok", "unknown") for rule in rules), rules
        return bool(rules) and all(rule["health"] == "ok" for rule in rules)

    wait_for("the rules", evaluated, 60, server.log)

    def fired() -> dict[str, Any] | None:
        alerts = {rule["name"]: rule["alerts"] for rule in server.rules()}
        return alerts if any(alert["state"] == "firing" for alert in alerts["GroupLostRecords"]) else None

    # A rule is healthy as soon as it was evaluated, also before there was anything to raise its alert.
    alerts = wait_for("the alert", fired, 60, server.log)
    (lost,) = alerts["GroupLostRecords"]
    assert (lost["state"], lost["labels"]["group"]) == ("firing", behind)
    assert lost["annotations"]["summary"].startswith("3 unread offsets of topic ")
    assert alerts["GroupNotMeasured"] == []
