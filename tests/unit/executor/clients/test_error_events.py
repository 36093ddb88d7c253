"""Errors of reading clients, as events and as errors of the task."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from spark_groupsource import errors
from spark_groupsource.client.errors import TransportState
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.executor.clients.error_events import trouble


def test_a_client_without_a_thread_for_a_broker_ends_the_task_at_once() -> None:
    """It would get no record of this broker, however long the task waits."""
    transport = TransportState(None)
    transport(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Unable to create broker thread"))
    transport(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    with pytest.raises(KafkaUnavailableError) as raised:
        trouble(transport)
    assert raised.value.condition is errors.CLIENT_LACKS_RESOURCES
    assert raised.value.condition.may_pass
