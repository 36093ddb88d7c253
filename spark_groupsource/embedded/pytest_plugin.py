"""pytest fixtures for tests of pipelines that read with groupkafka; installed with the package.

def test_orders(embedded_kafka):
    embedded_kafka.create_topic("orders", 4)
    embedded_kafka.produce("orders", ["a", "b"])

pytest imports this module in every run of everybody who has the package installed, so it imports neither Spark nor a
Kafka client.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_groupsource.embedded import EmbeddedKafka


def _broker() -> Iterator[EmbeddedKafka]:
    from spark_groupsource.embedded import EmbeddedKafka  # noqa: PLC0415  (see the module's first lines)

    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture
def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """Provide an empty in-memory broker for this test only."""
    yield from _broker()


@pytest.fixture(scope="session")
def embedded_kafka_session() -> Iterator[EmbeddedKafka]:
    """Provide one in-memory broker for the whole run; tests should use different topic and group names."""
    yield from _broker()
