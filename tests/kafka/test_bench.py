"""The benchmark runs: every kind of case once, tiny. No ratio is asserted."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests import checkout
from tests.benchmarks.peerjars import peer_jars
from tests.benchmarks.plan import GROUPS
from tests.benchmarks.processes import is_available
from tests.realkafka.jars import find_java

from .harness import need_kafka, run_script, skipped

pytestmark = pytest.mark.kafka


@pytest.mark.timeout(900)
def test_every_case_of_the_benchmark_runs(tmp_path: Path) -> None:
    need_kafka()
    with skipped("without Spark's own Kafka source there is nothing to compare with"):
        peer_jars(find_java())
    results, chart = tmp_path / "bench.json", tmp_path / "bench.svg"
    command = checkout.command("tests.benchmarks", "--smoke", "--fix-startup", "--json", results, "--chart", chart)
    code, text = run_script(command, tmp_path / "output", 840)
    assert code == 0, text[-20_000:]
    found = json.loads(results.read_text())
    assert found["failures"] == []
    wanted = set(GROUPS) if is_available() else set(GROUPS) - {"memory"}
    for source in ("groupkafka", "kafka"):
        assert {one["group"] for one in found["series"] if one["source"] == source} == wanted
    bare = wanted & {"query", "memory", "shortwait", "start"}
    assert {one["group"] for one in found["series"] if one["source"] == "bare"} == bare
    assert ElementTree.parse(chart).getroot().tag == "{http://www.w3.org/2000/svg}svg"
