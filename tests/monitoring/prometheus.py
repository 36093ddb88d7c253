"""A real Prometheus server: where its programs come from, and one that scrapes ports of this machine.

The programs `prometheus` and `promtool` are taken from the directory in GROUPKAFKA_PROMETHEUS, from PATH, or from
Debian's package `prometheus`: it is downloaded once with apt (no root needed), unpacked into the user's cache directory
and not installed. Elsewhere than on Debian and Ubuntu, install Prometheus.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.realkafka.cluster import free_ports
from tests.realkafka.jars import cache_dir

_PROGRAMS = ("prometheus", "promtool")
_FETCH_TIMEOUT_S = 300.0  # 20 MB
# Seconds between two scrapes.
SCRAPE_S = 1


class PrometheusError(RuntimeError):
    """Prometheus could not be had or started; the text says why."""


def programs() -> Path:
    """Return the directory of Prometheus's programs. Raises `PrometheusError` with what was tried."""
    given = os.environ.get("GROUPKAFKA_PROMETHEUS")
    if given:
        if not _has_programs(Path(given)):
            raise PrometheusError(f"GROUPKAFKA_PROMETHEUS={given}: not both of {_PROGRAMS} are in it")
        return Path(given)
    on_path = shutil.which("promtool")
    if on_path and _has_programs(Path(on_path).parent):
        return Path(on_path).parent
    target = cache_dir() / "prometheus"
    if not _has_programs(target):
        _fetch(target)
    return target


def _has_programs(folder: Path) -> bool:
    return all((folder / name).exists() for name in _PROGRAMS)


def _fetch(target: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise PrometheusError("no Prometheus in PATH, and this is no Debian or Ubuntu: set GROUPKAFKA_PROMETHEUS")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        # Lists of its own: those of the machine may be missing or old, and need root.
        own = Path(folder, "apt")
        (own / "lists" / "partial").mkdir(parents=True)
        (own / "cache" / "archives" / "partial").mkdir(parents=True)
        lists = (
            "-o",
            f"Dir::State::Lists={own}/lists",
            "-o",
            f"Dir::Cache={own}/cache",
            "-o",
            "APT::Sandbox::User=root",
        )
        said = ""
        for options in ((), lists):
            if options:
                said += _run(["apt-get", *options, "update"], folder)
            said += _run(["apt-get", *options, "download", "prometheus"], folder)
            packages = list(Path(folder).glob("prometheus_*.deb"))
            if packages:
                break
        else:
            raise PrometheusError(f"apt-get download prometheus failed:\n{said[-2000:]}")
        _run(["dpkg-deb", "-x", str(packages[0]), f"{folder}/files"], folder)
        programs = Path(folder, "files", "usr", "bin")
        if not _has_programs(programs):
            raise PrometheusError(f"{packages[0].name} does not have {_PROGRAMS}")
        try:
            programs.rename(target)
        except OSError:
            # Another process was faster.
            if not _has_programs(target):
                raise


def _run(command: list[str], folder: str) -> str:
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S, cwd=folder
    )  # fmt: skip
    return run.stdout + run.stderr


def promtool(*arguments: str, given: str | None = None, cwd: Path | None = None) -> tuple[int, str]:
    """Run promtool; return its exit code and what it said."""
    run = subprocess.run(
        [programs() / "promtool", *arguments],
        input=given, capture_output=True, text=True, check=False, timeout=120, cwd=cwd,
    )  # fmt: skip
    return run.returncode, run.stdout + run.stderr


class Prometheus:
    """A server that scrapes ports of this machine every second; a context manager that ends it."""

    def __init__(self, folder: Path, targets: Mapping[str, list[int]], rules: Path) -> None:
        """`targets` are the ports of each job."""
        folder.mkdir(parents=True, exist_ok=True)
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for job, ports in targets.items()
        ]
        times = {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s", "evaluation_interval": "1s"}
        # JSON is YAML.
        config = folder / "prometheus.yml"
        config.write_text(json.dumps({"global": times, "rule_files": [str(rules)], "scrape_configs": jobs}))
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    programs() / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
                ],
                stdout=log, stderr=log,
            )  # fmt: skip

    def __enter__(self) -> Prometheus:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(60)

    def log(self) -> str:
        """Return what the server said."""
        return self._log.read_text(errors="replace")[-4000:]

    def ready(self) -> bool:
        """Return whether the server answers; fail if it has ended."""
        if self._process.poll() is not None:
            raise PrometheusError(f"the server has ended:\n{self.log()}")
        try:
            self._get("/-/ready")
        except OSError:
            return False
        return True

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now. Raises `PrometheusError` if the server refuses it."""
        try:
            answer = json.loads(self._get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(f"{expression}: {error.read().decode()}") from None
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return all rules, with their health and state."""
        groups = json.loads(self._get("/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._url}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text
