"""What a release consists of: the source archive and the wheel, built, read, and used from an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from spark_groupsource import __version__

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import importlib.metadata, sys
import spark_groupsource
from spark_groupsource.executor.clients.choose import reading_path
print(spark_groupsource.__file__, spark_groupsource.__version__, importlib.metadata.version("groupkafka"), sep="\\n")
print(spark_groupsource.GroupKafkaDataSource.name(), reading_path(), sep="\\n")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed; return its output. Nothing of the checkout is on its path."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "GROUPKAFKA_GATHER"}}
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source archive, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # A copy: a build writes into its folder, where other tests may build at the same time.
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.so", "__pycache__", "*-out", "*-output")
    shutil.copytree(ROOT, folder / "checkout", ignore=ignored)
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "checkout", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """Return the one wheel."""
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and with the dependencies from this environment."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    target = next(folder.glob("lib/python*/site-packages"))
    command = ["-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel]
    run(sys.executable, *command, cwd=folder.parent)
    # A folder that a .pth names has its own .pth files ignored, so the editable install of the checkout is not seen.
    (target / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def test_the_source_archive_has_what_a_build_needs(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    assert archive.name == f"groupkafka-{__version__}.tar.gz"
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    extension = {f"spark_groupsource/executor/clients/{name}" for name in ("_gather.c", "_gather_parts.h")}
    assert names >= {"LICENSE", "README.md", "pyproject.toml", "setup.py", "spark_groupsource/py.typed"} | extension
    assert not {name for name in names if name.startswith(("tests", "scripts", "jobs", "build/", ".venv"))}


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = HeaderParser().parsestr(opened.read(f"{info}/METADATA").decode())
    assert info == f"groupkafka-{__version__}.dist-info"
    assert (metadata["Name"], metadata["Version"]) == ("groupkafka", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert names >= {"spark_groupsource/py.typed", "pyspark_groupkafka.py", f"{info}/licenses/LICENSE"}
    # Every module, and the extension for the limited API: one wheel is good for all Pythons from 3.10 on.
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "spark_groupsource").rglob("*.py")}
    assert {name for name in names if name.startswith("spark_groupsource/")} == modules | {
        "spark_groupsource/py.typed", "spark_groupsource/executor/clients/_gather.abi3.so",
    }  # fmt: skip
    assert "-cp310-abi3-" in wheel.name
    assert {name.partition("/")[0] for name in names} == {"spark_groupsource", "pyspark_groupkafka.py", info}


def test_the_wheel_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    file, *rest = run(installed, "-c", PROBE, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(installed.parents[1])
    assert rest[:3] == [__version__, __version__, "groupkafka"]
    assert "in C" in rest[3]
    assert "usage: " in run(installed, "-m", "spark_groupsource", "--help", cwd=tmp_path)
    assert "usage: " in run(installed.parent / "groupkafka", "--help", cwd=tmp_path)
