"""Times that users write in options and commands."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from spark_groupsource.cli.arguments import ResetCommand, TargetKind, parse_arguments, parse_target
from spark_groupsource.errors import OptionError
from spark_groupsource.options.offset_spec import AtTime, Starting, times_of
from spark_groupsource.options.table import OPTIONS
from spark_groupsource.options.times import moment_ms
from spark_groupsource.options.values import moment
from tests.unit.fakes import make_options, tp

NOW = datetime(2026, 3, 1, 10, 30, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("-24h", "2026-02-28T10:30:00+00:00"),
        (" -7D ", "2026-02-22T10:30:00+00:00"),
        ("-90m", "2026-03-01T09:00:00+00:00"),
        ("-1w", "2026-02-22T10:30:00+00:00"),
        ("today", "2026-03-01T00:00:00+00:00"),
        ("Yesterday", "2026-02-28T00:00:00+00:00"),
        ("2026-02-28", "2026-02-28T00:00:00+00:00"),
        ("2026-02-28T12:00:00Z", "2026-02-28T12:00:00+00:00"),
        ("2026-02-28T12:00:00+02:00", "2026-02-28T10:00:00+00:00"),
    ],
)
def test_a_time(text: str, meant: str) -> None:
    assert moment_ms(text, NOW) == datetime.fromisoformat(meant).timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "reason"),
    [("1960-01-01", "1970"), ("-99999999w", "1970")]
    + [(text, "iso|month") for text in ("", "24h", "-24", "-24x", "-1.5h", "tomorrow", "2026-13-01")],
)
def test_no_time(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        moment_ms(text, NOW)


@pytest.mark.parametrize("name", ["startingTimestamp", "endingTimestamp"])
def test_the_options_take_times(name: str) -> None:
    parse = next(spec.parse for spec in OPTIONS if spec.name == name)
    assert parse("2026-02-28") == Starting(AtTime(1_772_236_800_000))
    assert parse("0") == Starting(AtTime(0)), "milliseconds, as in Spark"


def test_a_starting_time_is_resolved_when_the_options_are_read() -> None:
    start = make_options(startingTimestamp="yesterday").starting.of(tp(0))
    assert isinstance(start, AtTime)
    assert start.timestamp_ms % 86_400_000 == 0


def test_times_by_partition() -> None:
    found = times_of('{"orders":{"0":"2026-02-28","1":7}}', moment)
    assert found.each == {tp(0): AtTime(1_772_236_800_000), tp(1): AtTime(7)}
    with pytest.raises(ValueError, match="iso"):
        times_of('{"orders":{"0":"soon"}}', moment)


def test_the_command_takes_the_same_times() -> None:
    day_ms = 86_400_000
    found = parse_target(["yesterday"]).time_ms, parse_target(["today"]).time_ms
    assert found[1] is not None
    assert found[0] == found[1] - day_ms
    command = parse_arguments(["reset", "--bootstrap-servers", "b:9092", "--group", "g", "--to", "-24h", "--execute"])
    assert isinstance(command, ResetCommand)
    assert command.target.kind is TargetKind.TIME
    assert command.execute


@pytest.mark.parametrize("name", ["startingOffsets", "startingOffsetsByTimestamp", "assign"])
def test_an_error_of_json_has_its_position(name: str) -> None:
    with pytest.raises(OptionError, match=r"no JSON: expecting .* at line 2, column 2 \(character 13\)"):
        make_options(**{name: '{"orders":\n }'})


def test_a_text_that_is_no_json_has_no_position() -> None:
    with pytest.raises(OptionError) as raised:
        make_options(startingOffsets="erliest")
    assert "no JSON" not in str(raised.value)
