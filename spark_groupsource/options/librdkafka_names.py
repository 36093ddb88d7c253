"""Ask librdkafka for the names of its settings, so that a misspelt one is refused when the source is loaded.

The library is loaded when the options have a client setting besides brokers and group, in about 5 ms.
"""

from __future__ import annotations

import ctypes
import difflib
import os
import re
import tempfile

from spark_groupsource._librdkafka import library_path

# rd_kafka_conf_res_t
_UNKNOWN = -2
# A row of the library's table of settings, without callbacks and other values that are no text.
_ROW = re.compile(r"^([a-z.]+|log_level) +\|", re.MULTILINE)


def is_known(name: str) -> bool:
    """Return whether librdkafka has a setting of this name; True if the library cannot be asked."""
    try:
        library = ctypes.CDLL(library_path())
    except OSError:
        return True
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    # Without a value: a setting takes its default, or the library reports what it needs instead.
    found = library.rd_kafka_conf_set(settings, name.encode(), None, None, ctypes.c_size_t(0))
    library.rd_kafka_conf_destroy(settings)
    return bool(found != _UNKNOWN)


def similar(name: str) -> str:
    """Return librdkafka's name most like this one; empty if there is none, or no temporary file can be written."""
    try:
        names = _ROW.findall(settings_table())
    except OSError:
        return ""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.75)), "")


def settings_table() -> str:
    """Return librdkafka's table of settings: a line each, with the name, whom it is for, its range and its meaning."""
    libc, library = ctypes.CDLL(None), ctypes.CDLL(library_path())
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as table:
        stream = ctypes.c_void_p(libc.fdopen(os.dup(table.fileno()), b"w"))
        library.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        table.seek(0)
        return table.read().decode()
