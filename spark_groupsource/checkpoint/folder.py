"""Read and write the files of a query's checkpoint, on each file system of pyarrow."""

from __future__ import annotations

import os
from contextlib import suppress
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from spark_groupsource.checkpoint.location import has_generations, is_local, location_to_open, scrubbed, shown_location

# pyarrow's errors: besides OSError, for instance if it was built without a file system, or a library is missing.
TROUBLES = (OSError, ValueError, ImportError, pa.ArrowException)
# pyarrow reads these with libhdfs, which reads the JVM's options from an environment variable.
_HADOOP = ("hdfs://", "viewfs://")
_LIBHDFS_OPTIONS, _NO_SIGNALS = "LIBHDFS_OPTS", "-Xrs"


def open_location(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a checkpoint location, and the path in it.

    Raises ValueError for a location that cannot be read, and pyarrow's errors for one that cannot be reached.
    """
    target = location_to_open(location)
    if "://" not in target:
        return fs.LocalFileSystem(), target
    if target.startswith(_HADOOP):
        _keep_signals_from_libhdfs()
    filesystem, root = fs.FileSystem.from_uri(target)
    return filesystem, root


def _keep_signals_from_libhdfs() -> None:
    """Add -Xrs to LIBHDFS_OPTS, before libhdfs starts its JVM in this process.

    Guards against:
    1. The first check of an `hdfs:` location starts a JVM inside the reader process.
    2. The JVM installs its own handler of SIGTERM.
    3. A stop ends the process at once: the last batch is not committed, and the group waits for the member until its
       session expires.
    With -Xrs the JVM installs no signal handlers.
    """
    given = os.environ.get(_LIBHDFS_OPTIONS, "")
    if _NO_SIGNALS not in given.split():
        os.environ[_LIBHDFS_OPTIONS] = f"{given} {_NO_SIGNALS}".strip()


class CheckpointFolder:
    """The folder of a checkpoint: at `location`, or for a pipeline's flow the newest one below it.

    `location` is a path or a URI (see `checkpoint.location`). It is opened by the first method that does I/O, and stays
    open. These methods take names in the folder, and raise `TROUBLES`. One thread at a time.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._opened: tuple[fs.FileSystem, str] | None = None

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return shown_location(self._location)

    @property
    def is_local(self) -> bool:
        """Whether a look needs no request to a store."""
        return is_local(self._location)

    def scrubbed(self, error: BaseException) -> str:
        """Return an error's first line without the location's secrets."""
        return scrubbed(error, self._location)

    # --- reading

    def exists(self, name: str) -> bool:
        """Return whether the file exists, with one request."""
        filesystem, path = self._at(name)
        if _is_hadoop(filesystem):
            return _is_file(filesystem, path)
        # On object stores opening a file is one request; file info of a missing file needs a second one for a
        # directory.
        try:
            with filesystem.open_input_file(path):
                return True
        except FileNotFoundError:
            return False

    def text(self, name: str) -> str:
        """Return a file's text. Raises FileNotFoundError if it is missing."""
        filesystem, path = self._at(name)
        if _is_hadoop(filesystem) and not _is_file(filesystem, path):
            raise FileNotFoundError(path)
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read()).decode("utf-8")

    def infos(self, *names: str) -> list[fs.FileInfo]:
        """Return what the file system knows of files or folders, which may be missing; of the folder itself with ""."""
        filesystem, root = self._open()
        found: list[fs.FileInfo] = filesystem.get_file_info([f"{root}/{name}" if name else root for name in names])
        return found

    def listed(self, folder: str) -> list[fs.FileInfo]:
        """Return what is in a folder; nothing if it is missing."""
        filesystem, path = self._at(folder)
        return list(filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def batches(self, log: str) -> list[int]:
        """Return the batches in a log of Spark's: the names in its folder that are numbers."""
        return _numbers(self.listed(log))

    def newest_batch(self, log: str) -> int | None:
        """Return the newest batch in a log of Spark's; None if it has none."""
        return max(self.batches(log), default=None)

    def require_checkpoint(self) -> None:
        """Raise FileNotFoundError if Spark has no checkpoint here. It writes `metadata` before it starts any source."""
        if not self.exists("metadata"):
            raise FileNotFoundError("Spark has no checkpoint here; use the writer's location, with its scheme")

    # --- writing

    def create_folder(self, name: str) -> None:
        """Create a folder, if the file system has any. It may exist."""
        filesystem, path = self._at(name)
        if isinstance(filesystem, fs.LocalFileSystem) or _is_hadoop(filesystem):
            filesystem.create_dir(path, recursive=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file. Of two that write the same file at the same time, the later one stays."""
        filesystem, path = self._at(name)
        # Only a local file system shows half a file, and replaces one file by another in one step.
        target = f"{path}.{uuid4().hex}.tmp" if isinstance(filesystem, fs.LocalFileSystem) else path
        with filesystem.open_output_stream(target) as stream:
            stream.write(content)
        if target != path:
            filesystem.move(target, path)

    def delete(self, name: str) -> None:
        """Delete a file, which may be missing."""
        filesystem, path = self._at(name)
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)

    # --- helpers

    def _at(self, name: str) -> tuple[fs.FileSystem, str]:
        filesystem, root = self._open()
        return filesystem, f"{root}/{name}"

    def _open(self) -> tuple[fs.FileSystem, str]:
        """Return the file system and the checkpoint's path. Raises FileNotFoundError if a flow has none yet.

        A user may have chosen a flow's path for the checkpoint of any query.
        """
        if self._opened is None:
            filesystem, place = open_location(self._location)
            root = place.rstrip("/")
            if has_generations(root):
                # Spark creates the folder before it starts the query.
                found = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
                newest = max(_numbers(found), default=None)
                if newest is not None:
                    root = f"{root}/{newest}"
                elif "metadata" not in {info.base_name for info in found}:
                    raise FileNotFoundError("the pipeline has no checkpoint for this flow yet")
            self._opened = filesystem, root
        return self._opened


def _numbers(found: list[fs.FileInfo]) -> list[int]:
    return [int(info.base_name) for info in found if info.base_name.isdigit()]


def _is_hadoop(filesystem: fs.FileSystem) -> bool:
    """Return whether opening a missing file prints Java's stack trace, as libhdfs does."""
    return bool(filesystem.type_name == "hdfs")


def _is_file(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether the file exists, without printing anything on any file system."""
    return bool(filesystem.get_file_info(path).type == fs.FileType.File)
