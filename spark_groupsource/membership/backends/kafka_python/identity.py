"""Watch a kafka-python client's connections, to find out whether the brokers accept its identity.

Three properties of the client make this necessary:

- It forgets why a connection failed: a wrong password at the first contact ends as a timeout.
- If the broker answers and closes the connection at once, the client drops the answer, which has the reason.
- It reports a refusal that passes as an error of whatever request was under way.

This module passes the errors of connections to `LastTransportError`, which decides as it does for librdkafka: at once
at the first contact, later only after 20 s without any answer (rule R76).
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from confluent_kafka import KafkaError as ProtocolError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from spark_groupsource.client.errors import LastTransportError
from spark_groupsource.clock import Clock
from spark_groupsource.membership.backends.kafka_python.errors import is_refused_identity
from spark_groupsource.options.token_login import TokenLogin

_Receive = Callable[[], tuple[bytes, BaseException | None]]


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """Create the client's connections, and report how each one begins and ends. The client's I/O thread only."""

    def __init__(self, net: NetworkSelector, report: Callable[[BaseException | None], None], **settings: Any) -> None:
        self._report = report
        self._watched: WeakSet[KafkaConnection] = WeakSet()
        super().__init__(net, **settings)

    async def _build_transport(self, *args: Any, **settings: Any) -> Any:
        """See the base class."""
        transport = await super()._build_transport(*args, **settings)
        transport._sock_recv = _data_first(transport._sock_recv)
        return transport

    def get_connection(self, *args: Any, **settings: Any) -> KafkaConnection:
        """See the base class."""
        connection = super().get_connection(*args, **settings)
        if connection not in self._watched:
            self._watched.add(connection)
            # After the handshakes, and the answer to the first request.
            connection.init_future.add_callback(lambda _: self._report(None))
            connection.init_future.add_errback(self._report)
            connection.close_future.add_errback(self._report)
        return connection


def _data_first(receive: _Receive) -> _Receive:
    """Return a transport's receive function that postpones an error to the next call if there is data."""

    def run() -> tuple[bytes, BaseException | None]:
        data, error = receive()
        # A connection that has ended reports it again.
        return (data, None) if data else (data, error)

    return run


class Identity:
    """Know whether the client's identity is accepted. Membership thread only, apart from `_report`.

    `learn` updates `transport`.
    """

    def __init__(self, login: TokenLogin | None, clock: Clock) -> None:
        self.transport = LastTransportError(login, clock)
        # Reports of the connections: an error, or None if a connection works.
        self._reported: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._manager: _Manager | None = None
        self._is_open = False

    def make_client(self, **settings: Any) -> KafkaNetClient:
        """Create the network client of a consumer or an admin client, for its setting `kafka_client`."""
        net = NetworkSelector(**settings)
        self._manager = _Manager(net, self._report, **settings)
        return KafkaNetClient(net=net, manager=self._manager, **settings)

    def opened(self) -> None:
        """Record that the first contact has succeeded."""
        self._is_open = True

    def _report(self, error: BaseException | None) -> None:
        self._reported.put(error)
        if error is not None and not self._is_open and self._manager is not None and is_refused_identity(error):
            # Otherwise the client would try again until its timeout for the first contact. Called later, because this
            # is a callback of a connection that is closed by it.
            self._manager.call_soon(self._manager.close)

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
