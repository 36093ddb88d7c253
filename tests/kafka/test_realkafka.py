"""The real broker that the other tests of this directory stand on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests import checkout
from tests.realkafka import jars
from tests.realkafka.realkafka import RealKafka, RealKafkaError, find_java

from .harness import check_commands, wait_for

pytestmark = pytest.mark.kafka

_WAIT_S = 30.0


def _answers(servers: str, timeout_s: float) -> bool:
    settings = {"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 300}
    try:
        return bool(AdminClient(settings).list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def _alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    run = subprocess.run(["ps", "-p", str(pid), "-o", "stat="], capture_output=True, text=True, check=False)
    return run.stdout.strip() not in {""} and not run.stdout.strip().startswith("Z")


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    cluster = RealKafka(run_dir=run_dir, properties={"num.io.threads": "many"})
    with pytest.raises(RealKafkaError, match=r"num\.io\.threads"):
        cluster.start()
    assert not run_dir.exists()


def test_wrong_uses_say_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker whose cluster id begins with a dash."""
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(bytes=b"\xf8" + bytes(15)))
    with RealKafka() as cluster:
        assert _answers(cluster.bootstrap_servers, _WAIT_S)
        with pytest.raises(RealKafkaError, match="no broker 2: the ids are 1 to 1"):
            cluster.kill_broker(2)
        with pytest.raises(RealKafkaError, match="broker 1 is running already"):
            cluster.start_broker(1)
    with pytest.raises(RealKafkaError, match="not running"):
        _ = RealKafka().bootstrap_servers


def test_brokers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    program = (
        "import sys, time; from pathlib import Path; from tests.realkafka.realkafka import RealKafka\n"
        f"kafka = RealKafka(run_dir=Path({str(run_dir)!r})); kafka.start()\n"
        "print(kafka._cluster.brokers[0].pid, flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=checkout.ROOT)
    try:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert _alive(broker)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=_WAIT_S)
    wait_for("the broker to end after its owner", lambda: not _alive(broker), _WAIT_S)
    wait_for("the data to be removed", lambda: not run_dir.exists(), _WAIT_S)


def test_the_command_line_starts_shows_and_stops(tmp_path: Path) -> None:
    check_commands(
        "kafka", tmp_path / "run", "bootstrap.servers=127.0.0.1:", answers=partial(_answers, timeout_s=_WAIT_S)
    )


def _run_script(run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(checkout.ROOT / "scripts" / "kafka"), *arguments, "--run-dir", str(run_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_the_command_line_starts_a_broker_with_a_login_and_topics(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    started = _run_script(run_dir, "start", "--sasl", "--topic", "orders:4", "--topic", "refunds")
    try:
        assert started.returncode == 0, started.stderr
        settings = dict(line.split("=", 1) for line in started.stdout.splitlines())
        topics = AdminClient(settings).list_topics(timeout=_WAIT_S).topics
        assert {name: len(topic.partitions) for name, topic in topics.items()} == {"orders": 4, "refunds": 1}
        assert not _answers(settings["bootstrap.servers"], 2.0), "a client without a login"
        file = run_dir / "client.properties"
        assert (file.read_text(), file.stat().st_mode & 0o077) == (started.stdout, 0)
        for name, value in settings.items():
            assert f'.option("kafka.{name}", "{value}")' in started.stderr
        assert started.stdout in _run_script(run_dir, "status").stdout
    finally:
        stopped = _run_script(run_dir, "stop")
    assert stopped.stdout == f"Kafka is stopped. Deleted: all topics, records and offsets ({run_dir})\n"
    assert not run_dir.exists()


def test_a_second_start_creates_the_missing_topics(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    started = _run_script(run_dir, "start", "--topic", "orders:4")
    try:
        again = _run_script(run_dir, "start", "--topic", "orders:4", "--topic", "events:2", "--topic", "refunds")
        assert (again.returncode, again.stdout) == (0, started.stdout), again.stderr
        assert "topic orders: exists already, with 4 partitions" in again.stderr
        for arguments, error in (
            (("orders:3",), "topic orders exists, and has 4 partitions, not 3"),
            (("payments", "--sasl"), "Kafka is running already, without a login"),
        ):
            refused = _run_script(run_dir, "start", "--topic", *arguments)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert error in refused.stderr
        admin = AdminClient({"bootstrap.servers": again.stdout.strip().partition("=")[2]})
        topics = {name: len(topic.partitions) for name, topic in admin.list_topics(timeout=_WAIT_S).topics.items()}
        assert topics == {"orders": 4, "events": 2, "refunds": 1}
    finally:
        _run_script(run_dir, "stop")


def test_the_fixture_on_the_page_about_testing_gives_a_broker(tmp_path: Path) -> None:
    page = (checkout.ROOT / "docs" / "how-to" / "test-your-pipeline.md").read_text(encoding="utf-8")
    (pasted,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "kafka_address" in code)
    # As in most projects.
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(pasted, encoding="utf-8")
    (tests / "test_it.py").write_text(
        "from confluent_kafka.admin import AdminClient\n"
        "def test_it(kafka_address):\n"
        "    admin = AdminClient({'bootstrap.servers': kafka_address})\n"
        "    assert len(admin.list_topics(timeout=30).topics['orders'].partitions) == 4\n",
        encoding="utf-8",
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:groupkafka", "--rootdir", str(tmp_path), "tests"],
        cwd=tmp_path,
        env=os.environ | {"GROUPKAFKA_CHECKOUT": str(checkout.ROOT)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "1 passed" in run.stdout, run.stdout + run.stderr


def test_the_command_line_refuses_what_cannot_be(tmp_path: Path) -> None:
    old = _run_script(tmp_path / "run", "start", "--sasl", "--version", "3.4.1")
    assert (old.returncode, old.stderr.splitlines()[-1]) == (
        1,
        "scripts/kafka: --sasl needs Kafka 3.5 or newer, not 3.4.1",
    )
    topic = _run_script(tmp_path / "run", "start", "--topic", "orders:none")
    assert topic.returncode == 2
    assert "'orders:none' is not NAME:PARTITIONS, such as orders:4" in topic.stderr


def test_a_foreign_process_with_our_pid_is_left_alone(tmp_path: Path) -> None:
    from tests.realkafka.cluster import Broker, Cluster

    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        cluster = Cluster(tmp_path, [Broker(1, 1, 2, pid=foreign.pid)])
        assert not cluster.alive(cluster.brokers[0])
        cluster.kill(cluster.brokers)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(_WAIT_S)


def test_an_old_java_is_refused_with_what_was_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "bin"
    home.mkdir()
    fake = home / "java"
    fake.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setattr(jars, "_java_candidates", lambda: iter([("PATH", fake)]))
    with pytest.raises(RealKafkaError, match=r"needs Java 17 or newer \(PATH: .* is Java 11\)"):
        find_java()


def test_a_directory_without_kafka_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPKAFKA_KAFKA_JARS", str(tmp_path))
    with pytest.raises(RealKafkaError, match="GROUPKAFKA_KAFKA_JARS="):
        jars.fetch_jars(find_java())
