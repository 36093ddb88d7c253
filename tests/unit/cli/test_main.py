"""The command line as a program: exit codes, Ctrl-C, and output that nobody reads any more."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource.cli import main as program
from spark_groupsource.cli import output
from spark_groupsource.cli.main import main
from spark_groupsource.cli.progress import Progress
from spark_groupsource.client.errors import WAITING
from spark_groupsource.errors import BROKER_UNREACHABLE, KafkaUnavailableError
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.redaction import MASK, remember
from tests.checkout import ROOT
from tests.unit.checkpoint.test_log import v1
from tests.unit.cli.group.test_command import FakeCluster as FakeGroupCluster
from tests.unit.cli.test_adopt_origins import ORDERS
from tests.unit.cli.test_lag_command import FakeLagRequests
from tests.unit.cli.test_offset_commands import GIVEN, P0, Bed, marked, written
from tests.unit.fakes import ManualClock

RESET = ["reset", *GIVEN, "--to", "latest"]
LAG = ["lag", *GIVEN]
GROUP = ["group", *GIVEN]


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Return what `main` works on when it resets, saves and adopts."""
    found = Bed()
    monkeypatch.setattr(program, "GroupAdmin", lambda *_: found.admin)
    monkeypatch.setattr(program, "LibrdkafkaCluster", lambda *_: found.cluster)
    return found


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> FakeLagRequests:
    """Return a cluster whose group has 90 records to read."""
    found = FakeLagRequests(ManualClock(), orders=1)
    found.groups = {P0: 10}
    monkeypatch.setattr(program, "LagRequests", lambda *_, **__: found)
    monkeypatch.setattr(program, "GroupAdmin", lambda *_: None)
    return found


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroupCluster:
    """Return a cluster whose group has no members and an offset."""
    found = FakeGroupCluster(orders=1)
    found.groups = {P0: 10}
    monkeypatch.setattr(program, "LagRequests", lambda *_, **__: found)
    monkeypatch.setattr(program, "GroupAdmin", lambda *_: None)
    monkeypatch.setattr(program, "GroupDescriber", lambda *_: found)
    return found


