"""The command `doctor`: each check's good and bad verdict, and what it makes of facts that are missing."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from spark_groupsource import errors
from spark_groupsource._version import __version__
from spark_groupsource.checkpoint import folder
from spark_groupsource.cli import main as program
from spark_groupsource.cli.arguments import Connection, DoctorCommand
from spark_groupsource.cli.doctor import machine_facts
from spark_groupsource.cli.doctor.broker_facts import RequestLog, Rights
from spark_groupsource.cli.doctor.command import (
    LEAST_PYTHON,
    SETTINGS,
    Doctor,
    Finding,
    Verdict,
    of_checkpoint,
    of_executors,
    of_group,
    of_machine,
    of_newest_record,
    of_requests,
    of_topic,
    release_of,
    report_doctor,
)
from spark_groupsource.cli.doctor.machine_facts import NAMES, SCRIPT, add_pyspark_of_spark_home, facts_here
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.client_settings import GroupProtocol
from spark_groupsource.spark.executor_facts import (
    ExecutorAnswer,
    ExecutorFacts,
    answers_of,
    make_probe,
    python_of_source,
)
from tests.checkout import ROOT
from tests.unit.checkpoint.test_log import v1
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.cli.test_offset_commands import written
from tests.unit.fakes import ManualClock, group_denied, offset_of, tp

OK, ADVICE, WRONG, SKIPPED = Verdict.OK, Verdict.ADVICE, Verdict.WRONG, Verdict.SKIPPED
FACTS: Mapping[str, Any] = {
    "python": "3.12.1", "executable": "/opt/python", "descriptors": 65536, "reads_in_c": True, "reads": "in C",
    "versions": {
        "groupkafka": "1.0", "pyspark": "4.2.0", "pyarrow": "20", "confluent-kafka": "2.16", "kafka-python": None,
    },
}  # fmt: skip
BEST = {
    "spark.python.unix.domain.socket.enabled": "true", "spark.sql.streaming.stopTimeout": "60s",
    "spark.sql.redaction.options.regex": "(?i)[.]pem$|checkpointlocation",
}  # fmt: skip
MODERN = {"ShareFetch": 1, "ConsumerGroupHeartbeat": 1, "Fetch": 17, "Metadata": 13}
READ = Rights(frozenset({"READ", "DESCRIBE"}), partitions=2)


def verdicts(findings: Iterable[Finding]) -> dict[str, Verdict]:
    """Return the worst verdict of each check."""
    worst = [SKIPPED, OK, ADVICE, WRONG]
    found: dict[str, Verdict] = {}
    for finding in findings:
        found[finding.check] = max(finding.verdict, found.get(finding.check, SKIPPED), key=worst.index)
        if finding.verdict in (ADVICE, WRONG):
            assert finding.cure, finding
    return found


def answer(place: str = "a:/work/0", clock_off_s: float = 0.0, **facts: Any) -> ExecutorAnswer:
    return ExecutorAnswer(place, {**FACTS, **facts}, clock_off_s)


def survey(*answers: ExecutorAnswer, executors: int | None = None, **settings: str) -> ExecutorFacts:
    known = BEST | {name.replace("__", "."): value for name, value in settings.items()}
    return ExecutorFacts("/opt/python", len(answers) if executors is None else executors, answers, known)


# --- machines


@pytest.mark.parametrize(
    ("changed", "check", "verdict", "text"),
    [
        ({}, "versions", OK, "groupkafka 1.0"),
        ({"python": "3.9.2"}, "versions", WRONG, "Python 3.9.2"),
        ({"versions": FACTS["versions"] | {"pyspark": None}}, "versions", WRONG, "without pyspark"),
        ({"versions": FACTS["versions"] | {"pyspark": "4.1.1"}}, "versions", OK, "pyspark 4.1.1"),
        ({"versions": FACTS["versions"] | {"pyspark": "4.1.1"}}, "spark", ADVICE, "has one batch"),
        ({"missing": "ModuleNotFoundError: No module named 'pyarrow'"}, "versions", WRONG, "'pyarrow'"),
        ({"failed": "FileNotFoundError: /opt/python"}, "versions", WRONG, "/opt/python"),
        ({}, "reading", OK, "in C"),
        ({"reads_in_c": False, "reads": "in pure Python"}, "reading", ADVICE, "pure Python"),
        ({}, "descriptors", OK, "65536"),
        ({"descriptors": -1}, "descriptors", OK, "any number"),
        ({"descriptors": 2048}, "descriptors", ADVICE, "2048"),
        ({"descriptors": 256}, "descriptors", WRONG, "256"),
    ],
)
def test_a_machine(changed: dict[str, Any], check: str, verdict: Verdict, text: str) -> None:
    findings = list(of_machine("here", {**FACTS, **changed}))
    assert verdicts(findings)[check] is verdict
    assert text in next(finding.text for finding in findings if finding.check == check)


def test_what_is_not_known_of_a_machine_is_left_out() -> None:
    facts = {name: value for name, value in FACTS.items() if name not in ("reads", "reads_in_c")}
    assert verdicts(of_machine("here", facts | {"descriptors": None})) == {"versions": OK}


def test_a_spark_with_admission_control_needs_no_advice() -> None:
    for version in ("4.2.0", "4.3.0", "5.0.0.dev1", "unknown"):
        assert "spark" not in verdicts(of_machine("here", {**FACTS, "versions": {"pyspark": version}}))


def test_this_machine() -> None:
    facts = facts_here()
    assert facts["versions"]["groupkafka"] == __version__
    assert facts["python"] == sys.version.split()[0]
    assert "missing" not in facts
    assert verdicts(of_machine("here", facts))["versions"] is OK


def test_a_python_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_facts, "_LIMIT_S", 0.01)
    with pytest.raises(OSError, match=r"^it did not end within 0\.01 s$"):
        facts_here()


def test_pyspark_is_imported_from_spark_home_where_none_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = tmp_path / "python" / "lib"
    lib.mkdir(parents=True)
    wanted = [lib / "pyspark.zip", lib / "py4j-0.10-src.zip"]
    for path in wanted:
        path.touch()
    monkeypatch.setattr(sys, "path", ["first"])
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    add_pyspark_of_spark_home()
    assert sys.path == ["first"]
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    add_pyspark_of_spark_home()
    assert sys.path == ["first", *map(str, wanted)]
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [*map(str, wanted), "mine"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    add_pyspark_of_spark_home()
    assert len(sys.path) == 3, "an installed one is used"


def test_a_python_without_the_package() -> None:
    """The script itself needs nothing of it."""
    blocked = "import sys\nfor name in ('spark_groupsource', 'pyarrow'):\n    sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", blocked + SCRIPT], capture_output=True, text=True, check=True)
    findings = list(of_machine("executor a", json.loads(done.stdout)))
    assert verdicts(findings)["versions"] is WRONG
    assert "spark_groupsource" in findings[0].text
    assert sys.executable in findings[0].cure


def test_what_pyproject_asks_for() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, LEAST_PYTHON))}' in text
    assert all(f'"{name}' in text for name in NAMES)


# --- executors


def test_executors_that_are_as_the_driver() -> None:
    found = list(of_executors(survey(answer("a:/0"), answer("b:/1")), FACTS))
    assert set(verdicts(found).values()) == {OK}
    assert sum("executor a:/0" in finding.text for finding in found) == 3


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"python": "3.11.9"}, "Python 3.11, here 3.12"),
        ({"versions": FACTS["versions"] | {"groupkafka": "0.9"}}, "groupkafka 0.9, here 1.0"),
        ({"versions": FACTS["versions"] | {"pyspark": "4.3.0"}}, "pyspark 4.3.0, here 4.2.0"),
        ({"missing": "ModuleNotFoundError: No module named 'spark_groupsource'"}, "'spark_groupsource'"),
        ({"failed": "FileNotFoundError: python"}, "does not run"),
    ],
)
def test_executors_that_are_not(other: dict[str, Any], text: str) -> None:
    found = list(of_executors(survey(answer("a:/0"), answer("b:/1", **other)), FACTS))
    wrong = [finding for finding in found if finding.verdict is WRONG]
    assert len(wrong) == 1
    assert "executor b:/1" in wrong[0].text
    assert text in wrong[0].text


@pytest.mark.parametrize(("off_s", "verdict"), [(4.0, OK), (-4.0, OK), (30.0, WRONG), (-30.0, WRONG)])
def test_an_executors_clock(off_s: float, verdict: Verdict) -> None:
    assert verdicts(of_executors(survey(answer("a:/0", off_s), answer("b:/0")), FACTS))["clock"] is verdict


def test_a_clock_is_compared_with_the_jobs_start_and_end() -> None:
    lines = [
        json.dumps({"place": place, "at_s": at_s, "python": "3"}) for place, at_s in (("a", 101), ("b", 90), ("c", 140))
    ]
    found = answers_of(lines, 100.0, 102.0)
    assert {place: item.clock_off_s for place, item in found.items()} == {"a": 0.0, "b": -10.0, "c": 38.0}
    assert found["a"].facts == {"python": "3"}


def test_executors_that_have_not_answered() -> None:
    found = list(of_executors(survey(answer(), executors=3), FACTS))
    assert verdicts(found)["executors"] is ADVICE
    assert any("1 of 3" in finding.text for finding in found)


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("spark.python.unix.domain.socket.enabled", "", ADVICE),
        ("spark.python.worker.reuse", "false", ADVICE),
        ("spark.sql.streaming.stopTimeout", "0", ADVICE),
        ("spark.sql.redaction.options.regex", "(?i)url", ADVICE),
        ("spark.sql.redaction.options.regex", "(", ADVICE),
        ("spark.pyspark.python", "./environment/bin/python", WRONG),
        ("spark.pyspark.python", "/opt/python", OK),
    ],
)
def test_settings_of_spark(name: str, value: str, verdict: Verdict) -> None:
    findings = list(of_executors(survey(answer(), **{name: value}), FACTS))
    assert verdicts(findings)["settings"] is verdict
    assert verdict is OK or any(name in finding.text for finding in findings)


def test_the_recommended_settings_are_those_of_the_file() -> None:
    lines = (ROOT / "conf" / "spark-defaults.conf").read_text().splitlines()
    given = dict(line.split(None, 1) for line in lines if line.startswith("spark."))
    assert SETTINGS.keys() <= given.keys()
    for name, (is_good, _, _) in SETTINGS.items():
        assert is_good(given[name]), name


def test_the_python_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the JVM chooses it: spark.pyspark.python does not count."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/a")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/b")
    assert python_of_source() == "/b"
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    assert python_of_source() == "/a"
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert python_of_source() == "python3"


def probed(python: str, script: str) -> dict[str, Any]:
    """Return the answer of a worker whose Python lacks the package, as Spark sends it the function."""
    pickled = base64.b64encode(cloudpickle.dumps(make_probe(python, script, 0.0))).decode()
    worker = (
        "import base64, sys\nfrom pyspark import cloudpickle\nsys.modules['spark_groupsource'] = None\n"
        f"print(*cloudpickle.loads(base64.b64decode('{pickled}'))(iter([1])))"
    )
    done = subprocess.run([sys.executable, "-c", worker], capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_the_probe_needs_no_package_where_it_runs() -> None:
    facts = probed(sys.executable, SCRIPT)
    assert facts["versions"]["groupkafka"] == __version__
    assert ":" in facts["place"]


@pytest.mark.parametrize(
    ("python", "script", "failed"),
    [
        ("/no/such/python", SCRIPT, "FileNotFoundError"),
        (sys.executable, "import no_such_module", "no_such_module"),
        (sys.executable, "raise SystemExit(3)", "it ended with 3"),
        (sys.executable, "print('no json')", "JSONDecodeError"),
        (sys.executable, "pass", "IndexError"),
    ],
)
def test_a_python_that_does_not_run(python: str, script: str, failed: str) -> None:
    assert failed in probed(python, script)["failed"]


# --- the cluster


@pytest.mark.parametrize(
    ("requests", "release"),
    [
        (MODERN | {"ListOffsets": 11, "DescribeLogDirs": 5, "DeleteGroups": 3}, "4.4"),
        (MODERN | {"ListOffsets": 11, "DescribeLogDirs": 5}, "4.3"),
        (MODERN | {"ListOffsets": 11}, "4.2"),
        (MODERN, "4.1"),
        (MODERN | {"ShareFetch": 0}, "4.0"),
        ({"Fetch": 17, "Metadata": 12, "ConsumerGroupHeartbeat": 0}, "3.9"),
        ({"Fetch": 11, "Metadata": 10}, "2.8"),
        ({"Fetch": 11, "Metadata": 9}, None),
    ],
)
def test_releases(requests: dict[str, int], release: str | None) -> None:
    assert release_of(requests) == release
    assert verdicts(of_requests(requests, GroupProtocol.CLASSIC))["release"] is (ADVICE if release is None else OK)


def test_kip_848() -> None:
    old = {"Fetch": 17, "Metadata": 12}
    assert verdicts(of_requests(MODERN, GroupProtocol.CONSUMER))["KIP-848"] is OK
    assert verdicts(of_requests(old, GroupProtocol.CLASSIC))["KIP-848"] is OK
    assert verdicts(of_requests(old, GroupProtocol.CONSUMER))["KIP-848"] is WRONG
    assert verdicts(of_requests({}, GroupProtocol.CONSUMER)) == {"release": SKIPPED}


def test_a_list_of_requests_counts_when_its_last_line_was_logged() -> None:
    log = RequestLog()

    def logged(thread: str, text: str) -> bool:
        log.read(f"APIVERSION [groupkafka-doctor#producer-1] [thrd:{thread}]: {thread}: {text}")
        return log.is_complete()

    assert not logged("kafka-1:9092/bootstrap", "Updated enabled protocol features +ApiVersion to ApiVersion")
    assert not logged("kafka-1:9092/bootstrap", "  ApiKey Produce (0) Versions 0..13")
    assert not logged("kafka-1:9092/bootstrap", "  ApiKey Metadata (3) Versions 0..13")
    assert not logged("kafka-2:9092/2", "  ApiKey Metadata (3) Versions 0..12")
    assert not logged("kafka-1:9092/bootstrap", " Feature MsgVer1: Produce (2..32767) supported by broker")
    assert logged("kafka-2:9092/2", " Feature MsgVer1: Produce (2..32767) NOT supported by broker")
    assert log.requests == {"Produce": 13, "Metadata": 12}


@pytest.mark.parametrize(
    ("rights", "verdict"),
    [
        (READ, OK),
        (Rights(frozenset({"ALL"})), OK),
        (Rights(frozenset({"DESCRIBE"})), WRONG),
        (Rights(frozenset()), WRONG),
        (Rights(None), SKIPPED),
    ],
)
def test_rights(rights: Rights, verdict: Verdict) -> None:
    for finding, grant in ((of_topic("orders", rights), "--topic orders"), (of_group("shop", rights), "--group shop")):
        assert finding.verdict is verdict
        assert verdict is not WRONG or f"--operation Read {grant}" in finding.cure


def test_what_does_not_exist() -> None:
    missing = Rights(None, exists=False)
    assert of_topic("orders", missing).verdict is WRONG
    assert of_group("shop", missing).verdict is SKIPPED


@pytest.mark.parametrize(("ahead_ms", "verdict"), [(-100_000, OK), (4_000, OK), (60_000, WRONG)])
def test_a_record_of_the_future(ahead_ms: int, verdict: Verdict) -> None:
    finding = of_newest_record("orders", 1_700_000_000_000 + ahead_ms, 1_700_000_000.0)
    assert finding is not None
    assert finding.verdict is verdict
    assert of_newest_record("orders", None, 1_700_000_000.0) is None


# --- the checkpoint


OURS = json.dumps(offset_of(OffsetRange(tp(0), 0, 5)).to_json())
SPARKS = '{"orders":{"0":5}}'


def test_a_checkpoint_of_this_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its store is connected to once."""
    opened = [folder.open_location(written(tmp_path, v1(OURS), v1(OURS), completed=1))]
    monkeypatch.setattr(folder, "open_location", lambda _: opened.pop())
    finding = of_checkpoint(str(tmp_path))
    assert (finding.verdict, finding.check) == (OK, "checkpoint")
    assert "batch 0 is complete, batch 1 is planned; its query has read orders" in finding.text


