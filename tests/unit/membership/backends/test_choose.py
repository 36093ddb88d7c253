"""Which client a member runs on, and what it tells the strategies of itself."""

from __future__ import annotations

import os
import sys

import pytest

from spark_groupsource.assignors.interface import MemberSettings
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.backends.assigned import AssignedPartitions
from spark_groupsource.membership.backends.choose import group_client, member_settings
from spark_groupsource.membership.backends.kafka_python.client import KafkaPythonGroup
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.options.parse import parse_options
from tests.unit.fakes import make_options

REQUIRED = {"kafka.bootstrap.servers": "broker:9092", "kafka.group.id": "shop"}


@pytest.mark.parametrize(
    ("settings", "incremental"),
    [
        ({}, True),
        ({"assignors": "cooperative-sticky"}, True),
        ({"assignors": "range"}, False),
        ({"assignors": "roundrobin,range"}, False),
        ({"kafka__group__protocol": "consumer", "kafka__group__remote__assignor": "range"}, True),
    ],
)
def test_what_librdkafka_has_runs_on_librdkafka(settings: dict[str, str], incremental: bool) -> None:
    port = group_client(make_options(**settings))
    assert type(port) is LibrdkafkaGroup
    assert port.incremental is incremental


@pytest.mark.parametrize(
    ("names", "incremental"),
    [
        ("weighted", True),
        ("sticky", False),
        ("range,sticky", False),
        ("weighted,sticky", False),
        ("range,weighted", False),
        ("cooperative-sticky,weighted", True),
        ("tests.kafka.strategies:InTurn,tests.kafka.strategies:InTurnByName", True),
    ],
)
def test_other_strategies_run_on_kafka_python(names: str, incremental: bool) -> None:
    """Under the protocol that all of them have."""
    port = group_client(make_options(assignors=names))
    assert type(port) is KafkaPythonGroup
    assert port.incremental is incremental


def test_partitions_that_an_option_names_need_no_strategy() -> None:
    port = group_client(parse_options(REQUIRED | {"assign": '{"orders":[0]}'}))
    assert type(port) is AssignedPartitions


def test_a_client_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra: only a query that needs it is told."""
    monkeypatch.delitem(sys.modules, "spark_groupsource.membership.backends.kafka_python.client")
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(OptionError) as raised:
        group_client(make_options(assignors="range,weighted"))
    assert raised.value.condition.id == "GROUPKAFKA.ASSIGNORS_NOT_INSTALLED"
    assert "'range,weighted'" in str(raised.value)
    assert "'.[assignors]'" in str(raised.value)
    assert type(group_client(make_options(assignors="range"))) is LibrdkafkaGroup


def test_what_a_member_reports_of_itself() -> None:
    options = make_options(
        assignors="weighted", memberWeight="3", memberRedundancy="4", kafka__client__id="mine", kafka__client__rack="a"
    )
    assert member_settings(options) == MemberSettings("mine", "a", 3, 4)


def test_a_members_rack_is_read_on_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_options(assignors="weighted", kafka__client__rack__env="KAFKA_RACK")
    monkeypatch.setenv("KAFKA_RACK", "rack-of-mine")
    assert member_settings(options).rack == "rack-of-mine"


def test_what_a_member_reports_that_was_given_nothing() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    assert member_settings(make_options(assignors="weighted")) == MemberSettings("", None, cores, 2)
    assert member_settings(make_options(assignors="weighted", kafka__client__rack=" ")).rack is None
