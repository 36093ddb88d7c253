"""`doctor --fix-startup`: what it changes in copies of the installed archives, and what it refuses."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from spark_groupsource.cli.main import main

_ARCHIVES = Path(pyspark.__path__[0]) / "python" / "lib"


def original_of(path: Path) -> Path:
    """Return an installed archive without bytecode, also after scripts/test."""
    original = path.with_name(f"{path.name}.without-bytecode")
    return original if original.exists() else path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of SPARK_HOME's archives, without any."""
    folder = tmp_path / "python" / "lib"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return folder


@pytest.fixture
def folder(empty: Path) -> Path:
    """The same with copies of the installed PySpark's archives."""
    for path in _ARCHIVES.glob("*.zip"):
        shutil.copy2(original_of(path), empty / path.name)
    return empty


def small_archive(folder: Path, version: str) -> Path:
    """An archive with two modules and a version, for tests that need no real one."""
    path = folder / "pyspark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pyspark/__init__.py", "")
        archive.writestr("pyspark/version.py", f'__version__: str = "{version}"\n')
    return path


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def loaded_from(folder: Path, module: str) -> str:
    """Return the file from which a new Python loads a module, if the archives are in front."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folder.glob("*.zip")))}
    code = f"import {module} as m; print(m.__file__)"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_bytecode_is_used_and_undone_byte_by_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(folder)
    assert ".pyc" not in loaded_from(folder, "pyspark.sql.types")
    assert main(["doctor", "--fix-startup"]) == 0
    first = capsys.readouterr().out
    assert "pyspark.zip: bytecode of" in first
    assert "s before" in first
    assert "pyspark.zip/pyspark/sql/types.pyc" in loaded_from(folder, "pyspark.sql.types")
    changed = digests(folder)
    assert main(["doctor", "--fix-startup"]) == 0
    said = capsys.readouterr()
    assert said.out.count("already") == 2
    assert "measuring" not in said.out + said.err
    assert digests(folder) == changed
    assert main(["doctor", "--fix-startup", "--undo"]) == 0
    assert digests(folder) == before
    assert main(["doctor", "--fix-startup", "--undo"]) == 0
    assert "nothing to undo" in capsys.readouterr().out


def test_a_running_process_can_still_import(folder: Path) -> None:
    """It knows where the entries of the archive were when it first looked."""
    code = (
        "import sys, pyspark.version; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.readline()\n"
        "import pyspark.sql.types; print(pyspark.sql.types.__file__)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folder.glob("*.zip")))}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        assert main(["doctor", "--fix-startup"]) == 0
        said, _ = running.communicate("go\n", timeout=60)
    assert said.strip().endswith("types.py")
    assert running.returncode == 0


def test_another_version_is_refused(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_archive(empty, "3.0.1")
    before = digests(empty)
    assert main(["doctor", "--fix-startup"]) == 1
    said = capsys.readouterr().err
    assert "GROUPKAFKA.OTHER_PYSPARK_ARCHIVE" in said
    assert "3.0.1" in said
    assert digests(empty) == before


@pytest.mark.parametrize("arguments", [[], ["--undo"]])
def test_a_damaged_archive_is_named_and_left_alone(
    empty: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    path = small_archive(empty, pyspark.__version__)
    shutil.copy2(path, path.with_name("pyspark.zip.without-bytecode"))
    path.write_bytes(b"half of a download")
    before = digests(empty)
    assert main(["doctor", "--fix-startup", *arguments]) == 1
    said = capsys.readouterr().err
    assert "GROUPKAFKA.FILE_FAILED" in said
    assert f"{path}" in said
    assert "not a zip file" in said
    assert digests(empty) == before


def test_an_archive_of_something_else_is_refused(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(small_archive(empty, "4.2.0"), "w") as archive:
        archive.writestr("other.py", "")
    assert main(["doctor", "--fix-startup"]) == 1
    assert "pyspark/version.py" in capsys.readouterr().err


def test_an_archive_that_cannot_be_written_is_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test cannot take root's rights away, so the copy fails by itself."""

    def refuse(*_paths: object) -> None:
        raise PermissionError(13, "Permission denied")

    before = digests(folder)
    monkeypatch.setattr("spark_groupsource.cli.doctor.startup.shutil.copy2", refuse)
    assert main(["doctor", "--fix-startup"]) == 1
    said = capsys.readouterr().err
    assert "GROUPKAFKA.FILE_FAILED" in said
    assert "Permission denied" in said
    assert digests(folder) == before


def test_an_archive_of_a_newer_installation_is_not_replaced_by_the_old_original(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--fix-startup"]) == 0
    shutil.copy2(original_of(_ARCHIVES / "pyspark.zip"), folder / "pyspark.zip")
    with zipfile.ZipFile(folder / "pyspark.zip", "a") as archive:
        archive.writestr("pyspark/newer.py", "")
    newer = digests(folder)["pyspark.zip"]
    assert main(["doctor", "--fix-startup", "--undo"]) == 0
    assert "was replaced since" in capsys.readouterr().out
    assert digests(folder)["pyspark.zip"] == newer


class _Run:
    """Stands for `subprocess.run`: the first imports work, the others fail."""

    def __init__(self, working: int) -> None:
        self.left = working

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        self.left -= 1
        said = b"Traceback:\nModuleNotFoundError: No module named 'pandas'\n\n"
        return subprocess.CompletedProcess(command, int(self.left < 0), b"", said)


@pytest.mark.parametrize("working", [0, 3, 4])
def test_an_archive_that_cannot_be_imported_is_left_as_it_was(
    working: int, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the import fails only with the bytecode."""
    before = digests(folder)
    monkeypatch.setattr("spark_groupsource.cli.doctor.startup.subprocess.run", _Run(working))
    assert main(["doctor", "--fix-startup"]) == 1
    said = capsys.readouterr().err
    assert "GROUPKAFKA.ARCHIVE_NOT_IMPORTED" in said
    assert f"with {sys.executable}: ModuleNotFoundError: No module named 'pandas'" in said
    assert digests(folder) == before


def test_an_original_that_cannot_be_removed_is_an_error(
    empty: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_archive(empty, pyspark.__version__)
    original = path.with_name("pyspark.zip.without-bytecode")
    shutil.copy2(path, original)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    assert main(["doctor", "--fix-startup", "--undo"]) == 1
    assert f"File '{original}' cannot be changed: Permission denied" in capsys.readouterr().err


def test_without_an_archive_the_error_names_the_place(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--fix-startup"]) == 1
    assert f"'{empty}/pyspark.zip' does not exist" in capsys.readouterr().err
