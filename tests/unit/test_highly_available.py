"""The highly available job without Spark: its arguments, its length, and its manifests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobs import highly_available
from jobs.highly_available import parse_arguments, source_options
from tests.checkout import ROOT

MAX_LINES = 100
REQUIRED = [
    "--bootstrap-servers", "h:9092", "--group-id", "g", "--topic", "t",
    "--output", "/out", "--checkpoint", "/checkpoint",
]  # fmt: skip


def test_the_job_stays_short_enough_to_copy() -> None:
    assert len(Path(highly_available.__file__).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_arguments() -> None:
    given = parse_arguments([*REQUIRED, "--option", "kafka.session.timeout.ms=10000", "--option", "a=b=c"])
    assert given.option == {"kafka.session.timeout.ms": "10000", "a": "b=c"}
    assert given.lock_topic is None


def test_it_starts_at_the_beginning_unless_an_option_says_otherwise() -> None:
    assert source_options(parse_arguments(REQUIRED))["startingOffsets"] == "earliest"
    given = parse_arguments([*REQUIRED, "--option", "startingOffsets=latest", "--option", "onPartitionsLost=continue"])
    options = source_options(given)
    assert (options["startingOffsets"], options["onPartitionsLost"]) == ("latest", "continue")


def test_an_option_without_a_value_is_named_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*REQUIRED, "--option", "secret"])
    assert "no KEY=VALUE" in capsys.readouterr().err


def test_the_manifests_give_the_job_arguments_that_it_knows() -> None:
    text = (ROOT / "conf" / "kubernetes" / "highly-available.yaml").read_text()
    arguments = re.findall(r"- (--(?!conf|master)[a-z-]+=\S+)", text)
    given = parse_arguments(arguments)
    assert given.checkpoint.startswith("/data/")
    assert "replicas: 2" in text
    assert "ReadWriteMany" in text
