"""The command line's arguments: what each command is given, and what is refused with exit code 2."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spark_groupsource.cli.arguments import (
    AdoptCommand,
    Command,
    Connection,
    DoctorCommand,
    GroupCommand,
    LagCommand,
    ResetCommand,
    SavepointCommand,
    StopCommand,
    Target,
    TargetKind,
    client_options,
    parse_arguments,
    parse_target,
)
from tests.unit.cli.exporter.test_command import command
from tests.unit.cli.test_offset_commands import CONNECTION, GIVEN

CHECKED = ["--checkpoint-location", "/c", "--master", "local"]


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["initial"], Target(TargetKind.INITIAL)),
        (["earliest"], Target(TargetKind.EARLIEST)),
        (["latest"], Target(TargetKind.LATEST)),
        (["savepoint", "a/file"], Target(TargetKind.SAVEPOINT, place="a/file")),
        (["checkpoint", "s3a://b/c"], Target(TargetKind.CHECKPOINT, place="s3a://b/c")),
        (["1700000000000"], Target(TargetKind.TIME, 1_700_000_000_000)),
        (["100000000000"], Target(TargetKind.TIME, 100_000_000_000)),
        (["2023-11-14T22:13:20Z"], Target(TargetKind.TIME, 1_700_000_000_000)),
        (["2023-11-14T22:13:20"], Target(TargetKind.TIME, 1_700_000_000_000)),
        (["2023-11-14T23:13:20+01:00"], Target(TargetKind.TIME, 1_700_000_000_000)),
        (["2023-11-14T22:13:20.123z"], Target(TargetKind.TIME, 1_700_000_000_123)),
        (["2023-11-14 22:13:20"], Target(TargetKind.TIME, 1_700_000_000_000)),
    ],
)
def test_target(words: list[str], target: Target) -> None:
    assert parse_target(words) == target


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["savepoint"], "needs one FILE"),
        (["savepoint", "a", "b"], "needs one FILE"),
        (["checkpoint"], "needs one LOCATION"),
        (["latest", "a"], "unexpected word 'a'"),
        (["tomorrow"], "'tomorrow' is not initial"),
        ([""], "'' is not initial"),
        (["-5"], "'-5' is not initial"),
        (["17000000"], "'17000000' is neither milliseconds"),
        (["1769860800"], "12 digits or more; append 000 to seconds"),
        (["17698608000"], "'17698608000' is neither milliseconds"),
        (["1969-12-31T23:59:59Z"], "not between 1970 and 9999"),
        (["9999999999999999999"], "not between 1970 and 9999"),
        (["2023-13-01"], "'2023-13-01' is not initial"),
        (["20260131120000"], "is 2612-01-08T06:12:00.000Z, which is in the future"),
        (["9999-12-31"], "which is in the future; use 'latest'"),
    ],
)
def test_target_refused(words: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_target(words)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["reset", *GIVEN, "--to", "initial"], ResetCommand(CONNECTION, Target(TargetKind.INITIAL))),
        (
            ["reset", *GIVEN, "--to", "latest", "--topic", "a", "--topic", "b", "--topic", "a", "--execute"],
            ResetCommand(CONNECTION, Target(TargetKind.LATEST), ("a", "b"), execute=True),
        ),
        (
            ["reset", "--to", "savepoint", "f", *GIVEN, "--config", "c"],
            ResetCommand(replace(CONNECTION, config=Path("c")), Target(TargetKind.SAVEPOINT, place="f")),
        ),
        (["savepoint", *GIVEN, "f"], SavepointCommand(CONNECTION, Path("f"))),
        # Of a file with the line ends of Windows.
        (
            ["savepoint", "--group", "shop", "--bootstrap-servers", "broker:9092\r", "f"],
            SavepointCommand(CONNECTION, Path("f")),
        ),
        (["lag", *GIVEN], LagCommand(CONNECTION)),
        (["lag", *GIVEN, "--topic", "a", "--topic", "b", "--topic", "a"], LagCommand(CONNECTION, topics=("a", "b"))),
        (["lag", *GIVEN, "--watch"], LagCommand(CONNECTION, watch_s=2.0)),
        (["lag", *GIVEN, "--json", "--watch", "0.5"], LagCommand(CONNECTION, as_json=True, watch_s=0.5)),
        (
            ["lag", *GIVEN, "--max-lag", "0", "--max-behind", "600"],
            LagCommand(CONNECTION, max_lag=0, max_behind_s=600.0),
        ),
        (["lag", *GIVEN, "--config", "c"], LagCommand(replace(CONNECTION, config=Path("c")))),
        (["group", *GIVEN], GroupCommand(CONNECTION)),
        (["group", *GIVEN, "--json"], GroupCommand(CONNECTION, as_json=True)),
        (["group", *GIVEN, "--watch"], GroupCommand(CONNECTION, watch_s=2.0)),
        (["group", *GIVEN, "--watch", "0.5", "--json"], GroupCommand(CONNECTION, as_json=True, watch_s=0.5)),
        (["group", *GIVEN, "--config", "c"], GroupCommand(replace(CONNECTION, config=Path("c")))),
        (["adopt", *GIVEN, "--from-checkpoint", "s3a://b/c"], AdoptCommand(CONNECTION, "s3a://b/c")),
        (["adopt", *GIVEN, "--from-group", "other"], AdoptCommand(CONNECTION, None, "other")),
        (
            ["adopt", *GIVEN, "--from-checkpoint", "c", "--source", "1", "--topic", "a", "--overwrite", "--execute"],
            AdoptCommand(CONNECTION, "c", "", "1", ("a",), overwrite=True, execute=True),
        ),
        (["stop", "--checkpoint-location", "/c", "--wait", "2.5"], StopCommand("/c", 2.5)),
        (["stop", "--checkpoint-location", "s3a://b/c"], StopCommand("s3a://b/c")),
        (["doctor", "--bootstrap-servers", "b:1"], DoctorCommand(Connection("b:1", ""))),
        (
            ["doctor", *GIVEN, "--topic", "a", "--topic", "b", *CHECKED, "--json"],
            DoctorCommand(CONNECTION, ("a", "b"), "/c", "local", as_json=True),
        ),
    ],
)
def test_arguments(words: list[str], command: Command) -> None:
    assert parse_arguments(words) == command


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "COMMAND"),
        (["restart"], "invalid choice: 'restart'"),
        (["reset", "--group", "shop", "--to", "latest"], "--bootstrap-servers"),
        (["reset", *GIVEN[:-1], ""], "argument --group: it is empty"),
        (["reset", *GIVEN[:-1], "\udcff"], "argument --group: it is not valid UTF-8"),
        (["reset", *GIVEN, "--to", "latest", "--topic", ""], "argument --topic: it is empty"),
        (["reset", *GIVEN], "--to"),
        (["lagg", *GIVEN], "did you mean lag?"),
        (["lag", "--bootstrap-servers", "kafka://x", *GIVEN[2:]], "argument --bootstrap-servers: 'kafka://x' is not"),
        (["lag", *GIVEN[:2], "--gruop", "shop"], "unrecognized arguments: --gruop, did you mean --group?"),
        (["lag", *GIVEN[:2], "--gruop=shop"], "unrecognized arguments: --gruop, did you mean --group?"),
        (["reset", *GIVEN, "--to", "latest", "--exec"], "unrecognized arguments: --exec, did you mean --execute?"),
        (["reset", *GIVEN, "--to", "latest", "--zzz"], "unrecognized arguments: --zzz\n"),
        (["reset", *GIVEN, "--to", "tomorrow"], "argument --to: 'tomorrow' is not initial"),
        (["reset", *GIVEN, "--to", "-24x"], "argument --to: '-24x' is not initial"),
        (["savepoint", *GIVEN], "FILE"),
        (["adopt", *GIVEN, "--from-group", ""], "argument --from-group: it is empty"),
        (["adopt", *GIVEN, "--from-group", GIVEN[-1]], "argument --from-group: it is the same as --group"),
        (
            ["adopt", *GIVEN, "--from-group", " a"],
            'argument --from-group: " a" is not a group name without white space',
        ),
        (["reset", *GIVEN[:-1], "shop ", "--to", "latest"], 'argument --group: "shop " is not a group name without'),
        (["lag", *GIVEN[:-1], "\tshop"], 'argument --group: "\\tshop" is not a group name without'),
        (["savepoint", *GIVEN[:-1], "shop\r", "f"], 'argument --group: "shop\\r" is not a group name without'),
        (["group", *GIVEN[:-1], "sh\0op"], 'argument --group: "sh\\u0000op" is not a group name without'),
        (["exporter", *GIVEN[:-1], "shop "], 'argument --group: "shop " is not a group name without'),
        (["doctor", *GIVEN[:-1], "shop "], 'argument --group: "shop " is not a group name without'),
        (["adopt", *GIVEN, "--from-checkpoint", " "], "argument --from-checkpoint: it is empty"),
        (["adopt", *GIVEN, "--from-checkpoint", "/c", "--source", ""], "argument --source: it is empty"),
        (["adopt", *GIVEN], "--from-checkpoint --from-group is required"),
        (["adopt", *GIVEN, "--from-checkpoint", "c", "--from-group", "g"], "not allowed with"),
        (["adopt", *GIVEN, "--from-group", "g", "--source", "0"], "it needs --from-checkpoint"),
        (["lag", *GIVEN, "--watch", "0"], "--watch: '0' is not a number of seconds above 0"),
        (["lag", *GIVEN, "--watch", "nan"], "'nan' is not a number of seconds"),
        (["lag", *GIVEN, "--max-behind", "-1"], "--max-behind"),
        (["lag", *GIVEN, "--max-lag", "1.5"], "--max-lag: '1.5' is not an integer from 0"),
        (["lag", *GIVEN, "--max-lag", "-1"], "--max-lag"),
        (["group", *GIVEN, "--watch", "0"], "--watch: '0' is not a number of seconds above 0"),
        (["group", *GIVEN, "--topic", "a"], "unrecognized arguments: --topic"),
        (["group", *GIVEN[:2]], "--group"),
        (["exporter", *GIVEN[:2]], "one of the arguments --group --group-pattern is required"),
        (["exporter", *GIVEN, "--port", "65536"], "'65536' is not a port"),
        (["exporter", *GIVEN[:2], "--group-pattern", "("], "'(' is not a regular expression"),
        (["doctor", "--undo"], ""),
        (["doctor"], ""),
    ],
)
def test_wrong_arguments_end_with_code_2(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(words)
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert text in shown
    assert "usage: groupkafka" in shown


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], ""),
        (["reset"], ""),
        (["savepoint"], ""),
        (["adopt"], ""),
        (["group"], "groupkafka[assignors]"),
        (["lag"], "3 beyond --max-lag or --max-behind"),
    ],
)
def test_help(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([*words, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: groupkafka" in shown
    assert text in shown


def test_arguments_of_the_exporter() -> None:
    found = command("--group", "a", "--group", "b", "--group", "a")
    assert (found.groups, found.pattern, found.address, found.port) == (("a", "b"), None, "127.0.0.1", 8000)
    assert (found.interval_s, found.cluster_name, found.connection.group) == (15.0, "here:9092", "")
    assert command("--group-pattern", "x.*\r").pattern == "x.*"
    assert command("--group-pattern", " a|a ").pattern == " a|a "
    found = command("--group-pattern", "x.*", "--port", "0", "--interval", "2", "--cluster-name", "prod")
    assert (found.groups, found.pattern, found.port, found.cluster_name) == ((), "x.*", 0, "prod")


def test_a_doctor_without_a_group_has_none() -> None:
    assert client_options(Connection("b:1", "")).group_id == ""
