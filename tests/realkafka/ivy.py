"""Fetch jars with the dependency manager (Ivy) that PySpark ships, into the user's cache directory.

Ivy needs a Java and Maven Central (or the mirror that its settings name), and nothing that is not in PySpark.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr


class IvyError(RuntimeError):
    """Ivy is missing, or did not fetch all jars; the text has its output."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module of a Maven repository; `transitive` adds what it depends on."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False

    @property
    def jar(self) -> str:
        """The file name of its jar."""
        return f"{self.name}-{self.revision}.jar"

    def xml(self) -> str:
        """Return the element of an Ivy file that asks for it."""
        given = {"org": self.organisation, "name": self.name, "rev": self.revision}
        given |= {"transitive": str(self.transitive).lower(), "conf": "*->default"}
        return f"<dependency {' '.join(f'{key}={quoteattr(value)}' for key, value in given.items())}/>"


def pyspark_jars() -> Path:
    """Return the folder of PySpark's jars. Raises `IvyError` without PySpark, which is not imported."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise IvyError("PySpark is not installed: its jars fetch others (pip install pyspark)")
    return Path(spec.origin).parent / "jars"


def fetch(java: Path, target: Path, modules: Sequence[Module], timeout_s: float, excluded: Sequence[str] = ()) -> None:
    """Fetch the modules' jars into the folder `target`, which appears when it is complete.

    `excluded` are organisations, or `organisation:name`, that are left out among the dependencies: those that PySpark
    has itself. Several processes may do this at once. Raises `IvyError`.
    """
    ivy = sorted(pyspark_jars().glob("ivy-*.jar"))
    if not ivy:
        raise IvyError(f"no ivy-*.jar in {pyspark_jars()}: is this PySpark complete?")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetch-") as folder:
        wanted, jars = Path(folder) / "ivy.xml", Path(folder) / "jars"
        wanted.write_text(_ivy_file(modules, excluded))
        command = [
            *(str(java), "-jar", str(ivy[-1]), "-cache", f"{folder}/ivy", "-warn", "-ivy", str(wanted)),
            *("-types", "jar", "bundle", "-retrieve", f"{jars}/[artifact]-[revision].[ext]"),
        ]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=folder)
        missing = [module.jar for module in modules if not (jars / module.jar).exists()]
        if run.returncode != 0 or missing:
            raise IvyError(f"fetching {', '.join(missing) or target.name} failed:\n{(run.stdout + run.stderr)[-2000:]}")
        try:
            jars.rename(target)
        except OSError:
            # Another process was faster.
            if not target.exists():
                raise


def _ivy_file(modules: Sequence[Module], excluded: Sequence[str]) -> str:
    wanted = "".join(module.xml() for module in modules)
    left_out = ""
    for entry in excluded:
        organisation, _, name = entry.partition(":")
        left_out += f"<exclude org={quoteattr(organisation)}" + (f" module={quoteattr(name)}" if name else "") + "/>"
    return (
        '<ivy-module version="2.0"><info organisation="local" module="fetched"/>'
        f"<dependencies>{wanted}{left_out}</dependencies></ivy-module>"
    )
