"""An executor whose Python lacks a package: what a user sees."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from spark_groupsource._version import __version__
from spark_groupsource.spark.executor_python import misleading_variables, missing_in
from spark_groupsource.spark.progress_listener import error_line
from spark_groupsource.spark.source import GroupKafkaDataSource, GroupKafkaStreamReader

_OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t"}
# An executor's Python: a package that it lacks is one that cannot be found.
_EXECUTOR = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: None if name == {lacks!r} else find(name, path, target)
if {version!r}:
    from spark_groupsource import _version
    _version.__version__ = {version!r}
from pyspark.serializers import CPickleSerializer
function, _ = CPickleSerializer()._read_with_length(open(sys.argv[1], "rb"))
reader = dict(zip(function.__code__.co_freevars, function.__closure__))["reader"].cell_contents
print("unpickled:", type(reader).__name__, repr(reader._options.group_id))
"""


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """Return the file of what Spark sends to executors."""
    source = GroupKafkaDataSource(_OPTIONS)
    schema = source.schema()
    reader = source.streamReader(schema)
    out = io.BytesIO()
    write_read_func_and_partitions(
        out, reader=reader, data_source=source, schema=schema, max_arrow_batch_size=1, binary_as_bytes=True
    )
    (tmp_path / "sent").write_bytes(out.getvalue())
    return tmp_path / "sent"


def executor(sent: Path, lacks: str = "", version: str = "") -> subprocess.CompletedProcess[str]:
    """Unpickle in another process that lacks a package, or has another version of this one."""
    command = [sys.executable, "-c", _EXECUTOR.format(lacks=lacks, version=version), str(sent)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_an_executor_that_has_all_reads(sent: Path) -> None:
    done = executor(sent)
    assert done.stdout == "unpickled: GroupKafkaStreamReader 'g'\n", done.stderr


@pytest.mark.parametrize("package", ["spark_groupsource", "confluent_kafka"])
def test_the_error_names_the_package_the_python_and_the_cure(sent: Path, package: str) -> None:
    done = executor(sent, package)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"[GROUPKAFKA.EXECUTOR_PACKAGE_MISSING] The Python of an executor ({sys.executable}) has no" in last
    assert f"package '{package}'. What to do: install groupkafka there" in last
    assert "PYSPARK_DRIVER_PYTHON, or else in PYSPARK_PYTHON" in last


def test_another_version_on_an_executor_is_an_error_that_names_both(sent: Path) -> None:
    """The options are unpickled by their order: with a new option in between, each would have its neighbour's value."""
    done = executor(sent, version="0.2.0")
    assert done.returncode == 1, done.stdout
    line = error_line(done.stderr)
    assert line.startswith("[GROUPKAFKA.EXECUTOR_VERSION_DIFFERS] The Python of an executor (" + sys.executable)
    assert f"has version 0.2.0 of groupkafka, and the driver has {__version__}. What to do: " in line


def test_without_pyarrow_pysparks_own_error_is_translated() -> None:
    """It comes before anything of this package."""
    text = "Job aborted ...\n  File worker.py\nModuleNotFoundError: No module named 'pyarrow'\n\n\tat org.apache"
    assert error_line(text) == str(missing_in(text))
    assert error_line(text).startswith("[GROUPKAFKA.EXECUTOR_PACKAGE_MISSING] The Python of an executor has no")
    assert missing_in("ModuleNotFoundError: No module named 'pyarrows'") is None
    assert missing_in("ModuleNotFoundError: No module named 'pandas'") is None


def test_the_source_itself_travels_between_the_drivers_processes_without_the_check() -> None:
    again = cloudpickle.loads(cloudpickle.dumps(GroupKafkaDataSource(_OPTIONS)))
    assert isinstance(again.streamReader(again.schema()), GroupKafkaStreamReader)


@pytest.mark.parametrize(
    ("driver", "both", "misleads"),
    [
        ("python", "./environment/bin/python", True),
        ("/opt/a/bin/python", "./environment/bin/python", True),
        ("", "./environment/bin/python", False),
        ("./environment/bin/python", "./environment/bin/python", False),
        ("/opt/a/bin/python", "/opt/b/bin/python", False),
        ("python", "", False),
    ],
)
def test_sparks_recipe_for_archives_is_warned_of(driver: str, both: str, misleads: bool) -> None:
    warning = misleading_variables({"PYSPARK_DRIVER_PYTHON": driver, "PYSPARK_PYTHON": both})
    assert (warning is not None) == misleads
    if warning is not None:
        assert f"executors start '{driver}'" in warning
