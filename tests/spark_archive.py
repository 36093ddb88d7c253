"""Make the class archive that starts the tests' Spark JVMs in half the time.

The suite starts some two hundred short-lived JVMs, and loading and verifying Spark's classes is most of what one of
them computes: a session with one small query takes 3 s with the archive and 6 s without (two cores). Java maps the
archive (JEP 350) if it was made by the same Java from the same jars, and starts without it otherwise.

    python tests/spark_archive.py     makes it, once per virtual environment and Java
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# The queries are short: what the optimizing compiler and a parallel collector compute would never pay off.
_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_MAKE_TIMEOUT_S = 300.0
_QUERY = """
import sys
from pyspark.sql import SparkSession

spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate())
folder = sys.argv[1]
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
for name, writer in {
    "parquet": rows.writeStream.format("parquet").option("path", folder + "/rows"),
    "each": rows.groupBy("value").count().writeStream.outputMode("complete").foreachBatch(lambda b, n: b.collect()),
}.items():
    query = writer.option("checkpointLocation", folder + "/" + name).trigger(processingTime="100 milliseconds").start()
    while query.lastProgress is None:
        query.awaitTermination(1)
    query.stop()
spark.read.parquet(folder + "/rows").createOrReplaceTempView("found")
spark.sql("select count(*), max(value) from found").collect()
spark.stop()
"""


def _java_home() -> str:
    """Return a text that is another one for another Java."""
    home = os.environ.get("JAVA_HOME") or shutil.which("java") or ""
    release = Path(home) / "release"
    return str(Path(home).resolve()) + (release.read_text() if release.is_file() else "")


def archive() -> Path:
    """Return where the archive of this Java and this PySpark is, or would be."""
    key = hashlib.sha256(f"{importlib.metadata.version('pyspark')} {_java_home()}".encode()).hexdigest()[:12]
    return Path(sys.prefix) / f"spark-{key}.jsa"


def jvm_options() -> str:
    """Return the options of the tests' Spark JVMs: drivers (SPARK_SUBMIT_OPTS), executors, masters and workers."""
    made = archive()
    # Xlog: a JVM with another class path, such as Spark Connect's, does not map the archive and need not report it.
    quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
    return f"{_SHORT_LIVED} -XX:SharedArchiveFile={made} -Xshare:auto {quiet}" if made.exists() else _SHORT_LIVED


def make() -> None:
    """Run two small queries and keep the classes that they load. Raises CalledProcessError when Spark fails."""
    made = archive()
    if made.exists():
        return
    print(f"[setup] making {made.name}, which halves the start of each Spark JVM (once; about 40 s)", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder) / made.name
        options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={scratch} -Xlog:cds=off -Xlog:class+path=off"
        environment = os.environ | {
            "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }  # fmt: skip
        command = [sys.executable, "-c", _QUERY, folder]
        subprocess.run(command, env=environment, check=True, timeout=_MAKE_TIMEOUT_S, capture_output=True, text=True)
        # The JVM writes it while it ends, after Python has gone.
        shutil.move(_written(scratch), made.with_suffix(f".{os.getpid()}"))
    made.with_suffix(f".{os.getpid()}").replace(made)


def _written(scratch: Path) -> Path:
    """Wait until the ending JVM has written the archive."""
    deadline = time.monotonic() + _MAKE_TIMEOUT_S
    size = -1
    while time.monotonic() < deadline:
        now = scratch.stat().st_size if scratch.exists() else -1
        if now > 0 and now == size:
            return scratch
        size = now
        time.sleep(1.0)
    raise TimeoutError(f"no {scratch} after {_MAKE_TIMEOUT_S:.0f} s")


if __name__ == "__main__":
    try:
        make()
    except (OSError, subprocess.SubprocessError, TimeoutError) as error:
        # The tests run without it, only slower.
        print(f"[setup] no class archive: {type(error).__name__}: {error}", file=sys.stderr)
