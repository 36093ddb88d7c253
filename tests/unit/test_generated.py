"""What is generated from tables is not stale."""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import dashboard, dashboard_picture, option_table, reference_pages, states, stop_picture
from spark_groupsource.metrics import COUNTERS, EVENTS, MemberMetrics
from spark_groupsource.options.table import OPTIONS


def test_the_page_of_states_is_up_to_date() -> None:
    assert states.TARGET.exists(), "docs/states.md is missing: run python -m scripts.states"
    written = states.TARGET.read_text(encoding="ascii")
    assert written == states.render(), "docs/states.md is stale: run python -m scripts.states"


def test_the_picture_of_a_stop_is_up_to_date() -> None:
    written = stop_picture.TARGET.read_text(encoding="ascii")
    assert written == stop_picture.render(), "docs/stop.svg is stale: run python -m scripts.stop_picture"
    page = (stop_picture.ROOT / "docs" / "how-to" / "stop.md").read_text(encoding="utf-8")
    grace_s = stop_picture.TIMEOUT_S + stop_picture.STOP_TIMEOUT_S + stop_picture.COMMIT_S
    assert f"{grace_s:.0f} s with the default of `timeout_s`" in " ".join(page.split())


def test_the_picture_of_the_dashboard_has_its_panels() -> None:
    """Its lines are of one run. A panel that has changed since needs a new one."""
    titles = {panel["title"] for panel in json.loads(dashboard.dashboard())["panels"]}
    drawn = {text.text for text in ElementTree.parse(dashboard_picture.TARGET).iter() if text.get("font-weight")}
    assert drawn == titles, "docs/dashboard.svg is stale: run python -m scripts.dashboard_picture on a new run"


def test_the_table_of_the_page_of_options_is_up_to_date() -> None:
    written = option_table.TARGET.read_text(encoding="utf-8")
    assert written == option_table.page(), "docs/reference/options.md is stale: run python -m scripts.option_table"


def test_a_row_of_the_table_shows_the_default() -> None:
    rows = {spec.name: option_table.row(spec) for spec in OPTIONS}
    allowed = "a group name without white space at its ends and without a zero byte"
    assert rows["kafka.group.id"][:3] == ("`kafka.group.id`", allowed, "(required)")
    assert rows["startingOffsets"][2] == "`latest (batch: earliest)`"
    assert rows["failOnDataLoss"][2] == "`true`"
    assert rows["minPartitions"][2] == "-"


def test_an_option_without_a_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {name: options for name, options in option_table.GROUPS.items() if name != "Metrics"}
    monkeypatch.setattr(option_table, "GROUPS", groups | {"Other": ("assign",)})
    with pytest.raises(ValueError, match="assign, metricsAddress, metricsLagIntervalMs, metricsPath, metricsPort"):
        option_table.grouped_reference()


def test_the_table_goes_between_the_markers_and_nowhere_else() -> None:
    text = "before\n<!-- options -->\nold\n<!-- /options -->\nafter\n"
    written = option_table.with_table(text, "| new |")
    assert written == "before\n<!-- options -->\n| new |\n<!-- /options -->\nafter\n"
    assert option_table.with_table(written, "| new |") == written


@pytest.mark.parametrize("path", reference_pages.PAGES, ids=lambda path: path.name)
def test_a_page_of_the_reference_is_up_to_date(path: Path) -> None:
    assert path.exists(), f"{path.name} is missing: run python -m scripts.reference_pages"
    written = path.read_text(encoding="utf-8")
    assert written == reference_pages.PAGES[path](), f"{path.name} is stale: run python -m scripts.reference_pages"


def test_the_page_of_errors_has_all_of_them() -> None:
    page = reference_pages.error_page()
    ids = [one.id for one in vars(reference_pages.errors).values() if isinstance(one, reference_pages.Condition)]
    assert len(ids) > 40
    assert [one for one in ids if page.count(f"\n`{one}`") != 1] == []


def test_the_table_of_events_has_what_the_package_writes() -> None:
    written = set()
    for path in (reference_pages.ROOT / "spark_groupsource").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                first = call.args[0]
                if call.func.attr in {"write", "_write"} and isinstance(first, ast.Constant):
                    written.add(first.value)
    assert written == set(EVENTS)


def test_the_table_of_counters_has_all_of_them() -> None:
    assert set(COUNTERS) == {field.name for field in fields(MemberMetrics)} | {"records_lost"}
