"""The command `exporter` as a process of its own, and what it serves."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests import checkout

from .harness import wait_for

Scraped = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scrape(port: int) -> Scraped:
    """Return the values at a port by metric name and labels, parsed by prometheus_client."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found: Scraped = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


class ExporterProcess:
    """A running exporter on a free port; a context manager that ends it."""

    def __init__(self, folder: Path, servers: str, *words: str) -> None:
        self._out, self._err = folder / "exporter.out", folder / "exporter.err"
        command = [sys.executable, "-m", "spark_groupsource", "exporter", "--bootstrap-servers", servers, "--port", "0"]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen([*command, *words], stdout=out, stderr=err, cwd=checkout.ROOT)
        wait_for("the exporter's port", lambda: self.alive() and "/metrics" in self._out.read_text(), 30, self.said)
        self.port = int(self._out.read_text().partition("127.0.0.1:")[2].partition("/")[0])

    def __enter__(self) -> ExporterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)

    def alive(self) -> bool:
        """Return True; fail if the process has ended."""
        assert self.process.poll() is None, self.said()
        return True

    def said(self) -> str:
        """Return what it wrote to stderr."""
        return self._err.read_text()

    def scrape(self) -> Scraped:
        """Return the values that it serves now."""
        self.alive()
        return scrape(self.port)

    def of_group(self, name: str, group: str, scraped: Scraped | None = None) -> dict[tuple[str, int], float]:
        """Return a metric of a group by topic and partition, as it is now or in an earlier answer."""
        found = {}
        for labels, value in (scraped or self.scrape()).get(f"kafka_consumergroup_group_{name}", {}).items():
            given = dict(labels)
            if given["group"] == group:
                found[given.get("topic", ""), int(given.get("partition", -1))] = value
        return found

    def up(self, scraped: Scraped | None = None) -> dict[str, float]:
        """Return which groups are measured, now or in an earlier answer."""
        found = (scraped or self.scrape()).get("kafka_consumergroup_group_up", {})
        return {dict(labels)["group"]: at for labels, at in found.items()}

    def stop(self) -> int:
        """Stop it as a supervisor does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)
