"""Request the current ids of topics, on separate connections.

A consumer's connection is too slow for this: a broker answers the requests of one connection in turn, and the
consumer's next fetch waits for records for up to fetch.wait.max.ms. One client serves all consumers of a process that
have the same settings. A client is dropped after a failed request, because it continues to ask dead brokers.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from spark_groupsource.client.errors import NO_TOPIC, TransportState, kafka_error
from spark_groupsource.cluster.admin import admin_client
from spark_groupsource.executor.clients.port import RequestFailed, TopicDenied
from spark_groupsource.options.model import SourceOptions

# Clients with different settings. A worker most often serves one query.
_MAX_CLIENTS = 4

ClientKey = tuple[tuple[str, str], ...]


class AdminClients:
    """Hold admin clients by their settings, the least recently used first. Thread-safe."""

    def __init__(self, make: Callable[[SourceOptions, TransportState], AdminClient] = admin_client) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._clients: OrderedDict[ClientKey, AdminClient] = OrderedDict()

    def get(self, options: SourceOptions) -> AdminClient:
        """Return the client with these settings, creating it if needed."""
        key = client_key(options)
        with self._lock:
            if key not in self._clients:
                self._clients[key] = self._make(options, TransportState(options.token_login))
                if len(self._clients) > _MAX_CLIENTS:
                    self._clients.popitem(last=False)
            self._clients.move_to_end(key)
            return self._clients[key]

    def discard(self, options: SourceOptions) -> None:
        """Drop the client with these settings; the next `get` creates a new one."""
        with self._lock:
            self._clients.pop(client_key(options), None)


def client_key(options: SourceOptions) -> ClientKey:
    """Return the settings that two clients of brokers must have in common."""
    more = {"bootstrap.servers": options.bootstrap_servers, "(token)": str(options.token_login)}
    return tuple(sorted((dict(options.client_settings) | more).items()))


ADMINS = AdminClients()


class TopicIdRequest:
    """A request for the current ids of topics.

    The constructor sends it: records that were received before are older than the answer.
    """

    def __init__(
        self, options: SourceOptions, topics: Sequence[str], timeout_s: float, admins: AdminClients = ADMINS
    ) -> None:
        self._options = options
        self._admins = admins
        self._admin = admins.get(options)
        wanted = TopicCollection(list(topics))
        self._futures: dict[str, Future[Any]] = self._admin.describe_topics(wanted, request_timeout=timeout_s)
        self._found: dict[str, str | None] = {}

    def answer(self, wait_s: float) -> Mapping[str, str | None] | None:
        """Return the topics' ids, with None for a topic that does not exist. Return None while there is no answer.

        Waits up to `wait_s`. Raises `RequestFailed` if the brokers did not answer in time, and `TopicDenied`. The
        admin client reports its errors only to a poll.
        """
        deadline_s = time.monotonic() + wait_s
        while self._futures:
            topic, future = next(iter(self._futures.items()))
            try:
                found = future.result(timeout=max(0.0, deadline_s - time.monotonic()))
            except FutureTimeout:
                self._admin.poll(0)
                return None
            except KafkaException as error:
                cause = kafka_error(error)
                if cause.code() not in NO_TOPIC:
                    self._admins.discard(self._options)
                    denied = cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
                    raise (TopicDenied if denied else RequestFailed)(cause.str()) from None
                self._found[topic] = None
            else:
                self._found[topic] = str(found.topic_id)
            del self._futures[topic]
        return self._found