def test_checkpoints_that_are_of_no_use(tmp_path: Path) -> None:
    for name, offset in (("sparks", SPARKS), ("none", "{no json"), ("deep", "[" * 100_000)):
        (tmp_path / name).mkdir()
        finding = of_checkpoint(written(tmp_path / name, v1(offset), completed=1))
        assert finding.verdict is WRONG
        assert finding.cure
    assert "adopt" in of_checkpoint(str(tmp_path / "sparks")).cure
    assert of_checkpoint(str(tmp_path / "missing")).verdict is ADVICE
    for location in ("unknown://x/y", "gs:relative"):
        assert of_checkpoint(location).verdict is WRONG


def test_a_checkpoint_of_this_source_and_of_one_whose_offsets_are_not_json(tmp_path: Path) -> None:
    assert of_checkpoint(written(tmp_path, v1("offset 5", OURS), completed=1)).verdict is OK


def test_the_checkpoint_of_a_pipelines_flow(tmp_path: Path) -> None:
    flow = tmp_path / "_checkpoints" / "spark_catalog" / "default" / "orders" / "orders"
    assert of_checkpoint(str(flow)).verdict is ADVICE, "no checkpoint yet"
    written(flow / "0", v1(OURS), completed=1)
    assert of_checkpoint(str(flow)).verdict is OK


