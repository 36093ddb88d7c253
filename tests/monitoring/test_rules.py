"""The alert rules of conf/monitoring, checked by promtool, and the metrics that rules and dashboard name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from scripts import dashboard
from spark_groupsource.cli.exporter.samples import GROUP_METRICS
from spark_groupsource.sidecars.metrics_port import QUERY_METRICS
from tests.checkout import ROOT

from .prometheus import promtool

RULES = ROOT / "conf" / "monitoring" / "alerts.yml"
TESTS = Path(__file__).with_name("alerts_test.yml")
NAME = re.compile(r"\b(?:kafka_consumergroup|kafka_partition|groupkafka)_[a-z_]+\b")


def known() -> set[str]:
    found = set()
    for family in (*GROUP_METRICS, *QUERY_METRICS):
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {family.name + end for end in ends}
    return found


@pytest.mark.usefixtures("prometheus_programs")
def test_promtool_accepts_the_rules() -> None:
    assert promtool("check", "rules", str(RULES))[0] == 0


@pytest.mark.usefixtures("prometheus_programs")
def test_each_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    for path in (RULES, TESTS):
        shutil.copy(path, tmp_path)
    code, said = promtool("test", "rules", TESTS.name, cwd=tmp_path)
    assert code == 0, said
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    cases = re.findall(r"alertname: (\w+)(, exp_alerts: \[\])?", TESTS.read_text())
    assert {name for name, silent in cases if silent} == {name for name, silent in cases if not silent} == set(alerts)


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    rules = "\n".join(line for line in RULES.read_text().splitlines() if not line.lstrip().startswith("#"))
    assert set(NAME.findall(rules)) <= known()
    assert set(NAME.findall(dashboard.dashboard())) - {"groupkafka_info"} <= known()


@pytest.mark.usefixtures("prometheus_programs")
def test_the_dashboard_shows_a_loss_before_the_first_scrape(tmp_path: Path) -> None:
    """The counter never rises then."""
    queries = re.findall(r'"expr": "(.*records_lost_total.*)"', dashboard.dashboard())
    (query,) = (json.loads(f'"{text}"').replace("$group", ".*").replace("$__rate_interval", "5m") for text in queries)
    name = 'groupkafka_records_lost_total{group="shop"}'
    expected = {"labels": '{group="shop"}', "value": 700}
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": "700x20"}],
        "promql_expr_test": [{"expr": query, "eval_time": "10m", "exp_samples": [expected]}],
    }
    (tmp_path / "case.yml").write_text(json.dumps({"tests": [case]}))
    code, said = promtool("test", "rules", "case.yml", cwd=tmp_path)
    assert code == 0, said


def test_the_dashboard_is_up_to_date() -> None:
    assert dashboard.TARGET.read_text(encoding="utf-8") == dashboard.dashboard(), "run python -m scripts.dashboard"


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(dashboard.dashboard())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & places, panel["title"]
        places |= cells
        assert at["x"] + at["w"] <= 24
