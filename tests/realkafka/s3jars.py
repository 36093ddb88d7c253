"""The jars with which Spark writes a checkpoint to S3 (`s3a://`): Hadoop's S3A, and those modules of the AWS SDK that
it needs instead of the SDK's bundle of 600 MB.

They are fetched once with the dependency manager (Ivy) that PySpark ships, and kept beside Kafka's in the user's
cache directory.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pyspark

from tests.realkafka.jars import RealKafkaError, cache_dir, say

# Hadoop's version is PySpark's; the SDK's is the one that this Hadoop was built with.
HADOOP_VERSION = "3.5.0"
_SDK = "software.amazon.awssdk"
_SDK_VERSION = "2.35.4"
_MODULES = (
    ("org.apache.hadoop", "hadoop-aws", HADOOP_VERSION, "false"),
    (_SDK, "s3", _SDK_VERSION, "true"),
    (_SDK, "s3-transfer-manager", _SDK_VERSION, "true"),
    (_SDK, "sts", _SDK_VERSION, "true"),
    ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.0", "false"),
)
# PySpark has its own.
_EXCLUDED = ("io.netty", "org.slf4j")
_FETCH_TIMEOUT_S = 600.0  # 14 MB; 60 s on a good line


def s3_jars(java: Path) -> list[Path]:
    """Return the jars for `spark.jars`, fetched if this user has not got them yet. Raises `RealKafkaError`."""
    jars = Path(pyspark.__file__).parent / "jars"
    if not (jars / f"hadoop-client-api-{HADOOP_VERSION}.jar").exists():
        raise RealKafkaError(f"the S3 jars fit Hadoop {HADOOP_VERSION}; PySpark {pyspark.__version__} has another one")
    target = cache_dir() / f"spark-s3-{HADOOP_VERSION}"
    if not target.exists():
        _fetch(java, jars, target)
    return sorted(target.glob("*.jar"))


def _module_file() -> str:
    wanted = "".join(
        f'<dependency org="{org}" name="{name}" rev="{rev}" transitive="{transitive}" conf="*->default"/>'
        for org, name, rev, transitive in _MODULES
    )
    left_out = "".join(f'<exclude org="{org}"/>' for org in _EXCLUDED)
    return (
        '<ivy-module version="2.0"><info organisation="local" module="s3"/>'
        f"<dependencies>{wanted}{left_out}</dependencies></ivy-module>"
    )


def _fetch(java: Path, pyspark_jars: Path, target: Path) -> None:
    ivy = sorted(pyspark_jars.glob("ivy-*.jar"))
    if not ivy:
        raise RealKafkaError(f"no ivy-*.jar in {pyspark_jars}: is this PySpark complete?")
    say(f"Fetching S3A for Hadoop {HADOOP_VERSION} (14 MB, once; about 60 s) into {target} ...")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        module, jars = Path(folder) / "ivy.xml", Path(folder) / "jars"
        module.write_text(_module_file())
        command = [
            *(str(java), "-jar", str(ivy[-1]), "-cache", f"{folder}/ivy", "-warn", "-ivy", str(module)),
            *("-types", "jar", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S, cwd=folder)
        missing = [name for _, name, revision, _ in _MODULES if not (jars / f"{name}-{revision}.jar").exists()]
        if run.returncode != 0 or missing:
            raise RealKafkaError(f"fetching {missing or 'the S3 jars'} failed:\n{(run.stdout + run.stderr)[-2000:]}")
        try:
            jars.rename(target)
        except OSError:
            # Another process was faster.
            if not target.exists():
                raise
