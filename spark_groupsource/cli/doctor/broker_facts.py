"""Read facts about a cluster for the command `doctor`: brokers, their releases, rights, times of records.

Every request has a time limit. Errors are those of the catalogue.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from spark_groupsource.cli.admin import LibrdkafkaGroupAdmin
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S, LastTransportError, kafka_error, map_error
from spark_groupsource.client.settings import FETCH_SETTINGS, creating_client, outsider_settings
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import admin_client, answer_of
from spark_groupsource.options.model import SourceOptions

# The client's debug line about a broker's request types; no function of the client returns them.
_REQUEST = re.compile(r"ApiKey (\w+) \((\d+)\) Versions (\d+)\.\.(\d+)")
_NEWEST = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
_VERSIONS_S = 5.0
_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Rights:
    """The client's rights on a topic or a group, in Kafka's words; None if the broker does not report them."""

    operations: frozenset[str] | None
    partitions: int = 0
    exists: bool = True


class ClusterFacts(Protocol):
    """Requests of `doctor` to a cluster."""

    def brokers(self) -> tuple[str, ...]:
        """Return the brokers as `host:port (id)`. Raises an error if none can be reached."""

    def requests(self) -> Mapping[str, int]:
        """Return the request types of the brokers, each with its newest version; empty if none was logged."""

    def topic(self, name: str) -> Rights:
        """Return the rights on a topic; without operations if the client may not even describe it."""

    def group(self) -> Rights:
        """Return the rights on the group."""

    def group_topics(self) -> tuple[str, ...]:
        """Return the topics for which the group has committed offsets."""

    def newest_record_ms(self, topic: str, partitions: int) -> int | None:
        """Return the time (ms) of a topic's newest record; None if there is none, or it cannot be read."""


class LibrdkafkaFacts:
    """A `ClusterFacts` on confluent-kafka's AdminClient."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._transport = LastTransportError()
        self._client: AdminClient = admin_client(options, self._transport)

    def brokers(self) -> tuple[str, ...]:
        """See `ClusterFacts`."""
        answer = self._ask("DescribeCluster", self._client.describe_cluster(request_timeout=CONTACT_TIMEOUT_S))
        return tuple(sorted(f"{node.host}:{node.port} ({node.id})" for node in answer.nodes))

    def requests(self) -> Mapping[str, int]:
        """See `ClusterFacts`."""
        logger = logging.Logger("spark_groupsource.doctor", logging.DEBUG)
        heard = _Heard()
        logger.addHandler(heard)
        settings = outsider_settings(self._options, "doctor", FETCH_SETTINGS, r"isolation\.level|debug|log_level")
        with creating_client(self._options):
            client = AdminClient(settings | {"logger": logger, "debug": "feature", "log_level": 7})
        deadline_s = time.monotonic() + _VERSIONS_S
        while not heard.requests and time.monotonic() < deadline_s:
            client.poll(_STEP_S)
        # The remaining lines of the list.
        client.poll(_STEP_S)
        return heard.requests

    def topic(self, name: str) -> Rights:
        """See `ClusterFacts`."""
        wanted = TopicCollection([name])
        try:
            future = self._client.describe_topics(
                wanted, include_authorized_operations=True, request_timeout=CONTACT_TIMEOUT_S
            )[name]
            answer = self._ask("DescribeTopics", future, mapped=False)
        except KafkaException as error:
            code = kafka_error(error).code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return Rights(frozenset())
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return Rights(None, exists=False)
            if code == KafkaError._UNSUPPORTED_FEATURE:
                return Rights(None)
            raise self._mapped(error, "DescribeTopics") from None
        return Rights(_operations(answer.authorized_operations), len(answer.partitions))

    def group(self) -> Rights:
        """See `ClusterFacts`."""
        try:
            answer = self._group_admin().ask_description(with_rights=True)
        except KafkaException as error:
            code = kafka_error(error).code()
            if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
                return Rights(frozenset())
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return Rights(None, exists=False)
            if code == KafkaError._UNSUPPORTED_FEATURE:
                return Rights(None)
            raise self._mapped(error, "DescribeGroups") from None
        operations = _operations(answer.authorized_operations)
        return Rights(operations, exists=str(answer.state.name) != "DEAD" or bool(operations))

    def group_topics(self) -> tuple[str, ...]:
        """See `ClusterFacts`."""
        return tuple(sorted({partition.topic for partition in self._group_admin().offsets()}))

    def _group_admin(self) -> LibrdkafkaGroupAdmin:
        return LibrdkafkaGroupAdmin(self._options, SystemClock(), time.sleep)

    def newest_record_ms(self, topic: str, partitions: int) -> int | None:
        """See `ClusterFacts`."""
        wanted = {ClientPartition(topic, number): _NEWEST for number in range(partitions)}
        newest: list[int] = []
        try:
            for future in self._client.list_offsets(wanted, request_timeout=CONTACT_TIMEOUT_S).values():
                answer = self._ask("ListOffsets", future, mapped=False)
                newest += [answer.timestamp] if answer.timestamp > 0 else []
        except KafkaException:
            # Brokers before 3.0 do not support the request; a missing right on the topic is reported elsewhere.
            return None
        return max(newest, default=None)

    def _ask(self, request: str, future: Future[Any], *, mapped: bool = True) -> Any:
        try:
            return answer_of(self._client, future, self._transport)
        except KafkaException as error:
            if mapped:
                raise self._mapped(error, request) from None
            raise

    def _mapped(self, error: KafkaException, request: str) -> Exception:
        self._client.poll(0)
        return map_error(self._options, kafka_error(error), request, self._transport)


class _Heard(logging.Handler):
    """Collects the request types that a client logs about a broker."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Parse one line of the log."""
        match = _REQUEST.search(record.getMessage())
        if match:
            # The lowest version of all brokers, which all of them support.
            newest = int(match[4])
            self.requests[match[1]] = min(newest, self.requests.get(match[1], newest))


def _operations(found: Iterable[Any] | None) -> frozenset[str] | None:
    return None if found is None else frozenset(str(operation.name) for operation in found)
