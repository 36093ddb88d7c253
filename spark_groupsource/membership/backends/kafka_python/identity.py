"""Watch a kafka-python client's connections, to find out whether the brokers accept its identity.

Three properties of the client make this necessary:

- It forgets why a connection failed: a wrong password at the first contact ends as a timeout.
- If the broker answers and closes the connection at once, the client drops the answer, which has the reason.
- It reports a refusal that passes as an error of whatever request was under way.

This module passes the errors of connections to `TransportState`, which decides as it does for librdkafka: at once
at the first contact, later only after 20 s without any answer (rule R76).
"""

from __future__ import annotations

import queue
from typing import Any

from confluent_kafka import KafkaError as ProtocolError

from spark_groupsource.client.errors import TransportState
from spark_groupsource.clock import Clock
from spark_groupsource.membership.backends.kafka_python.errors import is_refused_identity
from spark_groupsource.membership.backends.kafka_python.private import WatchedClient
from spark_groupsource.options.token_login import TokenLogin


class Identity:
    """Know whether the client's identity is accepted. Membership thread only, apart from `_report`.

    `learn` updates `transport`.
    """

    def __init__(self, login: TokenLogin | None, clock: Clock) -> None:
        self.transport = TransportState(login, clock)
        # Reports of the connections: an error, or None if a connection works.
        self._reported: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._client: WatchedClient | None = None
        self._is_open = False

    def make_client(self, **settings: Any) -> WatchedClient:
        """Create the network client of a consumer, for its setting `kafka_client`."""
        self._client = WatchedClient(self._report, **settings)
        return self._client

    def opened(self) -> None:
        """Record that the first contact has succeeded."""
        self._is_open = True

    def _report(self, error: BaseException | None) -> None:
        self._reported.put(error)
        if error is not None and not self._is_open and self._client is not None and is_refused_identity(error):
            # Otherwise the client would try again until its timeout for the first contact.
            self._client.end_attempts()

    def learn(self) -> None:
        """Process what the connections have reported."""
        while not self._reported.empty():
            self.process(self._reported.get_nowait())

    def process(self, error: BaseException | None) -> None:
        """Process an error, or None for an answer."""
        if error is None:
            self.transport.worked()
            return
        code = ProtocolError._AUTHENTICATION if is_refused_identity(error) else ProtocolError._TRANSPORT
        self.transport(ProtocolError(code, str(error) or type(error).__name__))
