"""The commands of docs/deploying.md, on a standalone cluster and a YARN whose own Python has no package.

A block of the page that has a marker comment, <!-- test: name -->, is run here as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
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
from tests.sparkcluster.yarn import Yarn

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
    """Runs blocks of the page, one after the other, in one folder.

    settings: of Spark, what makes an application fit on this machine; the page's commands name a file of settings
        already.
    evidence: returns the logs of the cluster, for a command that fails.
    more: environment variables.
    """

    def __init__(
        self, folder: Path, kafka: SharedBroker, settings: Mapping[str, str], evidence: Callable[[], str], **more: str
    ) -> None:
        self.folder, self._evidence = folder, evidence
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
        options = (f'"-D{name}={value}"' for name, value in settings.items())
        self.environment = (
            kept
            | more
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
                "SPARK_HOME": str(spark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DRIVER_MEMORY": "600m",
                "SPARK_SUBMIT_OPTS": " ".join([spark_archive.jvm_options(), *options]),
                "GROUPKAFKA": str(_ROOT),
                "BOOTSTRAP": kafka.bootstrap_servers,
            }
        )

    def run(self, name: str, folder: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a block; return what it printed."""
        done = subprocess.run(
            ["bash", "-euc", blocks()[name]],
            cwd=folder or self.folder, env=self.environment | more, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        (self.folder / "log").write_text(done.stdout + done.stderr)
        return done

    @contextlib.contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a block beside the caller, and end it after that."""
        with (self.folder / "log").open("wb") as log:
            started = subprocess.Popen(
                ["bash", "-euc", blocks()[name]], cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        try:
            yield started
        finally:
            started.terminate()
            started.wait(120)

    def succeed(self, name: str, **more: str) -> None:
        """Run a block that must succeed."""
        done = self.run(name, **more)
        assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-6000:]}\n{self._evidence()}"


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
    folder, settings = tmp_path_factory.mktemp("deploying"), spark_cluster.conf(cores=2)
    made = Shell(folder, kafka, settings, spark_cluster.executor_logs, CLUSTER=spark_cluster.master_url)
    made.succeed("environment")
    return made


def _assert_all_read(client: Independent, group: str, out: Path) -> None:
    # The reader process may commit after the application's end.
    wait_for("the commits", lambda: client.committed(group) == client.ends(_TOPIC), 60)
    rows = ds.dataset(out / "flights", partitioning="hive").count_rows()
    assert rows == sum(client.ends(_TOPIC).values()) >= _RECORDS


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


@pytest.mark.usefixtures("archive")
def test_the_doctor_asks_executors_that_use_an_archive(shell: Shell) -> None:
    done = shell.run("doctor with the archive")
    said = f"{done.stdout}{done.stderr[-4000:]}"
    assert done.returncode == 0, said
    assert re.search(r"ok +executors +[12] of [12] have answered", said), said
    assert len(set(re.findall(r"ok +versions .*?(pyspark [\d.]+)", said))) == 1, said


def test_cluster_deploy_mode_is_refused_for_python(shell: Shell) -> None:
    """The page says so: it is Spark that refuses it."""
    command = ["spark-submit", "--master", shell.environment["CLUSTER"], "--deploy-mode", "cluster", "job.py"]
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


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with Yarn(tmp_path_factory.mktemp("yarn")) as running:
        yield running


@pytest.fixture
def yarn_shell(shell: Shell, archive: Path, yarn: Yarn, kafka: SharedBroker, tmp_path: Path) -> Shell:
    """Return a folder with the page's archive, also unpacked for a driver in client mode."""
    (tmp_path / archive.name).symlink_to(archive)
    (tmp_path / "driver").symlink_to(shell.folder / "driver")
    settings = {
        # Without it each submit uploads all of Spark.
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.executor.instances": "1", "spark.executor.cores": "2", "spark.executor.memory": "512m",
        "spark.yarn.stagingDir": str(tmp_path), "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false",
    }  # fmt: skip
    return Shell(tmp_path, kafka, settings, yarn.logs, **yarn.environment)


def test_yarn_client_mode(yarn_shell: Shell, records: Independent) -> None:
    yarn_shell.succeed("yarn client mode")
    _assert_all_read(records, "yarn-client", yarn_shell.folder / "driver" / "yarn" / "out")


def test_yarn_cluster_mode_goes_on_after_a_kill_of_its_driver_and_stops(
    yarn_shell: Shell, yarn: Yarn, records: Independent
) -> None:
    group, out = "yarn", yarn_shell.folder / "cluster" / "out" / "flights"
    with yarn_shell.running("yarn cluster mode") as submit:
        wait_for("all records", lambda: records.committed(group) == records.ends(_TOPIC), 240, yarn.logs)
        (driver,) = yarn.drivers()
        os.kill(driver, signal.SIGKILL)
        wait_for("YARN's second attempt", lambda: yarn.drivers() not in ([], [driver]), 120, yarn.logs)
        records.produce(_TOPIC, (f"no flight {number}" for number in range(_RECORDS, _RECORDS + 400)), 4)
        wait_for("the new records", lambda: records.committed(group) == records.ends(_TOPIC), 240, yarn.logs)
        yarn_shell.succeed("yarn stop")
        assert submit.wait(120) == 0, yarn.logs()
    assert yarn.newest()["finalStatus"] == "SUCCEEDED", yarn.logs()
    columns = ds.dataset(out, partitioning="hive").to_table(["partition", "offset"]).columns
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert len(rows) == len(set(rows)) == sum(records.ends(_TOPIC).values())


def test_yarn_kill_of_an_idle_query_ends_its_membership_at_once(
    yarn_shell: Shell, yarn: Yarn, records: Independent
) -> None:
    with yarn_shell.running("yarn cluster mode"):
        wait_for("a member", lambda: records.members("yarn") != [], 240, yarn.logs)
        wait_for("all records", lambda: not records.lag("yarn", _TOPIC), 240, yarn.logs)
        yarn.kill_newest()
        # The session timeout is 45 s.
        wait_for("the end of the membership", lambda: not records.members("yarn"), 30, yarn.logs)


def test_the_manifests_are_yaml() -> None:
    kinds = [
        document["kind"]
        for text in re.findall(r"```yaml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
        for document in yaml.safe_load_all(text)
    ]
    assert kinds == ["SparkApplication", "StatefulSet", "ScaledObject"]


def test_every_marked_command_is_run_here() -> None:
    run = set(re.findall(r'(?:succeed|run|running|blocks\(\))[(\[]"(.+?)"', Path(__file__).read_text()))
    assert set(blocks()) == run
