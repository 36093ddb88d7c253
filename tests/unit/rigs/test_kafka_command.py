"""`scripts/kafka start` when Kafka runs already, without a broker."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.realkafka import __main__ as command
from tests.realkafka.cluster import Broker, Cluster

ADDRESS = "bootstrap.servers=127.0.0.1:9001\n"


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let a cluster with the topic orders run in `tmp_path`; return the topics that a test creates."""
    topics = {"orders": 4}

    class Admin:
        def __init__(self, settings: dict[str, object]) -> None:
            assert settings["bootstrap.servers"] == "127.0.0.1:9001"

        def list_topics(self, timeout: float) -> SimpleNamespace:
            found = {name: SimpleNamespace(partitions=range(count)) for name, count in topics.items()}
            return SimpleNamespace(topics=found)

    made: dict[str, int] = {}
    Cluster(tmp_path, [Broker(1, 9001, 9002)]).save()
    monkeypatch.setattr(Cluster, "running", lambda self: True)
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin)
    monkeypatch.setattr(command, "_create_topics", lambda servers, partitions: made.update(partitions))
    return made


def _start(run_dir: Path, *arguments: str) -> int:
    return command.main(["start", "--run-dir", str(run_dir), *arguments])


def test_missing_topics_are_created(
    created: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _start(tmp_path, "--topic", "events:2", "--topic", "orders:4", "--topic", "refunds") == 0
    assert created == {"events": 2, "refunds": 1}
    shown = capsys.readouterr()
    assert shown.out == ADDRESS
    assert "topic orders: exists already, with 4 partitions" in shown.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), "Kafka is running already: bootstrap.servers=127.0.0.1:9001 (scripts/kafka stop ends it)"),
        (("--topic", "events", "--topic", "orders:3"), "topic orders exists, and has 4 partitions, not 3"),
        (("--topic", "events", "--sasl"), "Kafka is running already, without a login"),
    ],
)
def test_what_cannot_be_added_is_refused(
    created: dict[str, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    error: str,
) -> None:
    assert _start(tmp_path, *arguments) == 1
    shown = capsys.readouterr()
    assert (created, shown.out) == ({}, "")
    assert error in shown.err
