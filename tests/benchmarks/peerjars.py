"""The jars of Spark's own Kafka source, which the benchmark compares with.

They are fetched once, and kept beside Kafka's in the user's cache directory. All else that they need is among
PySpark's own jars.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.realkafka import ivy
from tests.realkafka.jars import SCALA_VERSION, RealKafkaError, cache_dir
from tests.steps import say

SPARK_VERSION = "4.2.0"
_SPARK = "org.apache.spark"
_MODULES = (
    ivy.Module(_SPARK, f"spark-sql-kafka-0-10_{SCALA_VERSION}", SPARK_VERSION),
    # Maven Central's mirrors do not all have a newer one. Without delegation tokens only its class names are used.
    ivy.Module(_SPARK, f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", "4.0.0"),
    ivy.Module("org.apache.kafka", "kafka-clients", "3.9.2"),
    ivy.Module("org.apache.commons", "commons-pool2", "2.12.1"),
)
# What a user gives spark-submit with --packages.
PACKAGES = f"{_SPARK}:spark-sql-kafka-0-10_{SCALA_VERSION}:{SPARK_VERSION}"
_FETCH_TIMEOUT_S = 600.0  # 10 s on a good line


def check_spark_version(version: str = pyspark.__version__) -> None:
    """Raise `RealKafkaError` when the jars do not fit this PySpark."""
    if version != SPARK_VERSION:
        raise RealKafkaError(
            f"the benchmark compares with Spark's own Kafka source {SPARK_VERSION}, which fits PySpark {SPARK_VERSION} "
            f"only; this is PySpark {version} ({pyspark.__file__})"
        )


def peer_jars(java: Path) -> list[Path]:
    """Return the jars for `spark.jars`, fetched if this user has not got them yet. Raises `RealKafkaError`."""
    check_spark_version()
    target = cache_dir() / f"spark-kafka-{SPARK_VERSION}"
    if not target.exists():
        say(f"fetching {len(_MODULES)} jars of Spark's own source")
        try:
            ivy.fetch(java, target, _MODULES, _FETCH_TIMEOUT_S)
        except ivy.IvyError as error:
            raise RealKafkaError(str(error)) from error
    return [target / module.jar for module in _MODULES]