def test_a_checkpoints_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(location: str) -> Any:
        raise OSError(f"cannot connect to {location}")

    monkeypatch.setattr(folder, "open_location", refuse)
    finding = of_checkpoint("s3a://me:hunter2@bucket/checkpoint")
    assert finding.verdict is WRONG
    assert "hunter2" not in repr(finding)


# --- the command


class FakeCluster:
    """A cluster with a group that has read `orders`."""

    def __init__(self) -> None:
        self.known: dict[str, Rights] = {"orders": READ}
        self.rights = READ
        self.newest_ms: int | None = 1_000
        self.compression = frozenset({"lz4"})
        self.error: Exception | None = None

    def brokers(self) -> tuple[str, ...]:
        if self.error is not None:
            raise self.error
        return ("broker:9092 (1)",)

    def requests(self) -> Mapping[str, int]:
        return MODERN

    def topic(self, name: str) -> Rights:
        return self.known.get(name, Rights(None, exists=False))

    def group(self) -> Rights:
        return self.rights

    def group_topics(self) -> tuple[str, ...]:
        if self.rights.operations == frozenset():
            raise group_denied()
        return ("orders",)

    def newest_record_ms(self, topic: str, partitions: int) -> int | None:
        return self.newest_ms

    def compressions(self, topic: str, partitions: int) -> frozenset[str]:
        return self.compression


