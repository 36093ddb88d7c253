"""A YARN of one ResourceManager and one NodeManager on 127.0.0.1, as processes of their own.

Both run from the jars of Hadoop's test cluster, which are fetched once; Hadoop's client is PySpark's. They end with the
`with` block. Files, and the logs of all containers, are in a folder that the caller gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.realkafka import ivy, rundir
from tests.realkafka.cluster import free_ports
from tests.realkafka.jars import cache_dir, find_java, say
from tests.realkafka.s3jars import HADOOP_VERSION
from tests.sparkcluster.daemons import SparkClusterError, process_table, wait_until

_MODULES = (
    ivy.Module("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
    ivy.Module("org.bouncycastle", "bcprov-jdk18on", "1.82"),
    ivy.Module("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    ivy.Module("org.bouncycastle", "bcutil-jdk18on", "1.82"),
)
_FETCH_TIMEOUT_S = 600.0  # 64 MB; 30 s on a good line
_START_TIMEOUT_S = 120.0
_YARN = "org.apache.hadoop.yarn.server"
_DAEMONS = {
    "resourcemanager": f"{_YARN}.resourcemanager.ResourceManager",
    "nodemanager": f"{_YARN}.nodemanager.NodeManager",
}
_DRIVER_CLASS = "org.apache.spark.deploy.yarn.ApplicationMaster"
_HOST = "127.0.0.1"


class Yarn(rundir.Owner):
    """The two daemons; `memory_mb` is what their containers may have in all. Errors are SparkClusterError."""

    def __init__(self, folder: Path, memory_mb: int = 6144) -> None:
        self._folder, self._memory_mb = folder, memory_mb
        self._processes: list[subprocess.Popen[bytes]] = []
        self._web = ""

    @property
    def environment(self) -> dict[str, str]:
        """What `spark-submit --master yarn` needs."""
        return {"HADOOP_CONF_DIR": str(self._folder / "conf"), "JAVA_HOME": str(find_java().parent.parent)}

    def start(self) -> None:
        """Start both daemons, and wait until the node offers its memory."""
        say("starting YARN")
        self._write_settings()
        for name in _DAEMONS:
            self._processes.append(self._spawn(name))
        try:
            wait_until("YARN's node", _START_TIMEOUT_S, self._ready, self._evidence)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End both daemons; their containers end before the NodeManager does."""
        for one in reversed(self._processes):
            one.send_signal(signal.SIGTERM)
            try:
                one.wait(60)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._processes.clear()

    def newest(self) -> dict[str, Any]:
        """Return the ResourceManager's description of the newest application."""
        applications = self._get("/ws/v1/cluster/apps")["apps"]["app"]
        found: dict[str, Any] = max(applications, key=lambda one: one["startedTime"])
        return found

    def kill_newest(self) -> None:
        """Do to the newest application what `yarn application -kill` does."""
        one = self.newest()
        request = urllib.request.Request(
            f"{self._web}/ws/v1/cluster/apps/{one['id']}/state?user.name={one['user']}",
            data=json.dumps({"state": "KILLED"}).encode(), headers={"Content-Type": "application/json"}, method="PUT",
        )  # fmt: skip
        urllib.request.urlopen(request, timeout=30).close()

    def drivers(self) -> list[int]:
        """Return the pids of the JVMs of the newest application's drivers in cluster mode."""
        of = self.newest()["id"]
        return [
            one.pid for one in process_table()
            if one.command.split(None, 1)[0].endswith("/java") and _DRIVER_CLASS in one.command and of in one.command
        ]  # fmt: skip

    def logs(self) -> str:
        """Return the ends of what the newest application's containers have printed."""
        files = sorted(self._folder.joinpath("containers", self.newest()["id"]).rglob("std*"))
        return "".join(f"\n{one.parent.name}/{one.name}: {rundir.log_tail(one, 30)}" for one in files)

    def _ready(self) -> bool:
        for one in self._processes:
            if one.poll() is not None:
                raise SparkClusterError(f"a daemon of YARN has ended with {one.returncode}{self._evidence()}")
        with contextlib.suppress(OSError):
            return bool(self._get("/ws/v1/cluster/metrics")["clusterMetrics"]["activeNodes"])
        return False

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._web}{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def _evidence(self) -> str:
        return "".join(f"\n{name}: {rundir.log_tail(self._folder / f'{name}.log', 20)}" for name in _DAEMONS)

    def _spawn(self, name: str) -> subprocess.Popen[bytes]:
        jars = [self._folder / "conf", *sorted(_jars().glob("*.jar")), ivy.pyspark_jars() / "*"]
        command = [str(find_java()), "-Xmx384m", "-cp", os.pathsep.join(map(str, jars)), _DAEMONS[name]]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=self._folder, env=kept | self.environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )  # fmt: skip

    def _write_settings(self) -> None:
        conf = self._folder / "conf"
        conf.mkdir(parents=True)
        addresses = [f"{_HOST}:{port}" for port in free_ports(8)]
        self._web = f"http://{addresses[0]}"
        names = (
            "resourcemanager.webapp.address", "resourcemanager.address", "resourcemanager.scheduler.address",
            "resourcemanager.resource-tracker.address", "resourcemanager.admin.address", "nodemanager.address",
            "nodemanager.localizer.address", "nodemanager.webapp.address",
        )  # fmt: skip
        yarn = dict(zip(names, addresses, strict=True)) | {
            "nodemanager.local-dirs": f"{self._folder}/local",
            "nodemanager.log-dirs": f"{self._folder}/containers",
            # Kept after the application's end, for a test that fails.
            "nodemanager.delete.debug-delay-sec": "600",
            "nodemanager.resource.memory-mb": str(self._memory_mb),
            "nodemanager.resource.cpu-vcores": "16",
            "nodemanager.vmem-check-enabled": "false",
            "nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
            "scheduler.minimum-allocation-mb": "256",
            # Of the memory that drivers of cluster mode may have together.
            "scheduler.capacity.maximum-am-resource-percent": "1.0",
            "scheduler.capacity.root.queues": "default",
            "scheduler.capacity.root.default.capacity": "100",
        }
        (conf / "yarn-site.xml").write_text(_settings({f"yarn.{name}": value for name, value in yarn.items()}))
        (conf / "capacity-scheduler.xml").write_text((conf / "yarn-site.xml").read_text())
        (conf / "core-site.xml").write_text(_settings({"fs.defaultFS": "file:///"}))


def _settings(values: dict[str, str]) -> str:
    lines = (f"<property><name>{key}</name><value>{escape(value)}</value></property>" for key, value in values.items())
    return f"<configuration>{''.join(lines)}</configuration>"


def _jars() -> Path:
    target = cache_dir() / f"yarn-{HADOOP_VERSION}"
    if not target.exists():
        say(f"Fetching YARN {HADOOP_VERSION} (64 MB, once; about 30 s) into {target} ...")
        try:
            ivy.fetch(find_java(), target, _MODULES, _FETCH_TIMEOUT_S)
        except ivy.IvyError as error:
            raise SparkClusterError(str(error)) from error
    return target
