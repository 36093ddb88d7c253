"""Rolling upgrades of a group's strategy under load (M19): each member is replaced in turn, nothing lost or doubled.

Every step is what an operator does: a query is stopped between two batches and started again from its checkpoint with
the next list of strategies, while the others read on and records keep coming. The group takes the new strategy by
itself as soon as all members offer it and prefer it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, wait_for
from .test_assignors import LONG_SESSION, PARTITIONS, Group
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

NAMES = ("one", "two", "three")
SLOW = {"processingTime": "2 seconds"}
# name -> (the options at first, those of the first round, those of the second, what the coordinator calls the end)
UPGRADES: dict[str, tuple[Sequence[dict[str, str]], str]] = {
    "range to roundrobin": (
        [
            {"kafka.partition.assignment.strategy": "range"},
            {"kafka.partition.assignment.strategy": "roundrobin,range"},
            {"kafka.partition.assignment.strategy": "roundrobin"},
        ],
        "roundrobin",
    ),
    "sticky to weighted": (
        [{"assignors": "sticky"}, {"assignors": "weighted,sticky"}, {"assignors": "weighted"}],
        "weighted",
    ),
    # The default is librdkafka's cooperative-sticky: both clients are in the group on the way.
    "the default to weighted": (
        [{}, {"assignors": "weighted,cooperative-sticky"}, {"assignors": "weighted"}],
        "weighted",
    ),
    "weighted to the default": (
        [{"assignors": "weighted"}, {"assignors": "cooperative-sticky,weighted"}, {}],
        "cooperative-sticky",
    ),
    "a custom strategy to its next version": (
        [
            {"assignors": "tests.kafka.strategies:InTurn"},
            {"assignors": "tests.kafka.strategies:InTurnByName,tests.kafka.strategies:InTurn"},
            {"assignors": "tests.kafka.strategies:InTurnByName"},
        ],
        "in-turn-v2",
    ),
    "weighted to consumer": ([{"assignors": "weighted"}, {"kafka.group.protocol": "consumer"}], "uniform"),
    # The coordinator refuses KIP-848 members beside librdkafka's cooperative-sticky, whose leader sends user data.
    "the default to consumer": (
        [{}, {"assignors": "weighted,cooperative-sticky"}, {"kafka.group.protocol": "consumer"}],
        "uniform",
    ),
    "classic to consumer": (
        [{"kafka.partition.assignment.strategy": "range"}, {"kafka.group.protocol": "consumer"}],
        "uniform",
    ),
}


@contextmanager
def load(team: Group) -> Iterator[None]:
    """Produce all the time."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.2):
            team.produce(16)

    producer = threading.Thread(target=run, daemon=True)
    producer.start()
    try:
        yield
    finally:
        ended.set()
        producer.join(60)


def start(team: Group, name: str, options: dict[str, str]) -> None:
    """Start a query; under KIP-848 sessions are the broker's to set."""
    given = {"memberWeight": "1"} | options if "assignors" in options else options
    kept = dict(team.options)
    if "kafka.group.protocol" in options:
        team.options = with_protocol(kept, "kip848")
    team.start(name, trigger=SLOW, **{key.replace(".", "__"): value for key, value in given.items()})
    team.options = kept


def wait_balanced(team: Group) -> None:
    """Wait until the three have all partitions, each about its share."""
    wait_for(
        "two or three partitions each",
        lambda: sorted(team.owned().values()) == [2, 3, 3],
        120,
        team.evidence,
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_m19_rolling_upgrade(
    upgrade: str, application: Application, client: Independent, options: dict[str, str], tmp_path: Path
) -> None:
    steps, last = UPGRADES[upgrade]
    client.create_topic(options["subscribe"], PARTITIONS)
    if "kafka.group.protocol" in steps[-1]:
        client.set_group_session_timeout(options["kafka.group.id"], 45_000)
    team = Group(application, client, options | LONG_SESSION, tmp_path)
    for name in NAMES:
        start(team, name, steps[0])
    with load(team):
        wait_balanced(team)
        for step in steps[1:]:
            for name in NAMES:
                team.leave(name)
                start(team, name, step)
                wait_balanced(team)
        wait_for(f"strategy {last}", lambda: client.strategy(team.name) == last, 60, lambda: client.strategy(team.name))
    team.wait_read()
    team.check_each_once()
