"""Collect facts about the Python on a machine: version, packages, how records are read, file descriptors.

`SCRIPT` runs in that Python. The package may be missing there, so the script imports nothing else at its top.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_groupsource.cli.doctor.startup import archives_of

# A busy machine needs seconds for the imports.
_LIMIT_S = 120
NAMES = ("groupkafka", "pyspark", "pyarrow", "confluent-kafka", "kafka-python")

SCRIPT = (
    f"PACKAGES = {NAMES!r}\n"
    """
import json, os, platform, sys
from importlib import metadata

def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

facts = {"python": platform.python_version(), "executable": sys.executable}
facts["versions"] = {name: version(name) for name in PACKAGES}
try:
    # Spark's own files come first, and there may be no other PySpark.
    from pyspark.version import __version__ as of_spark
    facts["versions"]["pyspark"] = of_spark
except ImportError:
    pass
try:
    import spark_groupsource
    facts["versions"]["groupkafka"] = spark_groupsource.__version__
    import pyarrow
    from confluent_kafka import libversion
    from spark_groupsource.executor.clients.choose import native_library, reading_path
    facts["versions"]["librdkafka"] = libversion()[0]
    facts["reads_in_c"], facts["reads"] = not isinstance(native_library(), str), reading_path()
except Exception as error:
    facts["missing"] = "%s: %s" % (type(error).__name__, error)
try:
    import resource
    facts["descriptors"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
except Exception:
    facts["descriptors"] = None
print(json.dumps(facts))
"""
)


def add_pyspark_of_spark_home() -> None:
    """Add PySpark of SPARK_HOME to the import path of this Python and of those that it starts, if none is installed.

    `spark-submit` does it for its program: an environment for it needs no PySpark.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None or importlib.util.find_spec("pyspark") is not None:
        return
    added = list(map(str, archives_of(Path(home))))
    sys.path += added
    os.environ["PYTHONPATH"] = os.pathsep.join([*added, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def facts_here() -> Mapping[str, Any]:
    """Return the facts of this Python. Raises OSError or ValueError if they cannot be read."""
    command = [sys.executable, "-c", SCRIPT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        raise OSError(f"it did not end within {_LIMIT_S} s") from None
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise OSError(done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}")
    facts: dict[str, Any] = json.loads(lines[-1])
    return facts
