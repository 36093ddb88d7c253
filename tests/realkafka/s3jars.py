"""The jars with which Spark writes a checkpoint to S3 (`s3a://`): Hadoop's S3A, and those modules of the AWS SDK that
it needs instead of the SDK's bundle of 600 MB.

They are fetched once, and kept beside Kafka's in the user's cache directory.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.realkafka import ivy
from tests.realkafka.jars import RealKafkaError, cache_dir, say

# Hadoop's version is PySpark's; the SDK's is the one that this Hadoop was built with.
HADOOP_VERSION = "3.5.0"
_SDK = "software.amazon.awssdk"
_SDK_VERSION = "2.35.4"
_MODULES = (
    ivy.Module("org.apache.hadoop", "hadoop-aws", HADOOP_VERSION),
    ivy.Module(_SDK, "s3", _SDK_VERSION, transitive=True),
    ivy.Module(_SDK, "s3-transfer-manager", _SDK_VERSION, transitive=True),
    ivy.Module(_SDK, "sts", _SDK_VERSION, transitive=True),
    ivy.Module("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.0"),
)
# PySpark has its own.
_EXCLUDED = ("io.netty", "org.slf4j")
_FETCH_TIMEOUT_S = 600.0  # 14 MB; 60 s on a good line


def s3_jars(java: Path) -> list[Path]:
    """Return the jars for `spark.jars`, fetched if this user has not got them yet. Raises `RealKafkaError`."""
    if not (ivy.pyspark_jars() / f"hadoop-client-api-{HADOOP_VERSION}.jar").exists():
        raise RealKafkaError(f"the S3 jars fit Hadoop {HADOOP_VERSION}; PySpark {pyspark.__version__} has another one")
    target = cache_dir() / f"spark-s3-{HADOOP_VERSION}"
    if not target.exists():
        say(f"Fetching S3A for Hadoop {HADOOP_VERSION} (14 MB, once; about 60 s) into {target} ...")
        try:
            ivy.fetch(java, target, _MODULES, _FETCH_TIMEOUT_S, _EXCLUDED)
        except ivy.IvyError as error:
            raise RealKafkaError(str(error)) from error
    return sorted(target.glob("*.jar"))