CONNECTION = Connection("broker:9092", "shop")


def report(
    cluster: FakeCluster, command: DoctorCommand, asked: ExecutorFacts | Exception | None = None
) -> tuple[int, str]:
    """Return how many findings are wrong, and what was said."""

    def ask(master: str, script: str, settings: Iterable[str]) -> ExecutorFacts:
        assert (master, script, set(settings)) == ("spark://host:7077", SCRIPT, set(SETTINGS))
        if isinstance(asked, ExecutorFacts):
            return asked
        assert asked is not None, "no master was named"
        raise asked

    output = FakeOutput()
    doctor = Doctor(command, GroupProtocol.CLASSIC, lambda: cluster, lambda: FACTS, ask, ManualClock(), output)
    return report_doctor(doctor), "\n".join(output.lines)


def test_steps_are_reported() -> None:
    output = FakeOutput()
    command = DoctorCommand(CONNECTION, topics=("orders",), master="local[1]")
    given = (command, GroupProtocol.CLASSIC, FakeCluster, lambda: FACTS, lambda *_: survey(), ManualClock())
    report_doctor(Doctor(*given, output))
    assert output.steps == [
        "reading the versions of this Python", "asking the brokers", "checking topic orders",
        "starting an application on local[1], and asking its executors",
    ]  # fmt: skip


