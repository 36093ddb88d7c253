"""The command `doctor`: check a setup for common problems, and show the remedy.

Each check is pure and turns facts into findings; `Doctor` collects the facts. A wrong finding makes the exit code 1,
an advice does not. Nothing is changed: the command joins no group and writes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from spark_groupsource.checkpoint.folder import CheckpointFolder
from spark_groupsource.checkpoint.location import shown_location
from spark_groupsource.checkpoint.log import SparkCheckpoint, read_spark_checkpoint
from spark_groupsource.cli.arguments import DoctorCommand
from spark_groupsource.cli.doctor.broker_facts import ClusterFacts, Rights
from spark_groupsource.cli.doctor.machine_facts import SCRIPT
from spark_groupsource.cli.output import Output, in_flags
from spark_groupsource.clock import Clock
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.model.offsets import parse_offset, parsed_json
from spark_groupsource.options.client_settings import GroupProtocol

if TYPE_CHECKING:
    from spark_groupsource.spark.executor_facts import ExecutorAnswer, ExecutorFacts

# (major, minor) as required in pyproject.toml.
LEAST_PYTHON = (3, 10)
NEEDED = ("groupkafka", "pyspark", "pyarrow", "confluent-kafka")
# For a driver with a few queries, each with clients of about ten brokers.
FEW_DESCRIPTORS, LEAST_DESCRIPTORS = 4096, 1024
# Clocks with NTP differ by milliseconds; watermarks and `startingTimestamp` tolerate some seconds.
CLOCK_OFF_S = 5.0
# A release, and a request version that it introduced; newest first.
RELEASES = (
    ("4.4", "DeleteGroups", 3),
    ("4.3", "DescribeLogDirs", 5),
    ("4.2", "ListOffsets", 11),
    ("4.1", "ShareFetch", 1),
    ("4.0", "ConsumerGroupHeartbeat", 1),
    ("3.9", "Fetch", 17),
    ("3.7", "Fetch", 16),
    ("3.5", "Fetch", 15),
    ("3.1", "Fetch", 13),
    ("2.8", "Metadata", 10),
)
_LOCATION = (
    "use the writer's checkpointLocation with its scheme, and give pyarrow its credentials (docs/explanation/limits.md)"
)
# Patterns of the lines in Spark's errors that show the cause, the most specific one first.
_CAUSES = (
    "Cannot run program|PYTHON_VERSION_MISMATCH|failed to connect back|No module named",
    "^Caused by: ",
    r"^[\w.]*(Error|Exception): ",
)
_LONGEST_CAUSE = 500
_KIP_848 = "ConsumerGroupHeartbeat"
_TOPIC_IDS = ("Metadata", 10)
# The first release with admission control for sources in Python.
_LEAST_SPARK_WITH_LIMITS = (4, 2)
_OLD_SPARK = (
    "PySpark {version}: a run with Trigger.AvailableNow or Once has one batch, also with a limit per trigger, and"
    " Spark's progress has no lag"
)
_OLD_SPARK_CURE = (
    "give scheduled jobs no maxOffsetsPerTrigger or maxBytesPerTrigger, or watch 'groupkafka lag'"
    " (docs/spark-versions.md)"
)
_INSTALL = "install groupkafka into {executable} on every machine, or set PYSPARK_PYTHON to a Python that has it"


def _redacts(pattern: str) -> bool:
    try:
        return all(re.search(pattern, name) for name in ("kafka.ssl.key.pem", "checkpointlocation")) and pattern != ""
    except re.error:
        return False


# Spark setting -> (check of a value, recommended value, benefit), as in conf/spark-defaults.conf
SETTINGS: Mapping[str, tuple[Callable[[str], bool], str, str]] = {
    "spark.python.unix.domain.socket.enabled": (
        lambda value: value.lower() == "true", "true", "a batch of one task takes 27 ms instead of 70",
    ),
    "spark.python.worker.reuse": (
        lambda value: value.lower() in ("", "true"), "true", "workers keep their connections between batches",
    ),
    "spark.sql.streaming.stopTimeout": (
        lambda value: re.search("[1-9]", value) is not None, "60s", "query.stop() ends when a batch hangs",
    ),
    "spark.sql.redaction.options.regex": (
        _redacts, "the value of conf/spark-defaults.conf",
        "plans and the event log show no secret in ssl.key.pem or checkpointLocation",
    ),
}  # fmt: skip


class Verdict(Enum):
    """Result of a check."""

    OK = "ok"
    ADVICE = "advice"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `cure` is the remedy, empty if none is needed."""

    check: str
    verdict: Verdict
    text: str
    cure: str = ""


