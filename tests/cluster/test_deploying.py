"""The commands of docs/deploying.md, on a cluster whose own Python has no package.

A block of the page that has a marker comment, <!-- test: name -->, is run here as it is.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml

from tests import spark_archive
from tests.kafka.harness import Independent, wait_for
from tests.kafka.shared_broker import SharedBroker
from tests.realkafka.cluster import free_ports
from tests.sparkcluster.daemons import spark_home
from tests.sparkcluster.sparkcluster import SparkCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "deploying.md"
# More than the driver reads by itself (fastLaneMaxOffsets): the executors have to.
_TOPIC, _RECORDS = "flights", 20_000


def blocks() -> dict[str, str]:
    """Return the page's marked commands by name."""
    found = re.findall(r"<!-- test: (.+?) -->\n```bash\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    return dict(found)


class Shell:
    """Runs blocks of the page, one after the other, in one folder."""

    def __init__(self, folder: Path, cluster: SparkCluster, kafka: SharedBroker) -> None:
        self.folder = folder
        self.cluster = cluster
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        settings = (f'"-D{name}={value}"' for name, value in cluster.conf(cores=2).items())
        self.environment = kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # What makes an application fit on this machine; the page's commands name a file of settings already.
            "SPARK_DRIVER_MEMORY": "600m",
            "SPARK_SUBMIT_OPTS": " ".join([spark_archive.jvm_options(), *settings]),
            "GROUPKAFKA": str(_ROOT),
            "CLUSTER": cluster.master_url,
            "BOOTSTRAP": kafka.bootstrap_servers,
        }

    def run(self, name: str, folder: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a block; return what it printed."""
        done = subprocess.run(
            ["bash", "-euc", blocks()[name]],
            cwd=folder or self.folder, env=self.environment | more, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        (self.folder / "log").write_text(done.stdout + done.stderr)
        return done

    def succeed(self, name: str, **more: str) -> None:
        """Run a block that must succeed."""
        done = self.run(name, **more)
        assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}\n{self.cluster.executor_logs(30)}"


@pytest.fixture(scope="module")
def records(kafka: SharedBroker) -> Independent:
    """Produce the records that all commands read."""
    client = Independent(kafka.bootstrap_servers)
    client.create_topic(_TOPIC, 4)
    client.produce(_TOPIC, (f"no flight {number}" for number in range(_RECORDS)), 4)
    return client


@pytest.fixture(scope="module")
def shell(spark_cluster: SparkCluster, kafka: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return the folder with the environment that the page builds."""
    made = Shell(tmp_path_factory.mktemp("deploying"), spark_cluster, kafka)
    made.succeed("environment")
    return made


def _assert_all_read(client: Independent, group: str, out: Path) -> None:
    # The reader process may commit after the application's end.
    wait_for("the commits", lambda: client.committed(group) == client.ends(_TOPIC), 60)
    assert ds.dataset(out / "flights", partitioning="hive").count_rows() == _RECORDS


def test_one_path_on_all_machines(shell: Shell, records: Independent) -> None:
    shell.succeed("one path")
    _assert_all_read(records, "one-path", shell.folder / "one-path" / "out")


@pytest.fixture(scope="module")
def archive(shell: Shell) -> Path:
    """Return the archive that the page makes of the environment."""
    shell.succeed("archive")
    return shell.folder / "environment.tar.gz"


@pytest.mark.usefixtures("records")
def test_sparks_own_recipe_for_archives_is_one_error_with_the_cure(shell: Shell, archive: Path) -> None:
    """With PYSPARK_DRIVER_PYTHON, as Spark's recipe has it for client mode, executors start a plain Python."""
    folder = shell.folder / "recipe"
    (folder / "driver").mkdir(parents=True)
    (folder / archive.name).symlink_to(archive)
    done = shell.run("submit with the archive", folder, PYSPARK_DRIVER_PYTHON="python3")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "executors start 'python3' (PYSPARK_DRIVER_PYTHON), not './environment/bin/python'" in said, said[-4000:]
    assert "[GROUPKAFKA.EXECUTOR_PACKAGE_MISSING] The Python of an executor" in said, said[-4000:]


def test_an_archive_in_client_mode(shell: Shell, records: Independent, archive: Path) -> None:
    assert archive.stat().st_size < 150 * 2**20, "Spark itself is in it"
    shell.folder.joinpath("environment").rename(shell.folder / "hidden")
    try:
        shell.succeed("submit with the archive")
    finally:
        shell.folder.joinpath("hidden").rename(shell.folder / "environment")
    _assert_all_read(records, "archive", shell.folder / "driver" / "out")


def test_cluster_deploy_mode_is_refused_for_python(shell: Shell) -> None:
    """The page says so: it is Spark that refuses it."""
    command = ["spark-submit", "--master", shell.cluster.master_url, "--deploy-mode", "cluster", "job.py"]
    done = subprocess.run(command, env=shell.environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0
    refusal = "Cluster deploy mode is currently not supported for python applications on standalone clusters"
    assert refusal in done.stdout + done.stderr
    assert refusal in " ".join(_PAGE.read_text().split())


_CONNECT_CLIENT = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
options, out = json.loads(sys.argv[2]), sys.argv[3]
rows = spark.readStream.format("groupkafka").options(**options).load()
writer = rows.writeStream.format("parquet").option("checkpointLocation", options["checkpointLocation"])
query = writer.trigger(availableNow=True).start(out)
assert query.awaitTermination(300), "the query did not end"
print("rows:", spark.read.parquet(out).count())
"""


def test_a_spark_connect_server(shell: Shell, records: Independent) -> None:
    (port,) = free_ports(1)
    log = shell.folder / "connect.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["bash", "-euc", blocks()["connect server"]],
            cwd=shell.folder, env=shell.environment | {"CONNECT_PORT": str(port)}, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        wait_for("the server to listen", lambda: _listens(port, server, log), 120, lambda: log.read_text()[-4000:])
        options = {
            "kafka.bootstrap.servers": shell.environment["BOOTSTRAP"], "kafka.group.id": "connect",
            "subscribe": _TOPIC, "startingOffsets": "earliest",
            "checkpointLocation": str(shell.folder / "connect" / "checkpoint"),
        }  # fmt: skip
        arguments = [f"sc://127.0.0.1:{port}", json.dumps(options), str(shell.folder / "connect" / "out")]
        done = subprocess.run(
            [sys.executable, "-c", _CONNECT_CLIENT, *arguments],
            env=shell.environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:] + log.read_text()[-4000:]
        # Before the server and its reader process are ended.
        wait_for("the commits", lambda: records.committed("connect") == records.ends(_TOPIC), 60)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(120)
    assert f"rows: {_RECORDS}" in done.stdout


def _listens(port: int, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()[-6000:]
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_the_manifests_are_yaml() -> None:
    kinds = [
        document["kind"]
        for text in re.findall(r"```yaml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
        for document in yaml.safe_load_all(text)
    ]
    assert kinds == ["SparkApplication", "StatefulSet", "ScaledObject"]


def test_every_marked_command_is_run_here() -> None:
    run = set(re.findall(r'(?:succeed|blocks\(\))[(\[]"(.+?)"', Path(__file__).read_text()))
    assert set(blocks()) == run
