"""Which client reads: the one that gathers records in C where it can, else the one in pure Python.

GROUPKAFKA_GATHER=python in the environment forces the latter, for comparisons.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os

from spark_groupsource._librdkafka import library_path
from spark_groupsource.executor.clients.error_events import executor_settings
from spark_groupsource.executor.clients.native import NativeClient, NativeLibrary
from spark_groupsource.executor.clients.port import FetchClient
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.executor")

VARIABLE = "GROUPKAFKA_GATHER"


@functools.cache
def native_library() -> NativeLibrary | str:
    """Return the library to gather with, or why there is none. Asked once per process."""
    if os.environ.get(VARIABLE, "").strip().lower() == "python":
        return f"{VARIABLE}=python"
    try:
        gather = importlib.import_module("spark_groupsource.executor.clients._gather")
        return NativeLibrary(library_path(), gather)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def reading_path() -> str:
    """Return a line that says which client reads in this process."""
    library = native_library()
    if isinstance(library, NativeLibrary):
        return "records are gathered in C"
    return f"records are gathered in pure Python, which is slower ({library})"


@functools.cache
def log_reading_path() -> None:
    """Say it in the log, once per process."""
    LOG.info("%s", reading_path())


def make_client(
    options: SourceOptions, max_queued_bytes: int, partitions: int = 1, *, bulk: bool = False
) -> FetchClient:
    """Return a connected client for about so many partitions that keeps at most about this much in its queue."""
    settings = executor_settings(options, max_queued_bytes, partitions, bulk=bulk)
    library = native_library()
    if isinstance(library, NativeLibrary):
        return NativeClient(options, settings, library)
    return PythonClient(options, settings)
