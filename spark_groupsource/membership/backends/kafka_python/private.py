"""Wrap all that this package uses of kafka-python beyond its public API.

Other modules touch no underscore name of kafka-python and import nothing of its `kafka.net`
(`tests/architecture/test_layers.py`). The pin in pyproject.toml is because of this module.

Each name is looked up once when the member opens. A version without one fails there with an `ImportError` that names
both, and not in the middle of a rebalance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from kafka import KafkaConsumer, OffsetAndMetadata, __version__
from kafka import TopicPartition as ClientPartition
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.errors import KafkaError
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

_Receive = Callable[[], tuple[bytes, BaseException | None]]

# What the network client needs, by class: looked up before it connects.
_OF_CLASSES: Mapping[type, tuple[str, ...]] = {
    KafkaConnection: ("close_future", "init_future"),
    KafkaConnectionManager: ("_build_transport", "call_soon", "close", "get_connection"),
    KafkaTCPTransport: ("_sock_recv",),
}
# What `Internals` needs of a consumer. Most exist only in an instance.
_OF_CONSUMER = (
    "_coordinator._do_join_and_sync_async",
    "_coordinator._heartbeat_enabled",
    "_coordinator._offset_fetch_futures",
    "_coordinator._rebalance_protocol",
    "_coordinator._send_offset_commit_request",
    "_coordinator.coordinator_id",
    "_coordinator.fetch_committed_offsets",
    "_coordinator.heartbeat.config.session_timeout_ms",
    "_coordinator.heartbeat.last_receive",
    "_coordinator.need_rejoin",
    "_coordinator.poll",
    "_coordinator.rejoining",
    "_coordinator.request_rejoin",
    "_coordinator.reset_generation",
    "_manager.call_soon",
    "_manager.cluster.config.allow_auto_create_topics",
)


class JoinRefused(KafkaError):  # type: ignore[misc]
    """Raised by a poll that would join, after `Internals.refuse_to_join`."""


def _require(owner: Any, names: Sequence[str]) -> None:
    """Look up an object's names. Dots lead to attributes and to keys. Raises `ImportError` for one that is missing."""
    for name in names:
        found = owner
        try:
            for part in name.split("."):
                found = found[part] if isinstance(found, dict) else getattr(found, part)
        except (AttributeError, KeyError):
            kind = owner if isinstance(owner, type) else type(owner)
            raise ImportError(f"version {__version__} has no {kind.__name__}.{name}, which the member uses") from None


