"""Virtual environments with one version of Spark each, kept in the user's cache directory.

The checkout is not installed in them: processes find it by PYTHONPATH, with the extension that the checkout's own
environment has built. GROUPKAFKA_SPARK_VENVS names a folder to keep them in instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests import checkout
from tests.realkafka.jars import cache_dir

# Of the Spark that the checkout's own environment has.
OWN = "4.2"
_PACKAGES = ("pyspark[connect]", "confluent-kafka", "pyarrow", "kafka-python", "zstandard")
_INSTALL_TIMEOUT_S = 1800.0


def constraints(version: str) -> Path:
    """Return the file with the packages' versions for a Spark such as 4.0."""
    name = "constraints.txt" if version == OWN else f"constraints-{version}.txt"
    return checkout.ROOT / "conf" / name


def known() -> list[str]:
    """Return the versions of Spark that have constraints."""
    others = [path.stem.removeprefix("constraints-") for path in constraints(OWN).parent.glob("constraints-*.txt")]
    return sorted([OWN, *others])


def release(version: str) -> str:
    """Return the release of PySpark that stands for a version: 4.0.2 for 4.0."""
    found = re.search(r"^pyspark==(\S+)$", constraints(version).read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None, constraints(version)
    return found[1]


def python_with(version: str) -> Path:
    """Return a Python with this version of Spark. Builds its environment if there is none; that takes minutes."""
    if version == OWN:
        return Path(sys.executable)
    base = os.environ.get("GROUPKAFKA_SPARK_VENVS")
    folder = (Path(base) if base else cache_dir()) / f"pyspark-{release(version)}-py{sys.version_info.minor}"
    # Another installation of Python, or other versions of packages, need another environment.
    wanted = hashlib.sha256(f"{sys.base_prefix}\n{constraints(version).read_text()}".encode()).hexdigest()
    stamp, python = folder / "stamp", folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == wanted):
            print(f"[setup] installing PySpark {release(version)} into {folder}", file=sys.stderr, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", str(folder))
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--progress-bar", "off"]
            _run(*pip, "-c", str(constraints(version)), *_PACKAGES)
            # PySpark's archive without bytecode costs each of its processes 0.4 s.
            _run(str(python), "-m", "spark_groupsource", "doctor", "--fix-startup")
            stamp.write_text(wanted)
    return python


def environment(version: str) -> dict[str, str]:
    """Return the variables of a process that runs a query with this version of Spark."""
    if version == OWN:
        return {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    python = str(python_with(version))
    (home,) = Path(python).parents[1].glob("lib/python*/site-packages/pyspark")
    # The class archive of tests/spark_archive.py is that of the checkout's own Spark.
    return {
        "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": str(checkout.ROOT),
        "SPARK_SUBMIT_OPTS": "", "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_S, cwd=checkout.ROOT,
        env=os.environ | {"PYTHONPATH": str(checkout.ROOT)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
