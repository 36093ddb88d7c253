"""A Spark Connect server in a process of its own, as tests share it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.realkafka.cluster import free_ports

from .harness import wait_for

_SUBMIT = Path(sys.executable).with_name("spark-submit")
_CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "900m",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run a server with this working directory, which gets its tables and its log; return its address."""
    (port,) = free_ports(1)
    conf = _CONF | {"spark.connect.grpc.binding.port": str(port)}
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command = [str(_SUBMIT), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *settings]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
        )
    try:

        def listens() -> bool:
            assert server.poll() is None, (folder / "server.log").read_text(errors="replace")[-6000:]
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        wait_for("the server", listens, 120)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)
