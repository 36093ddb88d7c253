"""The flight delays job without Spark: its settings, and its length."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jobs import flight_delays
from jobs.flight_delays import idle_seconds, parse_arguments, read_properties

MAX_LINES = 150
REQUIRED = [
    "--bootstrap-servers",
    "h:9092",
    "--group-id",
    "g",
    "--output",
    "/out",
    "--checkpoint",
    "/checkpoint",
]


@pytest.fixture
def empty(tmp_path: Path) -> list[str]:
    """Return the arguments that name an empty properties file."""
    config = tmp_path / "empty.properties"
    config.touch()
    return ["--config", str(config)]


def test_the_job_stays_short_enough_to_copy() -> None:
    assert len(Path(flight_delays.__file__).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_arguments_become_settings(empty: list[str]) -> None:
    assert parse_arguments([*empty, *REQUIRED, "--trigger", "1 minute", "--stop-when-idle", "30", "--topic", "t"]) == {
        "kafka.bootstrap.servers": "h:9092", "kafka.group.id": "g", "subscribe": "t", "job.output": "/out",
        "job.checkpoint": "/checkpoint", "job.trigger": "1 minute", "job.stop-when-idle": "30",
    }  # fmt: skip


@pytest.mark.parametrize("number", range(0, len(REQUIRED), 2), ids=REQUIRED[::2])
def test_a_missing_setting_is_named(empty: list[str], capsys: pytest.CaptureFixture[str], number: int) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*empty, *REQUIRED[:number], *REQUIRED[number + 2 :]])
    assert f"missing: {flight_delays.ARGUMENTS[REQUIRED[number]]}\n" in capsys.readouterr().err


def test_an_unknown_job_setting_is_named(empty: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*empty, *REQUIRED, "--option", "job.triger=1 second"])
    assert "unknown: job.triger\n" in capsys.readouterr().err


def test_an_option_without_a_value_is_named(empty: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*empty, *REQUIRED, "--option", "includeHeaders"])
    assert "no KEY=VALUE: includeHeaders\n" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["60s", "-1", "nan"])
def test_an_idle_time_that_is_no_number_is_named(
    empty: list[str], capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*empty, *REQUIRED, f"--stop-when-idle={seconds}", "--option", "includeHeaders"])
    text = f"no KEY=VALUE: includeHeaders; not a number of seconds: job.stop-when-idle={seconds}\n"
    assert text in capsys.readouterr().err


def test_without_an_idle_time_the_job_is_never_idle(empty: list[str]) -> None:
    assert idle_seconds(parse_arguments([*empty, *REQUIRED, "--stop-when-idle", "1.5"])) == 1.5
    assert idle_seconds({"job.stop-when-idle": ""}) == idle_seconds({}) == math.inf


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "job.properties"
    config.write_text("# comment\n\nsubscribe = flights\nkafka.group.id=from-file\njob.output=/a=b\n", encoding="utf-8")
    arguments = ["--config", str(config), "--bootstrap-servers", "h:1", "--group-id", "mine", "--checkpoint", "/c"]
    assert parse_arguments([*arguments, "--option", "kafka.sasl.password=a=b"]) == {
        "subscribe": "flights", "kafka.group.id": "mine", "kafka.bootstrap.servers": "h:1", "job.output": "/a=b",
        "job.checkpoint": "/c", "kafka.sasl.password": "a=b",
    }  # fmt: skip


def test_a_line_that_is_no_setting_is_named_without_its_content(tmp_path: Path) -> None:
    config = tmp_path / "job.properties"
    config.write_text("subscribe=flights\nkafka.sasl.password: hunter2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"line 2: expected key=value") as raised:
        read_properties(config)
    assert "hunter2" not in str(raised.value)


def test_the_shipped_settings_are_complete_but_for_the_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert read_properties(flight_delays.DEFAULT_CONFIG)["subscribe"] == "flights"
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "missing: kafka.bootstrap.servers, job.output, job.checkpoint\n" in capsys.readouterr().err


def test_white_space_at_a_values_end_is_for_the_source_to_refuse(tmp_path: Path) -> None:
    """A group's name without it would be the name of another group."""
    config = tmp_path / "job.properties"
    config.write_text("kafka.group.id = orders \r\n  subscribe= a , b\njob.output = /data \n", encoding="utf-8")
    assert read_properties(config) == {"kafka.group.id": "orders ", "subscribe": "a , b", "job.output": "/data"}