class Internals:
    """Give an open consumer's coordinator and connections names by their meaning. Raises `ImportError`; see above."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        try:
            _require(consumer, _OF_CONSUMER)
        except ImportError:
            # It may need the name, too.
            with suppress(Exception):
                consumer.close(autocommit=False)
            raise
        self.consumer = consumer
        self._coordinator = consumer._coordinator
        self._manager = consumer._manager
        # The consumer does not pass this setting on. Without it, a request for a deleted topic would recreate it.
        self._manager.cluster.config["allow_auto_create_topics"] = False
        self._report_losses_while_joining()

    def _report_losses_while_joining(self) -> None:
        """Make a cooperative client report the partitions that it loses while it joins (rule R72).

        Without that the client joins as a new member and keeps its old partitions. Java's client prepares such a join
        again, too (KAFKA-12983).
        """
        reset = self._coordinator.reset_generation

        def reset_and_prepare(*args: Any, **named: Any) -> None:
            reset(*args, **named)
            self._coordinator.rejoining = False

        # An eager client has released everything before it joins, and would report it twice.
        # R72: a session that ends in a join is a loss
        if self.is_cooperative:
            self._coordinator.reset_generation = reset_and_prepare

    @property
    def is_cooperative(self) -> bool:
        """Whether the client keeps its partitions during a rebalance."""
        return bool(self._coordinator._rebalance_protocol == ClientProtocol.COOPERATIVE)

    @property
    def coordinator_known(self) -> bool:
        """Whether the client knows the group's coordinator."""
        return self._coordinator.coordinator_id is not None

    @property
    def heartbeat_answered_s(self) -> float:
        """When a heartbeat was last answered, in seconds of the monotonic clock; -inf if none was."""
        return float(self._coordinator.heartbeat.last_receive)

    @property
    def session_timeout_s(self) -> float:
        """The session timeout in use, in seconds. The client's default depends on the broker's version."""
        return float(self._coordinator.heartbeat.config["session_timeout_ms"]) / 1000

    @property
    def heartbeats_stopped(self) -> bool:
        """Whether heartbeats have stopped, apart from a join, which starts them again before it ends."""
        return not (self._coordinator._heartbeat_enabled or self._coordinator.rejoining)

    @property
    def join_is_due(self) -> bool:
        """Whether the client sees a reason to join: its own, or one that a heartbeat reported."""
        return bool(self._coordinator.need_rejoin())

    def call_soon(self, work: Callable[..., Any], *args: object) -> Future:
        """Run a function or a coroutine on the client's I/O thread. Any thread."""
        return self._manager.call_soon(work, *args)

    def poll(self, timeout_ms: int) -> None:
        """Poll the coordinator, not the consumer, which would fetch records. Runs rebalances and their callbacks."""
        self._coordinator.poll(timeout_ms=timeout_ms)

    def request_rejoin(self) -> None:
        """Make the next poll join again."""
        self._coordinator.request_rejoin()

    def refuse_to_join(self) -> None:
        """Make each join fail from now on, the one of a poll under way, too: that poll raises `JoinRefused`."""

        async def refuse() -> bytes:
            raise JoinRefused("the member ends")

        self._coordinator._do_join_and_sync_async = refuse

    def reset_generation(self) -> None:
        """Drop the membership: the next poll joins as a new member."""
        self._coordinator.reset_generation()

    def fetch_committed(
        self, partitions: Sequence[ClientPartition], timeout_ms: int
    ) -> dict[ClientPartition, OffsetAndMetadata]:
        """Return the group's offsets as they are now. Partitions without one are left out. Raises `KafkaError`.

        Drops an earlier request that timed out, because the client keeps its answer.

        Guards against (rule R3):
        1. A request for a partition's offset times out. The client keeps it.
        2. The partition moves to another member, which commits 50, and back.
        3. The second request gets the answer to the first, 20: [20, 50) is repeated.
        """
        # R3: the answer to an earlier request is old
        self._coordinator._offset_fetch_futures.pop(frozenset(partitions), None)
        found: dict[ClientPartition, OffsetAndMetadata] = self._coordinator.fetch_committed_offsets(
            partitions, timeout_ms=timeout_ms
        )
        return found

    async def send_commit(self, offsets: Mapping[ClientPartition, OffsetAndMetadata]) -> None:
        """Send one request, and raise its error. The client's I/O thread only.

        Guards against (rule R21):
        1. A commit of 20 is refused for a reason that passes. The client keeps it to repeat it.
        2. The session expires. Another member gets the partition and commits 50. This member joins again.
        3. The client repeats the commit of 20 under the new generation: the group's offset goes back.
        """
        # R21: one request; `KafkaConsumer.commit` would repeat it
        await self._coordinator._send_offset_commit_request(offsets)


class WatchedClient(KafkaNetClient):  # type: ignore[misc]
    """The network client of a consumer, for its setting `kafka_client`. Reports how each connection begins and ends.

    `report` runs on the client's I/O thread: with an error, or with None when a connection works.
    """

    def __init__(self, report: Callable[[BaseException | None], None], /, **settings: Any) -> None:
        for owner, names in _OF_CLASSES.items():
            _require(owner, names)
        net = NetworkSelector(**settings)
        super().__init__(net=net, manager=_Manager(net, report, **settings), **settings)

    def end_attempts(self) -> None:
        """Close all connections and open no other, after the callback of a connection that calls this."""
        self._manager.call_soon(self._manager.close)


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
    """Return a transport's receive function that postpones an error to the next call if there is data.

    The client drops data that arrives with an error: the answer of a broker that gives the reason and closes the
    connection at once.
    """

    def run() -> tuple[bytes, BaseException | None]:
        data, error = receive()
        # A connection that has ended reports it again.
        return (data, None) if data else (data, error)

    return run
