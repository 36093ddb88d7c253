"""The jars of Delta Lake for PySpark 4.2, fetched once and kept beside Kafka's in the user's cache directory."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.realkafka import ivy
from tests.realkafka.jars import SCALA_VERSION, RealKafkaError, cache_dir, say

DELTA_VERSION = "4.4.0"
_SPARK = "4.2"  # Delta's jars name the Spark that they are built for
_MODULE = ivy.Module("io.delta", f"delta-spark_{_SPARK}_{SCALA_VERSION}", DELTA_VERSION, transitive=True)
COORDINATE = f"{_MODULE.organisation}:{_MODULE.name}:{_MODULE.revision}"
# PySpark has its own.
_EXCLUDED = (
    "com.fasterxml.jackson.core", "com.fasterxml.jackson.datatype", "com.fasterxml.jackson.module",
    "com.google.code.findbugs", "org.antlr", "org.apache.hadoop", "org.apache.logging.log4j", "org.apache.parquet",
    "org.apache.spark", "org.roaringbitmap", "org.scala-lang", "org.scala-lang.modules", "org.slf4j",
)  # fmt: skip
_FETCH_TIMEOUT_S = 300.0  # 13 MB; 10 s on a good line
# What Delta's documentation asks for, and fewer tasks for its log than the default of 50.
CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.driver.memory": "900m",
}


def delta_conf(java: Path) -> dict[str, str]:
    """Return Spark's settings for Delta, with its jars, fetched if this user has not got them yet.

    Raises `RealKafkaError`.
    """
    if not pyspark.__version__.startswith(f"{_SPARK}."):
        raise RealKafkaError(f"Delta {DELTA_VERSION} is fetched for PySpark {_SPARK}; this is {pyspark.__version__}")
    target = cache_dir() / f"spark-delta-{DELTA_VERSION}"
    if not target.exists():
        say(f"Fetching Delta {DELTA_VERSION} (13 MB, once; about 10 s) into {target} ...")
        try:
            ivy.fetch(java, target, [_MODULE], _FETCH_TIMEOUT_S, _EXCLUDED)
        except ivy.IvyError as error:
            raise RealKafkaError(str(error)) from error
    return CONF | {"spark.jars": ",".join(map(str, sorted(target.glob("*.jar"))))}
