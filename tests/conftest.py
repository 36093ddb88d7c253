"""What all tests share: Spark's workers use this interpreter, and everything stays on loopback."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

# Without it Spark's workers are whatever python3 is on the path, and "fail to connect back".
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Half of what a short-lived JVM computes is its optimizing compiler. The queries in processes of their own inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
# Before any JVM starts, because its processes inherit it: where tests hold queries (spark_groupsource.failpoints).
FAILPOINTS = tempfile.TemporaryDirectory(prefix="groupkafka-failpoints-")
os.environ["GROUPKAFKA_FAILPOINTS"] = FAILPOINTS.name


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the session of all tests that need one in this process, where there can be only one.

    As a user's own tests would make it: nothing is registered by hand.
    """
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.pollingDelay": "20ms",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
