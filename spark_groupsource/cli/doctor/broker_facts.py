"""Read facts about a cluster for the command `doctor`: brokers, their releases, rights, times and compression.

Every request has a time limit. Errors are those of the catalogue.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.client.ending import on_own_thread
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S, kafka_error
from spark_groupsource.client.settings import FETCH_SETTINGS, creating_client, few_records_settings, outsider_settings
from spark_groupsource.client.tokens import new_admin, new_consumer
from spark_groupsource.clock import SystemClock
from spark_groupsource.options.model import SourceOptions

# The client's debug line about a broker's request types; no function of the client returns them. Each broker has a
# thread of its own.
_REQUEST = re.compile(r"\[thrd:(?P<thread>[^]]*)\].* ApiKey (?P<name>\w+) \(\d+\) Versions \d+\.\.(?P<newest>\d+)")
# The lines that follow a broker's list.
_AFTER_LIST = re.compile(r"\[thrd:(?P<thread>[^]]*)\].*\b(?:Feature|Enabling feature|Disabling feature) ")
# Its debug line about a batch of records that it has unpacked. The compression is the last word.
_BATCH = re.compile(r"message\(s\) .* fetch queue \(.*, (\w+)\)")
_NEWEST = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
# One record before the end (RD_KAFKA_OFFSET_TAIL of librdkafka).
_LAST_RECORD = -2001
_BATCHES_S = 5.0
_MAX_BATCHES = 16
_VERSIONS_S = 5.0
_LOG_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Rights:
    """The client's rights on a topic or a group, in Kafka's words; None if the broker does not report them."""

    operations: frozenset[str] | None
    partitions: int = 0
    exists: bool = True


_RIGHTS_OF_ERRORS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Rights(frozenset()),
    KafkaError.GROUP_AUTHORIZATION_FAILED: Rights(frozenset()),
    KafkaError.UNKNOWN_TOPIC_OR_PART: Rights(None, exists=False),
    KafkaError.GROUP_ID_NOT_FOUND: Rights(None, exists=False),
    KafkaError._UNSUPPORTED_FEATURE: Rights(None),
}


class ClusterFacts(GroupAdmin):
    """Requests of `doctor` to a cluster, besides those of all commands."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, SystemClock(), time.sleep)

    def brokers(self) -> tuple[str, ...]:
        """Return the brokers as `host:port (id)`. Raises an error if none can be reached."""
        return tuple(sorted(f"{node.host}:{node.port} ({node.id})" for node in self.describe_cluster().nodes))

    def requests(self) -> Mapping[str, int]:
        """Return the request types of the brokers, each with its newest version; empty if no whole list was logged."""
        request_log = RequestLog()
        settings = outsider_settings(self._options, "doctor", FETCH_SETTINGS, r"isolation\.level|debug|log_level")
        with creating_client(self._options):
            client = new_admin(settings | _debug_settings("feature", request_log.read))
        deadline_s = time.monotonic() + _VERSIONS_S
        while not request_log.is_complete() and time.monotonic() < deadline_s:
            client.poll(_LOG_POLL_S)
        return request_log.requests if request_log.is_complete() else {}

    def topic(self, name: str) -> Rights:
        """Return the rights on a topic; without operations if the client may not even describe it."""
        wanted = TopicCollection([name])
        try:
            answer = self._ask(
                lambda client: client.describe_topics(
                    wanted, include_authorized_operations=True, request_timeout=CONTACT_TIMEOUT_S
                )[name]
            )
        except KafkaException as error:
            return self._rights_of(error, "DescribeTopics")
        return Rights(_operations(answer.authorized_operations), len(answer.partitions))

    def group(self) -> Rights:
        """Return the rights on the group."""
        try:
            answer = self.ask_description(with_rights=True)
        except KafkaException as error:
            return self._rights_of(error, "DescribeGroups")
        operations = _operations(answer.authorized_operations)
        return Rights(operations, exists=str(answer.state.name) != "DEAD" or bool(operations))

    def group_topics(self) -> tuple[str, ...]:
        """Return the topics for which the group has committed offsets."""
        return tuple(sorted({partition.topic for partition in self.group_offsets()}))

    def newest_record_ms(self, topic: str, partitions: int) -> int | None:
        """Return the time (ms) of a topic's newest record; None if there is none, or it cannot be read."""
        wanted = {ClientPartition(topic, number): _NEWEST for number in range(partitions)}
        newest: list[int] = []
        try:
            futures = self._requests.list_offsets(wanted, IsolationLevel.READ_UNCOMMITTED, CONTACT_TIMEOUT_S)
            for future in futures.values():
                answer = self._requests.answer(future)
                newest += [answer.timestamp] if answer.timestamp > 0 else []
        except KafkaException:
            # Brokers before 3.0 do not support the request; a missing right on the topic is reported elsewhere.
            return None
        return max(newest, default=None)

    def compressions(self, topic: str, partitions: int) -> frozenset[str]:
        """Return how the newest batches of a topic are compressed; empty if there are none, or they cannot be read.

        Reads the last record of some partitions.
        """
        found = set[str]()
        settings = few_records_settings(self._options, "doctor")
        settings |= _debug_settings("msg", lambda line: found.update(_BATCH.findall(line)))
        with creating_client(self._options):
            consumer = new_consumer(settings | {"error_cb": self._requests.transport, "auto.offset.reset": "latest"})
        left = set(range(min(partitions, _MAX_BATCHES)))
        deadline_s = time.monotonic() + _BATCHES_S
        try:
            consumer.assign([ClientPartition(topic, number, _LAST_RECORD) for number in left])
            while left and time.monotonic() < deadline_s:
                # A record, or the end of an empty partition; other errors are those of the rights.
                if (message := consumer.poll(_LOG_POLL_S)) is not None:
                    left.discard(message.partition())
            consumer.poll(0)
        finally:
            # R87: the client may never end
            on_own_thread(consumer.close)
        return frozenset(found)

    def _rights_of(self, error: KafkaException, request: str) -> Rights:
        """Return the rights that an error shows. Raises an error of the catalogue for any other one."""
        rights = _RIGHTS_OF_ERRORS.get(kafka_error(error).code())
        if rights is None:
            raise self._mapped(error, request) from None
        return rights


