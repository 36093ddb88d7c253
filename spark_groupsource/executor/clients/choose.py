"""Choose the reading client: the one that gathers records in C if it loads, else the one in pure Python.

The environment variable GROUPKAFKA_GATHER=python forces the pure Python client, for comparisons.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from pathlib import Path

from spark_groupsource._librdkafka import library_path
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.executor.clients.native import NativeClient, NativeLibrary
from spark_groupsource.executor.clients.port import FetchClient
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)

GATHER_VARIABLE = "GROUPKAFKA_GATHER"


@functools.cache
def native_library() -> NativeLibrary | str:
    """Return the library that gathers in C, or the reason why it does not load. Loaded once per process."""
    if os.environ.get(GATHER_VARIABLE, "").strip().lower() == "python":
        return f"{GATHER_VARIABLE}=python"
    try:
        gather = importlib.import_module("spark_groupsource.executor.clients._gather")
        return NativeLibrary(library_path(), gather)
    except ModuleNotFoundError:
        return f"not compiled in {Path(__file__).parent}"
    except (ImportError, OSError, AttributeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def reading_path() -> str:
    """Return a line that names the client that reads in this process."""
    library = native_library()
    if isinstance(library, NativeLibrary):
        return "records are gathered in C"
    return f"records are gathered in pure Python, which is slower ({library})"


@functools.cache
def log_reading_path() -> None:
    """Log which client reads, once per process."""
    LOG.info("%s", reading_path())


def make_client(
    options: SourceOptions, max_queued_bytes: int, partitions: int = 1, *, bulk: bool = False
) -> FetchClient:
    """Return a client for about `partitions` partitions with queues of about `max_queued_bytes` together."""
    library = native_library()
    native = isinstance(library, NativeLibrary)
    settings = reading_client_settings(options, max_queued_bytes, partitions, bulk=bulk, one_queue=not native)
    if isinstance(library, NativeLibrary):
        return NativeClient(options, settings, library)
    return PythonClient(options, settings)