def test_nothing_is_wrong() -> None:
    wrong, text = report(FakeCluster(), DoctorCommand(CONNECTION))
    assert wrong == 0
    assert "topic orders: READ is granted" in text
    assert "group shop: READ is granted" in text
    assert text.endswith("no problem found")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [({"gzip"}, "advice"), ({"gzip", "zstd"}, "advice"), ({"zstd", "uncompressed"}, "ok"), (set(), "")],
)
def test_gzip_is_advised_against(found: set[str], verdict: str) -> None:
    cluster = FakeCluster()
    cluster.compression = frozenset(found)
    wrong, text = report(cluster, DoctorCommand(CONNECTION))
    assert wrong == 0
    lines = [line for line in text.splitlines() if "compression  " in line]
    assert [line.split()[0] for line in lines] == ([verdict] if verdict else [])


def test_what_is_wrong_is_counted_and_the_rest_goes_on() -> None:
    cluster = FakeCluster()
    cluster.rights = Rights(frozenset())
    wrong, text = report(cluster, DoctorCommand(CONNECTION, ("orders", "refunds")))
    assert wrong == 2
    assert "group shop: READ is missing" in text
    assert "topic refunds does not exist" in text
    assert "topic orders: READ is granted" in text
    assert "-> kafka-acls.sh --add --allow-principal User:... --operation Read --group shop" in text
    assert text.endswith("2 wrong")