@contextmanager
def unread(*names: str) -> Iterator[None]:
    """Let stdout, or what is named, be a pipe that nobody reads any more.

    No fixture: pytest puts its own stdout back when a test begins.
    """
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, pytest.MonkeyPatch.context() as patched:
        for name in names or ("stdout",):
            patched.setattr(sys, name, stream)
        yield


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def interrupt_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt the sleep of --watch, and nobody else's: `time.sleep` is also that of other threads, such as Py4J's."""
    monkeypatch.setattr(output, "time", SimpleNamespace(sleep=interrupt))


# --- output that nobody reads any more


def test_a_reset_is_committed_also_when_nobody_reads_what_it_shows(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    with unread():
        assert main([*RESET, "--execute"]) == 0
    assert [item.offset for items in bed.admin.committed for item in items] == [100, 100]
    shown = capsys.readouterr().err
    assert shown.startswith(f"{output.STDOUT_CLOSED}\npartition ")
    assert shown.endswith("Group shop: 2 offsets committed. Queries that start from now on use them.\n")


def test_a_reset_that_fails_is_reported_also_when_nobody_reads_what_it_shows(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.admin.error = KafkaUnavailableError(BROKER_UNREACHABLE, servers="broker:9092", timeout_s=20.0, reason="away")
    with unread():
        assert main([*RESET, "--execute"]) == 1
    assert "COMMIT_UNANSWERED" in capsys.readouterr().err


def test_a_savepoint_is_written_also_when_nobody_reads_what_it_shows(bed: Bed, tmp_path: Path) -> None:
    bed.admin.groups[TopicPartition("gone", 0)] = marked(5)
    with unread():
        assert main(["savepoint", *GIVEN, str(tmp_path / "f")]) == 0
    assert (tmp_path / "f").exists()


@pytest.mark.usefixtures("bed")
def test_a_dry_run_that_nobody_reads_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with unread():
        assert main(RESET) == 0
    assert capsys.readouterr().err == ""


def test_a_closed_stderr_ends_no_command_either(bed: Bed) -> None:
    """As of `2>&1 | head`."""
    with unread("stdout", "stderr"):
        assert main([*RESET, "--execute"]) == 0
    assert len(bed.admin.committed) == 1


@pytest.mark.usefixtures("requests")
@pytest.mark.parametrize(
    ("words", "code"), [(["89"], 3), (["89", "--json"], 3), (["89", "--watch", "30"], 3), (["90"], 0)]
)
def test_a_lag_that_nobody_reads_keeps_its_exit_code(words: list[str], code: int) -> None:
    with unread():
        assert main([*LAG, "--max-lag", *words]) == code


@pytest.mark.parametrize(("words", "cluster"), [(LAG, "requests"), (GROUP, "group")])
def test_watching_ends_when_nobody_reads(words: list[str], cluster: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(cluster)
    with unread():
        assert main([*words, "--watch", "20"]) == 0


@contextmanager
def stdout_of(stream: object) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        yield


def test_a_reset_is_committed_also_with_a_closed_stdout(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    """As of `>&-`: Python has no stdout then."""
    with stdout_of(None):
        assert main([*RESET, "--execute"]) == 0
    assert len(bed.admin.committed) == 1
    assert capsys.readouterr().err.startswith(f"{output.STDOUT_CLOSED}\npartition ")


@pytest.mark.usefixtures("requests")
@pytest.mark.parametrize(("bound", "code"), [("89", 3), ("90", 0)])
def test_a_lag_on_a_full_disk_keeps_its_exit_code(bound: str, code: int) -> None:
    with open("/dev/full", "w") as full, stdout_of(full):
        assert main([*LAG, "--max-lag", bound]) == code


def test_a_program_whose_output_cannot_be_written_ends_as_usual(tmp_path: Path) -> None:
    """With what Python itself does at its exit."""
    code = "import sys; from spark_groupsource.cli.output import Output; Output(str).print_line('done'); sys.exit(3)"
    for redirection in (">&-", ">/dev/full", ">&- 2>&-"):
        ended = subprocess.run(
            ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, code],
            check=False, capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        said = "stdout cannot be written to: No space left on device\n" if "full" in redirection else ""
        assert (ended.returncode, ended.stderr) == (3, said), redirection


@pytest.mark.usefixtures("requests")
def test_a_watch_on_a_full_disk_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """A supervisor starts it again; a reader that has closed the output is a usual end."""
    with open("/dev/full", "w") as full, stdout_of(full):
        assert main([*LAG, "--watch", "20"]) == 1
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.usefixtures("bed")
def test_a_slow_store_shows_no_secret_of_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(program.Progress, "step", lambda _, text: shown.append(text))
    monkeypatch.setattr(program, "checkpoint_origin", interrupt)
    assert main(["adopt", *GIVEN, "--from-checkpoint", "s3a://user:hunter2@lake/orders"]) == 130
    assert shown == [f"reading the offsets of s3a://{MASK}@lake/orders"]


# --- Ctrl-C


@pytest.mark.parametrize("more", [[], ["--watch", "600"]])
def test_an_interrupt_before_a_measurement_has_ended(
    more: list[str], requests: FakeLagRequests, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(requests, "topics", interrupt)
    assert main([*LAG, *more]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert requests.closed == 1


def test_an_interrupt_after_the_first_line_without_watching(
    requests: FakeLagRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "close", interrupt)
    assert main(LAG) == 130


def test_an_interrupt_of_group(group: FakeGroupCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "describe_group", interrupt)
    assert main(GROUP) == 130


@pytest.mark.parametrize(("words", "cluster"), [(LAG, "requests"), (GROUP, "group")])
def test_an_interrupt_is_the_usual_end_of_watching(
    words: list[str],
    cluster: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    request.getfixturevalue(cluster)
    interrupt_pauses(monkeypatch)
    assert main([*words, "--watch", "600"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["reset", "adopt"])
def test_an_interrupt_of_a_commit(command: str, bed: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bed.admin.error = KeyboardInterrupt()
    words = [*RESET, "--execute"]
    if command == "adopt":
        bed.admin.groups.clear()
        words = ["adopt", *GIVEN, "--from-checkpoint", written(tmp_path, v1(ORDERS), completed=1), "--execute"]
    assert main(words) == 130
    assert capsys.readouterr().err == (
        "the commit was interrupted and may have succeeded: check the offsets of group shop\ninterrupted\n"
    )


@pytest.mark.parametrize("words", [RESET, ["savepoint", *GIVEN, "f"]])
def test_an_interrupt_before_anything_is_changed(
    words: list[str], bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bed.admin, "group_offsets", interrupt)
    assert main(words) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_signal_is_the_usual_end_of_the_exporter_also_before_its_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "serve_metrics", interrupt)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["exporter", "--bootstrap-servers", "127.0.0.1:1", "--group", "shop"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == ""


def test_a_name_that_the_encoding_of_stdout_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """LANG=C: what was committed is told all the same."""
    written_to = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written_to)
    output.Output(str).print_line("gr\u00fcn committed")
    assert written_to.buffer.getvalue() == b"gr\\xfcn committed\n"


# --- progress


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the steps that a command reports, which a terminal shows if they take long."""
    found: list[str] = []
    monkeypatch.setattr(Progress, "step", lambda _, text: found.append(text))
    return found


