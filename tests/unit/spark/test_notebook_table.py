"""The table in a notebook, and where there is one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource.spark.notebook_table import NotebookTable, notebook_display

BATCH = ("7", "10", "123", "81", "5", "orders[0,2]")


class Shown:
    """Stands in for IPython's display and its handle: keeps every state of the output."""

    def __init__(self) -> None:
        self.states: list[dict[str, str]] = []

    def __call__(self, bundle: dict[str, str], **_: Any) -> Shown:
        self.update(bundle)
        return self

    def update(self, bundle: dict[str, str], **_: Any) -> None:
        self.states.append(bundle)

    def rows(self) -> list[list[str]]:
        """Return the cells of the newest state, without the head."""
        rows = self.states[-1]["text/html"].partition("<tbody>")[2].split("<tr>")[1:]
        return [[cell.partition("</td>")[0] for cell in row.split("<td>")[1:]] for row in rows]


def test_a_row_per_query_with_its_last_batch() -> None:
    shown = Shown()
    table = NotebookTable(shown)
    table.started("1", "orders")
    table.started("2", "refunds")
    table.progressed("1", "orders", BATCH)
    assert shown.rows() == [["orders", "running", *BATCH], ["refunds", "running", *[""] * 6]]
    assert shown.states[-1]["text/plain"] == "orders  running  7  10  123  81  5  orders[0,2]\nrefunds  running"


def test_an_ended_query_keeps_its_last_batch_and_its_error() -> None:
    shown = Shown()
    table = NotebookTable(shown)
    table.progressed("1", "orders", BATCH)
    table.ended("1", "orders", "no topic <script>")
    table.ended("2", "not seen before", "")
    failed, ended = shown.rows()
    assert failed == ["orders", "failed: no topic &lt;script&gt;", *BATCH]
    assert ended == ["not seen before", "ended", *[""] * 6]
    table.started("1", "orders")
    assert shown.rows()[0][1] == "running"


def test_the_oldest_ended_queries_go_and_running_ones_stay() -> None:
    shown = Shown()
    table = NotebookTable(shown)
    table.started("first", "first")
    for number in range(40):
        table.started(str(number), f"query {number}")
        table.ended(str(number), f"query {number}", "")
    names = [name for name, *_ in shown.rows()]
    assert len(names) == 20
    assert (names[0], names[1], names[-1]) == ("first", "query 21", "query 39")


@pytest.mark.parametrize("shell", [None, SimpleNamespace(), SimpleNamespace(kernel=None)])
def test_no_table_outside_of_a_notebook(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert notebook_display() is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook_display() is None
