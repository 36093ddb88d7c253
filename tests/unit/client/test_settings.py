"""Settings of clients that read few records: what they leave out of the user's, and what the client takes beside it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S, TransportState
from spark_groupsource.client.settings import (
    base_settings,
    creating_client,
    few_records_settings,
    librdkafka_settings,
)
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.cluster.admin import admin_client
from spark_groupsource.cluster.probe import Probe
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.lag import measure
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.redaction import MASK, masked
from tests.unit.fakes import ManualClock, make_options

MIB = 1024 * 1024


def make_probe(options: SourceOptions) -> None:
    made: list[Consumer] = []

    def make(settings: dict[str, Any]) -> Consumer:
        made.append(new_consumer(settings))
        return made[0]

    probe = Probe(options, TransportState(None), make)
    assert probe.diverged({}, 0.0) == {}
    assert made


def make_lag_reader(options: SourceOptions) -> None:
    requests = measure.LagRequests(options, ManualClock(), lambda _: None)
    requests._reader()
    requests.close()


def make_admin(options: SourceOptions) -> None:
    admin_client(options, TransportState(None))


@pytest.mark.parametrize("make", [make_probe, make_lag_reader, make_admin])
@pytest.mark.parametrize(
    "settings",
    [
        {"kafka.message.max.bytes": "8000000"},
        {"kafka.receive.message.max.bytes": "2000000"},
        {"kafka.receive.message.max.bytes": "0x200000"},
        {"kafka.message.max.bytes": "3000000", "kafka.receive.message.max.bytes": "3000512"},
        {"kafka.message.max.bytes": "8000000", "kafka.fetch.max.bytes": "8000000"},
        {"kafka.receive.message.max.bytes": str(200 * MIB)},
        {"kafka.queued.max.messages.kbytes": "100"},
    ],
)
def test_what_executors_accept_ends_no_lag_report(make: Any, settings: dict[str, str]) -> None:
    """The client refuses some combinations with its own fetch.max.bytes; no broker is needed for that."""
    make(make_options(**settings))


@pytest.mark.parametrize("size", [100_000_000, 200 * MIB])
def test_an_answer_with_a_very_large_record_has_room(size: int) -> None:
    """librdkafka drops the connection for an answer above the limit, by default 100,000,000 bytes."""
    options = make_options(**{"kafka.receive.message.max.bytes": str(size), "kafka.message.max.bytes": str(size)})
    settings = few_records_settings(options, "lag")
    assert settings["receive.message.max.bytes"] == str(size)
    assert "message.max.bytes" not in settings


def test_a_value_that_is_no_number_is_left_to_the_client() -> None:
    options = make_options(**{"kafka.receive.message.max.bytes": "much"})
    assert few_records_settings(options, "lag")["receive.message.max.bytes"] == "much"


@pytest.mark.parametrize("given", [None, "5000000", str(200 * MIB)])
def test_readers_have_the_clients_largest_limit_unless_the_user_sets_one(given: str | None) -> None:
    """It also limits the uncompressed size of a zstd batch. A small one is for the clients that read all records."""
    options = make_options(**({} if given is None else {"kafka.receive.message.max.bytes": given}))
    name = "receive.message.max.bytes"
    assert reading_client_settings(options, 8 * MIB)[name] == (given or str(2**31 - 1))
    few = few_records_settings(options, "lag").get(name)
    assert few == (None if given == "5000000" else given or str(2**31 - 1))


def test_no_client_sends_metrics_if_the_user_turns_that_off() -> None:
    options = make_options(**{"kafka.enable.metrics.push": "false"})
    assert base_settings(options, "member")["enable.metrics.push"] == "false"
    assert few_records_settings(options, "probe")["enable.metrics.push"] == "false"
    assert reading_client_settings(options, MIB)["enable.metrics.push"] == "false"


@pytest.mark.parametrize(
    ("given", "used_ms"), [({}, 10_000), ({"kafka.socket.connection.setup.timeout.ms": "9000"}, 9_000)]
)
def test_a_first_contact_tries_several_addresses_of_a_name(given: dict[str, str], used_ms: int) -> None:
    """One that answers nothing takes that long; librdkafka's default, 30 s, is longer than the first contact."""
    options = make_options(**given)
    of_member, of_admin = librdkafka_settings(options, "member"), few_records_settings(options, "admin")
    of_reader = reading_client_settings(options, MIB)
    for settings in (of_member, of_admin, of_reader):
        assert int(settings["socket.connection.setup.timeout.ms"]) == used_ms
    assert used_ms < CONTACT_TIMEOUT_S * 1000


def test_a_list_of_brokers_may_have_one_a_line() -> None:
    """librdkafka would look for a host whose name begins with the line's end; a line of the log would have several."""
    several = "a:1,\n  b:2 ,\tc:3"
    options = make_options(**{"kafka.bootstrap.servers": several, "executor.kafka.bootstrap.servers": several})
    for side in (options, options.for_reading()):
        assert base_settings(side, "member")["bootstrap.servers"] == side.bootstrap_servers == "a:1,b:2,c:3"


def test_a_password_in_an_option_is_masked_wherever_it_is_logged() -> None:
    base_settings(make_options(kafka__sasl__password="canary-of-an-option"), "probe")
    assert masked("it is canary-of-an-option") == f"it is {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        "Failed to create thread: Cannot allocate memory (12)",
        "Failed to create admin client: Failed to create background thread: Resource temporarily unavailable",
    ],
)
def test_a_client_without_threads_refuses_no_setting(text: str) -> None:
    """As a Python worker with too little address space has it, and a container with a low limit on processes."""
    with pytest.raises(KafkaUnavailableError) as raised, creating_client(make_options()):
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
    assert raised.value.condition is errors.CLIENT_LACKS_RESOURCES
    assert text in str(raised.value)