def test_brokers_that_cannot_be_reached() -> None:
    cluster = FakeCluster()
    cluster.error = KafkaUnavailableError(errors.BROKER_UNREACHABLE, servers="b", timeout_s=20.0, reason="away")
    wrong, text = report(cluster, DoctorCommand(CONNECTION, master="spark://host:7077"), survey(answer()))
    assert wrong == 1
    assert "-> check host, port, network" in text
    assert "executor a:/work/0" in text


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["An error occurred", "at org", "Caused by: java.io.IOException: no", "at java"], "Caused by: java.io.IO"),
        (
            ["org.apache.spark.SparkException: aborted", 'Caused by: IO: Cannot run program "/p"', "Caused by: IO: 2"],
            'Caused by: IO: Cannot run program "/p"',
        ),
        (["some text", "py4j.protocol.Py4JError: refused"], "py4j.protocol.Py4JError: refused"),
        (["some text"], "some text"),
        ([], "RuntimeError"),
    ],
)
def test_a_cluster_of_spark_that_cannot_be_asked(lines: list[str], shown: str) -> None:
    error = RuntimeError("\n".join(lines))
    wrong, text = report(FakeCluster(), DoctorCommand(CONNECTION, master="spark://host:7077"), error)
    assert wrong == 1
    assert f"the Spark cluster cannot be checked: {shown}" in text


def test_json() -> None:
    cluster = FakeCluster()
    cluster.newest_ms = 10**15
    wrong, text = report(cluster, DoctorCommand(CONNECTION, as_json=True))
    seen = json.loads(text)
    assert (wrong, seen["wrong"]) == (1, 1)
    (bad,) = [row for row in seen["findings"] if row["verdict"] == "wrong"]
    assert bad["check"] == "clock"
    assert set(bad) == {"check", "verdict", "text", "cure"}


@pytest.mark.parametrize(("operations", "code"), [({"READ"}, 0), (set(), 1)])
def test_the_exit_code(
    operations: set[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = FakeCluster()
    cluster.known["orders"] = Rights(frozenset(operations), 1)
    monkeypatch.setattr(program, "ClusterFacts", lambda *_: cluster)
    assert program.main(["doctor", "--bootstrap-servers", "b:1", "--topic", "orders"]) == code
    assert re.search(r"^skipped +executors", capsys.readouterr().out, re.MULTILINE)


def test_a_python_without_any_package_of_ours() -> None:
    """As the guide to `doctor` shows it."""
    missing = "ModuleNotFoundError: No module named 'spark_groupsource'"
    facts = FACTS | {"python": "3.11.7", "versions": dict.fromkeys(FACTS["versions"]), "missing": missing}
    found = next(finding for finding in of_machine("executor a", facts) if finding.check == "versions")
    assert found.text == f"executor a: Python 3.11.7 ({missing})"
