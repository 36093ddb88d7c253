"""The command `doctor --fix-startup`: put bytecode into the archives that Spark's Python processes import PySpark from.

Spark starts each of its Python processes with `$SPARK_HOME/python/lib/pyspark.zip` in front of the import path. The
archive has sources only, and Python keeps no bytecode for an archive, so every new process compiles the same modules
again. `zipimport` (PEP 273) takes `module.pyc` from the archive if its magic number is that of the running Python, and
compiles `module.py` otherwise.

The original bytes of an archive stay in front of the new ones, so that a process that is running can still import from
it after the first change, and the whole original stays beside it until `--undo`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import marshal
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from spark_groupsource import errors
from spark_groupsource.cli.output import Output
from spark_groupsource.errors import CommandError, file_errors

# A module that Spark runs in the process that plans a query's batches.
_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
# Name of an entry that marks the change, and its text: which Python can read the bytecode.
_MARK = "groupkafka-bytecode.txt"
_MARK_TEXT = f"magic number {importlib.util.MAGIC_NUMBER.hex()}\n"
_ORIGINAL = ".without-bytecode"
# Modules below these folders are never imported by Spark's processes.
_SKIPPED = ("/tests/", "/testing/")
# A process keeps the places of an archive's entries. Those of the bytecode are gone, or are others.
_RESTART = "Restart Spark applications that run: their Python processes can import nothing more from the old archive"
# A header of bytecode that is never compared with its source (PEP 552): the archive's entries change together.
_UNCHECKED_HASH = (1).to_bytes(4, "little")


def archives_of(home: Path) -> list[Path]:
    """Return the archives from which a Spark's Python processes import PySpark, and what it needs; PySpark's first."""
    folder = home / "python" / "lib"
    return [folder / "pyspark.zip", *sorted(folder.glob("py4j-*-src.zip"))]


@contextlib.contextmanager
def archives() -> Iterator[list[Path]]:
    """Yield the archives that Spark puts in front of the import path: of SPARK_HOME, else of the installed PySpark.

    No other command changes them meanwhile, as far as their file system has locks. Raises `CommandError` if there are
    none.
    """
    home = os.environ.get("SPARK_HOME")
    if home is None:
        spec = importlib.util.find_spec("pyspark")  # without importing it
        places = None if spec is None else spec.submodule_search_locations
        home = next(iter(places or ()), None)
    found = archives_of(Path(home or "."))
    if home is None or not found[0].is_file():
        raise CommandError(errors.NO_PYSPARK_ARCHIVE, path=found[0])
    lock = os.open(found[0].parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield found
    finally:
        os.close(lock)


def fix_startup(paths: Sequence[Path], output: Output) -> None:
    """Add bytecode of this Python to the archives that have none, show the time that it saves, and how to undo it.

    Raises `CommandError` if PySpark's version is not the archive's, or if an archive cannot be imported or written;
    nothing is changed then.
    """
    _check_version(paths[0])
    plain = []
    for path in paths:
        if _mark_of(path) == _MARK_TEXT:
            output.print_line(f"{path}: has the bytecode of Python {platform.python_version()} already")
        else:
            plain.append(path)
    if not plain:
        return
    output.step(f"measuring the import of {_RUNNER}")
    before_s = _import_s(paths)
    for path in plain:
        output.step(f"compiling the modules of {path}")
        is_fixed = _mark_of(path) is not None
        with file_errors(path, "changed"):
            count = _add_bytecode(path)
        output.print_line(f"{path}: bytecode of {count} modules added for Python {platform.python_version()}")
        if is_fixed:
            output.print_line(_RESTART)
    output.step(f"measuring the import of {_RUNNER} again")
    try:
        now_s = _import_s(paths)
    except CommandError:
        undo_startup(plain, output)
        raise
    output.print_line(f"import of {_RUNNER}: {before_s:.2f} s before, {now_s:.2f} s now")
    output.print_line("Python processes that Spark starts from now on use it. To undo: doctor --fix-startup --undo")


def undo_startup(paths: Sequence[Path], output: Output) -> None:
    """Put the original archives back, but for those that were replaced since. Raises `CommandError` if it cannot."""
    for path in paths:
        original = _original_of(path)
        if not original.exists():
            output.print_line(f"{path}: nothing to undo")
            continue
        if _mark_of(path) is not None:
            with file_errors(path, "changed"):
                original.replace(path)
            output.print_line(f"{path}: the original is back")
            output.print_line(_RESTART)
        else:
            # An installation of another PySpark has replaced the archive; its original is what it is.
            with file_errors(original, "changed"):
                original.unlink()
            output.print_line(f"{path}: was replaced since, and is left as it is")


def _original_of(path: Path) -> Path:
    """Return where the archive without bytecode is: the copy beside a changed one."""
    return path.with_name(path.name + _ORIGINAL)


def _mark_of(path: Path) -> str | None:
    with _opened(path) as archive:
        return archive.read(_MARK).decode() if _MARK in archive.namelist() else None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive for reading. Raises `CommandError` if it is damaged, or is not an archive of PySpark."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        reason = str(error.args[0]) if isinstance(error, KeyError) else str(error)
        raise CommandError(errors.FILE_FAILED, path=path, verb="read", reason=reason) from error


def _check_version(path: Path) -> None:
    """Check that the archive is of the installed PySpark, whose version this package was installed for."""
    try:
        installed = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return
    with _opened(path) as archive:
        lines = archive.read("pyspark/version.py").decode().splitlines()
    archived = next(
        (line.split("=", 1)[1].strip(" \"'") for line in lines if line.startswith("__version__")), "unknown"
    )
    if archived.split(".dev")[0] != installed.split(".dev")[0]:
        raise CommandError(errors.OTHER_PYSPARK_ARCHIVE, path=path, archived=archived, installed=installed)


def _add_bytecode(path: Path) -> int:
    """Replace an archive by one that has bytecode, too. Return the number of modules."""
    original = _original_of(path)
    if original.exists() and _mark_of(path) is None:
        # PySpark was installed again.
        original.unlink()
    if not original.exists():
        temporary = original.with_name(f"{original.name}.{os.getpid()}")
        shutil.copy2(path, temporary)
        temporary.replace(original)
    changed = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        shutil.copy2(original, changed)
        with zipfile.ZipFile(changed, "a", zipfile.ZIP_DEFLATED) as archive:
            count = 0
            for name in archive.namelist():
                if not name.endswith(".py") or any(part in f"/{name}" for part in _SKIPPED):
                    continue
                source = archive.read(name)
                code = compile(source, f"{path}/{name}", "exec", dont_inherit=True, optimize=sys.flags.optimize)
                header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source)
                archive.writestr(f"{name}c", header + marshal.dumps(code))
                count += 1
            archive.writestr(_MARK, _MARK_TEXT)
        changed.replace(path)
    finally:
        changed.unlink(missing_ok=True)
    return count


def _import_s(paths: Sequence[Path]) -> float:
    """Return the seconds that a new Python takes to import what plans batches: the best of three.

    Raises `CommandError` if it cannot be imported.
    """
    command = [sys.executable, "-c", f"import {_RUNNER}"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    taken = []
    for _ in range(3):
        started = time.monotonic()
        ended = subprocess.run(command, env=environment, check=False, capture_output=True)  # noqa: S603 - our own
        if ended.returncode != 0:
            lines = ended.stderr.decode(errors="replace").split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"exit code {ended.returncode}")
            raise CommandError(errors.ARCHIVE_NOT_IMPORTED, path=paths[0], python=sys.executable, reason=reason)
        taken.append(time.monotonic() - started)
    return min(taken)
