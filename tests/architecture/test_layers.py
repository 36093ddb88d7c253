"""The shape of the code: imports point down the module list, few modules know a library, functions stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "spark_groupsource"
MAX_FUNCTION_LINES = 60
MAX_CLASS_LINES = 350
# Classes of the package that are longer, and why they are one.
LONG_CLASSES = {
    "LibrdkafkaGroup": "all that one client is asked, and what it calls back: its methods share the client's life",
    "Member": "all that happens on the event thread: the loop, the client's callbacks, draining and leaving share it",
    "RangeConsumer": "one invariant over what is assigned, kept and delivered, which each of its methods needs whole",
    "Session": "the order of Spark's calls: each step needs the batch in flight, and its parts are objects already",
}

# From top to bottom: the rows are the ranks. A module may import modules of lower rows, and those of its own folder;
# neighbours in a row never import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("__init__", "__main__", "cli", "functions", "spark"),
    ("driver",),
    ("sidecars",),
    ("embedded", "executor", "lag", "membership"),
    ("cluster",),
    ("client", "planning", "timeline"),
    ("options",),
    ("assignors", "checkpoint", "metrics"),
    ("model", "prometheus"),
    ("errors",),
    ("_librdkafka", "_version", "clock", "failpoints", "redaction"),
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
# What the ranks alone would allow.
NEVER = {"cli": {"driver", "membership", "sidecars"}}
# Entry points name what they start.
ENTRIES = {"__init__", "__main__"}
# Between neighbours: `doctor --master` asks the executors of a cluster through Spark.
ALLOWED = {
    ("cli/doctor/command.py", "spark_groupsource.spark.executor_facts"),
    ("cli/main.py", "spark_groupsource.spark.executor_facts"),
}
MAX_ROOT_FILES = 9

# The adapters. Everything else goes through their ports.
MAY_IMPORT = {
    "pyspark": {
        "functions/confluent_avro.py",
        "spark/executor_facts.py",
        "spark/owner.py",
        "spark/progress_listener.py",
        "spark/row_handover.py",
        "spark/source.py",
        "spark/spark_calls.py",
        "spark/stop.py",
        "spark/stop_by_connect.py",
        "spark/stop_signals.py",
    },
    "py4j": {"spark/stop_signals.py"},
    "plotly": {"timeline/page.py"},
    "kafka": {
        "cli/group/describe.py",
        "client/kafka_python_settings.py",
        "membership/backends/kafka_python/assignor.py",
        "membership/backends/kafka_python/client.py",
        "membership/backends/kafka_python/errors.py",
        "membership/backends/kafka_python/peers.py",
        "membership/backends/kafka_python/poller.py",
        "membership/backends/kafka_python/private.py",
    },
    "fastavro": {"functions/avro_reader.py"},
    "prometheus_client": {"prometheus/server.py"},
    "confluent_kafka": {
        "cli/admin.py",
        "cli/doctor/broker_facts.py",
        "cli/group/describe.py",
        "client/answers.py",
        "client/errors.py",
        "client/settings.py",
        "client/tokens.py",
        "cluster/admin.py",
        "cluster/probe.py",
        "embedded/broker.py",
        "executor/clients/error_events.py",
        "executor/clients/native.py",
        "executor/clients/pure_python.py",
        "executor/topic_ids.py",
        "lag/measure.py",
        "membership/backends/commit_errors.py",
        "membership/backends/kafka_python/errors.py",
        "membership/backends/kafka_python/identity.py",
        "membership/backends/librdkafka.py",
        "membership/backends/peers.py",
    },
}
# The only module that uses kafka-python beyond its public API.
BEYOND_PUBLIC = "membership/backends/kafka_python/private.py"
# Decisions: no I/O, clock, thread or log.
PURE = (
    "assignors/co_partitioned.py",
    "assignors/fair_shares.py",
    "assignors/interface.py",
    "assignors/leader.py",
    "assignors/metadata.py",
    "assignors/notes.py",
    "assignors/rack_aware.py",
    "assignors/redundant.py",
    "assignors/rounds.py",
    "assignors/single_active.py",
    "assignors/weighted.py",
    "cli/exporter/samples.py",
    "cli/group/member_data.py",
    "cli/group/view.py",
    "cli/text_table.py",
    "lag/model.py",
    "membership/events.py",
    "membership/lock_states.py",
    "membership/machine.py",
    "options/offset_spec.py",
    "planning/batch.py",
    "planning/shared_state.py",
    "planning/start_position.py",
    "planning/tasks.py",
    "prometheus/families.py",
    "timeline/events.py",
    "timeline/model.py",
)
PURE_IMPORTS = {
    "__future__", "abc", "base64", "binascii", "bisect", "collections", "dataclasses", "datetime", "enum", "fractions",
    "heapq", "itertools", "json", "re", "spark_groupsource", "typing",
}  # fmt: skip
PURE_NEIGHBOURS = {"assignors", "cli", "lag", "membership", "model", "options", "planning", "prometheus", "timeline"}
PURE_OPTIONS = {"model", "offset_spec"}


@dataclass(frozen=True, slots=True)
class Import:
    """One import: which module, where, and whether importing the file runs it."""

    target: str
    line: int
    at_once: bool


def modules() -> list[Path]:
    """Return all modules of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def sources() -> list[Path]:
    """Return all Python files of the project that are not tests, and the tests."""
    folders = ("spark_groupsource", "jobs", "scripts", "tests")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a module's path inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def component(path: Path) -> str:
    """Return the module's entry in the list of layers."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Return all imports of a file, also those inside functions and for type checkers only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in at_once)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.is_relative_to(ROOT / "tests"), f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, id(node) in at_once)


def imported_component(target: str) -> str | None:
    """Return the layer entry of an imported name, None when it is not of the package."""
    top, _, rest = target.partition(".")
    if top != "spark_groupsource":
        return None
    first = rest.partition(".")[0]
    return first if first in RANK else "__init__"


def allowed(module: str, target: str) -> bool:
    """Return whether an import is an exception of the ranks."""
    return (module, target.rpartition(".")[0]) in ALLOWED


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_every_module_has_its_place(path: Path) -> None:
    assert component(path) in RANK, f"{name_of(path)}: give it a row in LAYERS and in docs/ARCHITECTURE.md"


def test_no_place_is_empty() -> None:
    assert {component(path) for path in modules()} == set(RANK)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = component(path)
    for item in imports(path):
        other = imported_component(item.target)
        if other is None or other == own or own in ENTRIES or allowed(name_of(path), item.target):
            continue
        where = f"{name_of(path)}:{item.line} ({own}) imports {item.target} ({other})"
        assert RANK[other] > RANK[own], where
        assert other not in NEVER.get(own, ()), where


def test_the_root_holds_what_all_folders_need() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_ROOT_FILES


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_only_adapters_know_kafka_and_spark(path: Path) -> None:
    for item in imports(path):
        allowed = MAY_IMPORT.get(item.target.partition(".")[0])
        assert allowed is None or name_of(path) in allowed, f"{name_of(path)}:{item.line} imports {item.target}"


@pytest.mark.parametrize("name", sorted(MAY_IMPORT["kafka"] - {BEYOND_PUBLIC}))
def test_one_module_goes_beyond_the_public_api_of_kafka_python(name: str) -> None:
    for item in imports(PACKAGE / name):
        # Token providers are public: the setting sasl_oauth_token_provider takes one.
        inner = item.target.startswith("kafka.net.") and not item.target.startswith("kafka.net.sasl.oauth.")
        assert not inner, f"{name}:{item.line} imports {item.target}: that belongs in {BEYOND_PUBLIC}"
    for node in ast.walk(ast.parse((PACKAGE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self" and node.attr.startswith("_"):
            # A special name, or an error code of librdkafka, as _TRANSPORT.
            other = node.attr.endswith("__") or node.attr.isupper()
            assert other, f"{name}:{node.lineno} uses {node.attr}: that belongs in {BEYOND_PUBLIC}"


def test_every_exception_is_needed() -> None:
    """Whoever no longer imports Spark or Kafka loses the right to."""
    for library, allowed in MAY_IMPORT.items():
        users = {name_of(p) for p in modules() for item in imports(p) if item.target.partition(".")[0] == library}
        assert allowed <= users, library


def test_the_package_itself_imports_nothing_at_once() -> None:
    """The embedded broker and the command line do without Spark."""
    targets = [item.target for item in imports(PACKAGE / "__init__.py") if item.at_once]
    assert targets == ["typing.TYPE_CHECKING", "typing.Any", "spark_groupsource._version.__version__"]


def test_reading_imports_little() -> None:
    """Each worker and each query pays for it: pandas half a second, pyarrow's functions a twentieth."""
    code = "import sys, spark_groupsource.executor.reader; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    needless = ("pandas", "pyspark", "pyarrow.compute", "spark_groupsource.membership", "spark_groupsource.driver")
    assert [name for name in needless if name in ran.stdout.split()] == []


@pytest.mark.parametrize("name", PURE)
def test_decisions_are_pure(name: str) -> None:
    for item in imports(PACKAGE / name):
        where = f"{name}:{item.line} imports {item.target}"
        assert item.target.partition(".")[0] in PURE_IMPORTS, where
        assert imported_component(item.target) in {None, *PURE_NEIGHBOURS}, where
        if imported_component(item.target) == "options":
            assert item.target.split(".")[2] in PURE_OPTIONS, where


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_size_and_alphabet(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    where = path.relative_to(ROOT).as_posix()
    assert text.isascii(), f"{where}: ASCII only"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{where}:{node.lineno} {node.name} has {length} lines"


def test_long_classes_have_a_reason() -> None:
    long = {
        node.name
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno + 1 > MAX_CLASS_LINES
    }
    assert long == LONG_CLASSES.keys()