class RequestLog:
    """Collects the request types that a client logs about its brokers, a line for each.

    Guards against:
    1. The client logs the first lines of a broker's list, and its thread is interrupted.
    2. The list seems to be complete.
    3. An old release is reported for a new broker.
    """

    def __init__(self) -> None:
        # The lowest version of all brokers, which all of them support.
        self.requests: dict[str, int] = {}
        # Threads of the client that have begun to log a list.
        self._listing: set[str] = set()

    def is_complete(self) -> bool:
        """Return whether at least one list was logged, and none is incomplete."""
        return bool(self.requests) and not self._listing

    def read(self, text: str) -> None:
        """Parse one line of the log."""
        if match := _REQUEST.search(text):
            newest = int(match["newest"])
            self.requests[match["name"]] = min(newest, self.requests.get(match["name"], newest))
            self._listing.add(match["thread"])
        elif match := _AFTER_LIST.search(text):
            self._listing.discard(match["thread"])


def _debug_settings(contexts: str, read: Callable[[str], object]) -> dict[str, Any]:
    """Return the settings of a client whose debug lines `read` gets; they go nowhere else."""
    logger = logging.Logger("spark_groupsource.doctor", logging.DEBUG)
    logger.addFilter(lambda record: bool(read(record.getMessage())))
    return {"logger": logger, "debug": contexts, "log_level": 7}


def _operations(found: Iterable[Any] | None) -> frozenset[str] | None:
    return None if found is None else frozenset(str(operation.name) for operation in found)
