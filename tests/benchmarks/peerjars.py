"""The jars of Spark's own Kafka source, which the benchmark compares with.

They are fetched once, one by one, with the dependency manager (Ivy) that PySpark ships, and kept beside Kafka's in
the user's cache directory. All else that they need is among PySpark's own jars.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pyspark

from tests.realkafka.jars import SCALA_VERSION, RealKafkaError, cache_dir, say

SPARK_VERSION = "4.2.0"
_JARS = (
    ("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", SPARK_VERSION),
    # Maven Central's mirrors do not all have a newer one. Without delegation tokens only its class names are used.
    ("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)
_FETCH_TIMEOUT_S = 300.0  # for one jar; 3 s on a good line


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
        _fetch(java, target)
    return [target / f"{module}-{revision}.jar" for _, module, revision in _JARS]


def _fetch(java: Path, target: Path) -> None:
    ivy = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not ivy:
        raise RealKafkaError(f"no ivy-*.jar beside {pyspark.__file__}: is this PySpark complete?")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        jars = Path(folder) / "jars"
        for number, (organisation, module, revision) in enumerate(_JARS, start=1):
            say(f"fetching jar {number} of {len(_JARS)} of Spark's own source: {module} {revision}")
            command = [
                *(str(java), "-jar", str(ivy[-1]), "-cache", f"{folder}/ivy", "-confs", "default", "-warn"),
                *("-notransitive", "-dependency", organisation, module, revision),
                *("-retrieve", f"{jars}/[artifact]-[revision].[ext]"),
            ]
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_FETCH_TIMEOUT_S, cwd=folder
            )
            if run.returncode != 0 or not (jars / f"{module}-{revision}.jar").exists():
                raise RealKafkaError(f"fetching {module} {revision} failed:\n{(run.stdout + run.stderr)[-2000:]}")
        try:
            jars.rename(target)
        except OSError:
            # Another process was faster.
            if not target.exists():
                raise
