"""Find the librdkafka of the confluent-kafka wheel, for modules that call its C functions."""

from __future__ import annotations

import ctypes.util
import importlib.util
from pathlib import Path


def library_path() -> str:
    """Return the path of the library inside the confluent-kafka wheel, else of the system's. Raises `OSError`."""
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is not None and spec.origin is not None:
        package = Path(spec.origin).parent
        for folder, pattern in (
            (package.with_name("confluent_kafka.libs"), "librdkafka*.so*"),
            (package / ".dylibs", "librdkafka*.dylib"),
        ):
            for found in sorted(folder.glob(pattern)):
                return str(found)
    system = ctypes.util.find_library("rdkafka")
    if system is None:
        raise OSError("no librdkafka found: install the confluent-kafka wheel")
    return system
