"""A libhdfs for pyarrow: the one named by GROUPKAFKA_LIBHDFS, else a stand-in that is built here.

Hadoop's own is in no package registry. The stand-in starts a JVM inside the process, as Hadoop's does, and prints a
stack trace for a missing file that is opened. With GROUPKAFKA_LIBHDFS=<directory of libhdfs.so> the tests run on the
real one, with the Hadoop client that PySpark ships, on a `viewfs:` mount of the local file system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.realkafka.jars import RealKafkaError, find_java

_SOURCE = Path(__file__).with_name("libhdfs_standin.c")
_JARS = ("hadoop-client-", "slf4j-api", "log4j-", "jcl-over-slf4j", "commons-lang3")


class LibhdfsMissing(RuntimeError):
    """There is no libhdfs, and none can be built; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Libhdfs:
    """What a process needs to read local folders through libhdfs."""

    environment: dict[str, str]
    prefix: str

    def location(self, path: Path) -> str:
        """Return the location at which libhdfs has a local folder."""
        return f"{self.prefix}{path}"


def java_home() -> Path:
    """Return the home of the Java that has a libjvm.so. Raises `LibhdfsMissing`."""
    try:
        home = find_java().resolve().parent.parent
    except RealKafkaError as error:
        raise LibhdfsMissing(str(error)) from None
    if not (home / "lib" / "server" / "libjvm.so").exists():
        raise LibhdfsMissing(f"no libjvm.so below {home}")
    return home


def libhdfs(folder: Path) -> Libhdfs:
    """Return a libhdfs, built or configured in `folder`. Raises `LibhdfsMissing`."""
    home = java_home()
    given = os.environ.get("GROUPKAFKA_LIBHDFS")
    if given:
        # The folder is mounted at its own path.
        (folder / "core-site.xml").write_text(
            "<configuration><property>"
            f"<name>fs.viewfs.mounttable.tests.link.{folder.parent}</name><value>file://{folder.parent}</value>"
            "</property></configuration>"
        )
        jars = Path(pyspark.__file__).parent / "jars"
        wanted = [str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS)]
        environment = {"CLASSPATH": ":".join([str(folder), *wanted]), "ARROW_LIBHDFS_DIR": given}
        return Libhdfs(environment | {"JAVA_HOME": str(home)}, "viewfs://tests")
    _build(home, folder / "libhdfs.so")
    return Libhdfs({"ARROW_LIBHDFS_DIR": str(folder), "JAVA_HOME": str(home)}, "hdfs://tests:8020")


def _build(home: Path, target: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LibhdfsMissing("no C compiler")
    if not (home / "include" / "jni.h").exists():
        raise LibhdfsMissing(f"no jni.h below {home}: it is part of a JDK")
    server = home / "lib" / "server"
    command = [
        compiler, "-shared", "-fPIC", "-O1", "-Wall", f"-I{home}/include", f"-I{home}/include/linux",
        str(_SOURCE), "-o", str(target), f"-L{server}", "-ljvm", f"-Wl,-rpath,{server}",
    ]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        raise LibhdfsMissing(f"the stand-in cannot be built: {built.stderr}")