@pytest.mark.parametrize(
    ("words", "cluster", "expected"),
    [
        (LAG, "requests", [
            "reading the list of topics", "reading the offsets of group shop on 1 partitions",
            "reading the log ends and next records of 1 partitions",
        ]),
        (GROUP, "group", [
            "reading the members of group shop", "reading the offsets of group shop on 1 partitions",
            "reading the log ends of 1 partitions",
        ]),
        ([*RESET, "--execute"], "bed", [
            "reading the group's members", "reading the group's offsets", "reading the partitions of 1 topics",
            "reading the beginnings and ends of 2 logs", "committing 2 offsets",
        ]),
    ],
)  # fmt: skip
def test_a_command_reports_its_steps(
    words: list[str], cluster: str, expected: list[str], steps: list[str], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(cluster)
    assert main(words) == 0
    assert steps == expected


def test_timeline_reports_its_steps(steps: list[str], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    line = {"at": 1.0, "event": "started", "group": "shop", "lineage": "L", "pid": 1, "partitions": [], "details": {}}
    file.write_text(json.dumps(line) + "\n")
    assert main(["timeline", str(file), "-o", str(tmp_path / "page.html")]) == 0
    assert steps == [f"reading {file} (0.0 MB)", "drawing 1 events"]


def test_timeline_draws_lines_that_no_query_writes(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    lines = [
        {"at": at, "event": "completed", "group": "shop\ud800", "pid": 1, "details": {"records": records}}
        for at, records in ((1.0, -5), (2.0, 10), (3.0, True))
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["timeline", str(file), "-o", str(tmp_path / "page.html")]) == 0


@pytest.mark.usefixtures("requests")
def test_no_step_is_shown_between_rounds(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_pauses(monkeypatch)
    assert main([*LAG, "--watch", "600"]) == 0
    assert steps[-1] == ""


@pytest.mark.usefixtures("requests")
def test_a_wait_that_is_shown_has_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """The client's last error may contain a part of `sasl.oauthbearer.config`."""
    assert main(LAG) == 0
    remember(["canary-of-a-client-secret"])
    WAITING.warning("waiting for an answer from Kafka: last_error=%s", "unknown value canary-of-a-client-secret")
    assert capsys.readouterr().err == f"waiting for an answer from Kafka: last_error=unknown value {MASK}\n"
