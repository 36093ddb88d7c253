"""The settings of this librdkafka, as it lists them itself."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from spark_groupsource._librdkafka import library_path


def settings_table(folder: Path) -> str:
    """Return librdkafka's table of settings: a line each, with the name, whom it is for, and its range."""
    path = folder / "settings"
    libc, library = ctypes.CDLL(None), ctypes.CDLL(library_path())
    libc.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(libc.fopen(os.fsencode(path), b"w"))
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    return path.read_text()