def _ok(check: str, text: str) -> Finding:
    return Finding(check, Verdict.OK, text)


def of_error(check: str, error: GroupKafkaError) -> Finding:
    """Convert an error to a finding; the error's advice is the cure."""
    text, _, cure = in_flags(str(error)).partition(" What to do: ")
    return Finding(check, Verdict.WRONG, text, cure)


# --- machines


def of_machine(where: str, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Check a Python: versions, how it reads records, file descriptors."""
    executable = facts.get("executable", "the Python of PYSPARK_PYTHON")
    if "failed" in facts:
        cure = "set PYSPARK_PYTHON to a Python that exists under the same path on every machine"
        yield Finding("versions", Verdict.WRONG, f"{where}: the source's Python does not run: {facts['failed']}", cure)
        return
    versions = {name: value for name, value in facts["versions"].items() if value is not None}
    text = f"{where}: " + ", ".join(
        f"{name} {value}" for name, value in ({"Python": facts["python"]} | versions).items()
    )
    missing = [name for name in NEEDED if name not in versions]
    if tuple(map(int, facts["python"].split(".")[:2])) < LEAST_PYTHON:
        yield Finding("versions", Verdict.WRONG, text, f"use Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    elif "missing" in facts or (missing and where == "here"):
        reason = facts.get("missing") or f"without {', '.join(missing)}"
        yield Finding("versions", Verdict.WRONG, f"{text} ({reason})", _INSTALL.format(executable=executable))
    else:
        yield _ok("versions", text)
    if where == "here":
        yield from _spark(versions.get("pyspark", ""))
    if "reads" in facts:
        yield _reading(where, facts)
    yield from _descriptors(where, facts.get("descriptors"))


def _spark(version: str) -> Iterator[Finding]:
    """Report what a release of Spark before 4.2 lacks."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and (int(found[1]), int(found[2])) < _LEAST_SPARK_WITH_LIMITS:
        yield Finding("spark", Verdict.ADVICE, _OLD_SPARK.format(version=version), _OLD_SPARK_CURE)


def _reading(where: str, facts: Mapping[str, Any]) -> Finding:
    if facts["reads_in_c"]:
        return _ok("reading", f"{where}: {facts['reads']}")
    cure = "install a wheel, or reinstall on a machine with a C compiler; the rows are the same either way"
    return Finding("reading", Verdict.ADVICE, f"{where}: {facts['reads']}", cure)


def _descriptors(where: str, limit: int | None) -> Iterator[Finding]:
    if limit is None:
        return
    text = f"{where}: {limit if limit >= 0 else 'any number of'} files and connections at the same time"
    cure = "raise the limit: ulimit -n 65536 before Spark starts; LimitNOFILE=65536 for systemd"
    if 0 <= limit < LEAST_DESCRIPTORS:
        yield Finding("descriptors", Verdict.WRONG, text, cure)
    elif 0 <= limit < FEW_DESCRIPTORS:
        yield Finding("descriptors", Verdict.ADVICE, text, cure)
    else:
        yield _ok("descriptors", text)


def of_executors(found: ExecutorFacts, here: Mapping[str, Any]) -> Iterator[Finding]:
    """Check executors: each on its own, and whether they match the driver."""
    for answer in sorted(found.answers, key=lambda each: each.place):
        yield from of_machine(f"executor {answer.place}", answer.facts)
        yield from _as_here(answer, here)
        if abs(answer.clock_off_s) > CLOCK_OFF_S:
            text = (
                f"executor {answer.place}: its clock differs from the driver's by {answer.clock_off_s:+.1f} s or more"
            )
            yield Finding("clock", Verdict.WRONG, text, "synchronize the clocks of all machines (NTP)")
    if found.answers and all(abs(answer.clock_off_s) <= CLOCK_OFF_S for answer in found.answers):
        yield _ok("clock", f"the executors' clocks agree with the driver's within {CLOCK_OFF_S:.0f} s")
    count = len(found.answers)
    if count < found.executors:
        yield Finding("executors", Verdict.ADVICE, f"{count} of {found.executors} executors have answered",
                      "run doctor again when the cluster is less busy")  # fmt: skip
    else:
        yield _ok("executors", f"{count} of {found.executors} have answered")
    yield from of_settings(found)


def _as_here(answer: ExecutorAnswer, here: Mapping[str, Any]) -> Iterator[Finding]:
    """Check versions that must be the same on both sides, because objects are pickled between them."""
    if "versions" not in answer.facts or "versions" not in here:
        return
    pairs = [("Python", *(".".join(facts["python"].split(".")[:2]) for facts in (answer.facts, here)))]
    pairs += [
        (name, answer.facts["versions"].get(name), here["versions"].get(name)) for name in ("groupkafka", "pyspark")
    ]
    for name, there, own in pairs:
        if there is not None and own is not None and there != own:
            yield Finding("versions", Verdict.WRONG, f"executor {answer.place}: {name} {there}, here {own}",
                          f"install the same {name} on all machines")  # fmt: skip


def of_settings(found: ExecutorFacts) -> Iterator[Finding]:
    """Check Spark's settings."""
    advices = 0
    for name, (is_good, wanted, use) in SETTINGS.items():
        value = found.settings.get(name, "")
        if not is_good(value):
            advices += 1
            shown = f"is '{value}'" if value else "is not set"
            yield Finding("settings", Verdict.ADVICE, f"{name} {shown}; recommended, because then {use}",
                          f"set it to {wanted} (conf/spark-defaults.conf)")  # fmt: skip
    python = found.settings.get("spark.pyspark.python")
    if python is not None and python != found.python:
        advices += 1
        yield Finding(
            "settings", Verdict.WRONG,
            f"spark.pyspark.python is '{python}', which has no effect on the source: it runs with '{found.python}'",
            "set the variable PYSPARK_PYTHON (and no PYSPARK_DRIVER_PYTHON) before the driver starts",
        )  # fmt: skip
    if not advices:
        yield _ok("settings", "Spark's settings are as recommended")


# --- the cluster


def release_of(requests: Mapping[str, int]) -> str | None:
    """Return the newest release of the table whose new request the brokers support; None if they support none."""
    known = (release for release, name, version in RELEASES if requests.get(name, -1) >= version)
    return next(known, None)


def of_requests(requests: Mapping[str, int], protocol: GroupProtocol) -> Iterator[Finding]:
    """Check the brokers' release by the requests that they support."""
    if not requests:
        yield Finding("release", Verdict.SKIPPED, "no broker reported which requests it supports")
        return
    release = release_of(requests)
    if requests.get(_TOPIC_IDS[0], -1) < _TOPIC_IDS[1]:
        yield Finding("release", Verdict.ADVICE, "Kafka before 2.8, or another server with its protocol: no topic ids",
                      "do not recreate topics: the source cannot detect it")  # fmt: skip
    else:
        yield _ok("release", f"Kafka {release} or newer, or another server with its protocol")
    version = requests.get(_KIP_848, -1)
    if version >= 1:
        yield _ok("KIP-848", "the brokers support it (kafka.group.protocol=consumer)")
    elif protocol is GroupProtocol.CONSUMER:
        yield Finding("KIP-848", Verdict.WRONG, "kafka.group.protocol is consumer, but the brokers do not support it",
                      "use kafka.group.protocol=classic, or Kafka 4.0 or newer")  # fmt: skip
    else:
        yield _ok("KIP-848", "the brokers do not support it; the classic protocol (the default) does not need it")


def of_topic(name: str, rights: Rights) -> Finding:
    """Check the rights on a topic."""
    if not rights.exists:
        return Finding("rights", Verdict.WRONG, f"topic {name} does not exist, or the client may not describe it",
                       "check --topic; or grant READ on the topic")  # fmt: skip
    return _rights(f"topic {name}", rights, f"--operation Read --topic {name}")


def of_group(name: str, rights: Rights) -> Finding:
    """Check the rights on the group."""
    if not rights.exists:
        text = f"group {name} does not exist yet: the right to join it cannot be checked"
        return Finding("rights", Verdict.SKIPPED, text)
    return _rights(f"group {name}", rights, f"--operation Read --group {name}")


def _rights(what: str, rights: Rights, grant: str) -> Finding:
    if rights.operations is None:
        return Finding("rights", Verdict.SKIPPED, f"{what}: the broker does not report rights")
    # ALL contains READ; brokers name both.
    if rights.operations & {"READ", "ALL"}:
        return _ok("rights", f"{what}: READ is granted")
    cure = f"kafka-acls.sh --add --allow-principal User:... {grant} --bootstrap-server ... (docs/security.md)"
    return Finding("rights", Verdict.WRONG, f"{what}: READ is missing", cure)


def of_newest_record(topic: str, newest_ms: int | None, now_s: float) -> Finding | None:
    """Check the local clock against a topic's newest record, which cannot be from the future."""
    if newest_ms is None:
        return None
    ahead_s = newest_ms / 1000 - now_s
    if ahead_s <= CLOCK_OFF_S:
        return _ok("clock", f"topic {topic}: no record is from the future")
    text = f"topic {topic}: its newest record is {ahead_s:.1f} s in the future by the clock here"
    return Finding(
        "clock", Verdict.WRONG, text, "synchronize the clocks of this machine, the producers and the brokers (NTP)"
    )


def of_compression(topic: str, found: Collection[str]) -> Finding | None:
    """Check how a topic's newest batches are compressed: this client unpacks gzip twice."""
    if not found:
        return None
    text = f"topic {topic}: the newest batches are {', '.join(sorted(found))}"
    if "gzip" not in found:
        return _ok("compression", text)
    return Finding(
        "compression", Verdict.ADVICE, f"{text}; gzip is read at half of the speed of Spark's own source",
        "let producers use zstd, lz4 or snappy (compression.type; docs/explanation/performance.md#gzip)",
    )  # fmt: skip


# --- the checkpoint


def of_checkpoint(location: str) -> Finding:
    """Check whether the source could read the checkpoint from this machine, and to which query it belongs."""
    folder = CheckpointFolder(location)
    shown = folder.name
    try:
        has_batches = folder.infos("offsets")[0].type != fs.FileType.NotFound
    except FileNotFoundError:
        has_batches = False
    except Exception as error:  # noqa: BLE001 - pyarrow raises many kinds if a library is missing
        text = folder.scrubbed(error)
        return Finding("checkpoint", Verdict.WRONG, f"{shown} cannot be read: {text}", _LOCATION)
    if not has_batches:
        text = f"{shown}: no checkpoint exists yet"
        return Finding("checkpoint", Verdict.ADVICE, text, f"nothing for a new query; else {_LOCATION}")
    try:
        return _whose(shown, read_spark_checkpoint(folder))
    except ValueError as error:
        return Finding("checkpoint", Verdict.WRONG, f"{shown} cannot be read: {error}", _LOCATION)


def _whose(shown: str, checkpoint: SparkCheckpoint) -> Finding:
    errors: list[GroupKafkaError] = []
    topics: set[str] = set()
    for text in checkpoint.offsets.values():
        try:
            topics |= {partition.topic for partition in parse_offset(parsed_json("offset", text)).ends()}
        except GroupKafkaError as error:
            errors.append(error)
    if checkpoint.offsets and len(errors) == len(checkpoint.offsets):
        return of_error("checkpoint", errors[0])
    done = "no batch is complete" if checkpoint.completed is None else f"batch {checkpoint.completed} is complete"
    read = f"its query has read {', '.join(sorted(topics))}" if topics else "its query has read no topic"
    return _ok("checkpoint", f"{shown}: {done}, batch {checkpoint.logged} is planned; {read}")


# --- the command


@dataclass(frozen=True, slots=True)
class Doctor:
    """Collects the facts. `cluster` creates the client, which detects wrong settings only then."""

    command: DoctorCommand
    protocol: GroupProtocol
    cluster: Callable[[], ClusterFacts]
    facts_here: Callable[[], Mapping[str, Any]]
    probe_executors: Callable[[str, str, Iterable[str]], ExecutorFacts]
    clock: Clock
    output: Output

    def findings(self) -> Iterator[Finding]:
        """Return all findings, one after the other."""
        self.output.step("reading the versions of this Python")
        try:
            here = self.facts_here()
        except (OSError, ValueError) as error:
            here = {"failed": str(error)}
        yield from of_machine("here", here)
        yield from self._of_cluster()
        if self.command.checkpoint is not None:
            self.output.step(f"reading the checkpoint {shown_location(self.command.checkpoint)}")
            yield of_checkpoint(self.command.checkpoint)
        if self.command.master is None:
            yield Finding("executors", Verdict.SKIPPED, "use --master to check executors and Spark's settings")
            return
        self.output.step(f"starting an application on {self.command.master}, and asking its executors")
        try:
            yield from of_executors(self.probe_executors(self.command.master, SCRIPT, SETTINGS), here)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises, the other findings count
            yield _of_failed_probe(error)

    def _of_cluster(self) -> Iterator[Finding]:
        self.output.step("asking the brokers")
        try:
            cluster = self.cluster()
            brokers = cluster.brokers()
            yield _ok("brokers", f"{len(brokers)} can be reached: {', '.join(brokers)}")
            yield from of_requests(cluster.requests(), self.protocol)
            topics = list(self.command.topics)
            if self.command.connection.group:
                rights = cluster.group()
                yield of_group(self.command.connection.group, rights)
                if rights.exists and not topics and rights.operations != frozenset():
                    topics = list(cluster.group_topics())
        except GroupKafkaError as error:
            yield of_error("brokers", error)
            return
        if not topics:
            yield Finding("rights", Verdict.SKIPPED, "no topic is known: use --topic")
        for topic in topics:
            yield from self._of_topic(cluster, topic)

    def _of_topic(self, cluster: ClusterFacts, topic: str) -> Iterator[Finding]:
        self.output.step(f"checking topic {topic}")
        try:
            rights = cluster.topic(topic)
        except GroupKafkaError as error:
            yield of_error("rights", error)
            return
        yield of_topic(topic, rights)
        if rights.partitions:
            found = of_newest_record(topic, cluster.newest_record_ms(topic, rights.partitions), self.clock.epoch_s())
            compression = of_compression(topic, cluster.compressions(topic, rights.partitions))
            yield from (finding for finding in (found, compression) if finding is not None)


def _of_failed_probe(error: Exception) -> Finding:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = (line for pattern in _CAUSES for line in lines if re.search(pattern, line))
    text = next(causes, lines[0])[:_LONGEST_CAUSE]
    return Finding(
        "executors", Verdict.WRONG, f"the Spark cluster cannot be checked: {text}",
        "check --master; set PYSPARK_PYTHON to one Python, with the package, on every machine (docs/deploying.md)",
    )  # fmt: skip


def report_doctor(doctor: Doctor) -> int:
    """Print the findings and return the number of wrong ones."""
    rows, wrong = [], 0
    for finding in doctor.findings():
        wrong += finding.verdict is Verdict.WRONG
        rows.append(asdict(finding) | {"verdict": finding.verdict.value})
        if not doctor.command.as_json:
            doctor.output.print_line(f"{finding.verdict.value:<8} {finding.check:<12} {finding.text}")
            if finding.cure:
                doctor.output.print_line(f"{'':<8} {'':<12} -> {finding.cure}")
    if doctor.command.as_json:
        doctor.output.print_line(json.dumps({"wrong": wrong, "findings": rows}, sort_keys=True))
    else:
        doctor.output.print_line(f"{wrong} wrong" if wrong else "no problem found")
    return wrong
