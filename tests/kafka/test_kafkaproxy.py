"""The proxy on sockets, before an echo server and before a real broker."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.realkafka.proxy import Action, Api, KafkaProxy, On, Rule
from tests.realkafka.realkafka import RealKafka

from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka
_WAIT_S = 10.0
_SILENCE_S = 0.3


class EchoServer:
    """Answers each request with its correlation id; counts what reached it."""

    def __init__(self) -> None:
        self.reached: list[int] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            while frame := _receive(peer):
                self.reached.append(struct.unpack_from(">hhi", frame)[2])
                _send(peer, frame[4:8])

    def close(self) -> None:
        # Wakes the thread that accepts, which a mere close does not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Client:
    """Sends requests to the proxy."""

    def __init__(self, proxy: KafkaProxy, name: str = "first-member") -> None:
        self._name = name.encode()
        self.socket = socket.create_connection(("127.0.0.1", proxy.port(1)), _WAIT_S)

    def send(self, api: int, number: int) -> None:
        _send(self.socket, struct.pack(">hhih", api, 0, number, len(self._name)) + self._name)

    def answer(self) -> int | None:
        """The correlation id of the next answer; None at the connection's end."""
        try:
            frame = _receive(self.socket)
        except ConnectionResetError:
            return None
        return int(struct.unpack(">i", frame)[0]) if frame else None

    def ask(self, api: int, number: int) -> int | None:
        self.send(api, number)
        return self.answer()

    def silent(self) -> bool:
        """Whether nothing comes for a while."""
        self.socket.settimeout(_SILENCE_S)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(_WAIT_S)
        return False


def _send(peer: socket.socket, frame: bytes) -> None:
    peer.sendall(struct.pack(">i", len(frame)) + frame)


def _receive(peer: socket.socket) -> bytes:
    size = _exactly(peer, 4)
    return _exactly(peer, struct.unpack(">i", size)[0]) if size else b""


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        if not more:
            return b""
        data += more
    return data


@pytest.fixture
def server() -> Iterator[EchoServer]:
    echo = EchoServer()
    yield echo
    echo.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[KafkaProxy]:
    with KafkaProxy({1: server.port}) as made:
        yield made


@pytest.fixture
def peer(proxy: KafkaProxy) -> Iterator[Client]:
    made = Client(proxy)
    yield made
    made.socket.close()


def test_cut_before_or_after_the_broker_has_seen_the_request(
    proxy: KafkaProxy, server: EchoServer, peer: Client
) -> None:
    assert peer.ask(Api.METADATA, 1) == 1
    before = proxy.add(Rule(Api.JOIN_GROUP, client="-member"))
    assert peer.ask(Api.JOIN_GROUP, 2) is None
    after = proxy.add(Rule(Api.SYNC_GROUP, on=On.RESPONSE))
    again = Client(proxy)
    with again.socket:
        assert again.ask(Api.JOIN_GROUP, 3) == 3
        assert again.ask(Api.SYNC_GROUP, 4) is None
    assert server.reached == [1, 3, 4]
    assert (before.fired, after.fired, proxy.seen(Api.JOIN_GROUP, "first")) == (1, 1, 2)


def test_held_and_delayed_frames_keep_their_order(proxy: KafkaProxy, server: EchoServer, peer: Client) -> None:
    held = proxy.add(Rule(Api.HEARTBEAT, action=Action.HOLD))
    peer.send(Api.HEARTBEAT, 1)
    peer.send(Api.METADATA, 2)
    held.wait_fired(_WAIT_S)
    assert peer.silent()
    assert server.reached == []
    held.release()
    assert [peer.answer(), peer.answer()] == [1, 2]
    proxy.add(Rule(Api.HEARTBEAT, on=On.RESPONSE, action=Action.DELAY, delay_s=2 * _SILENCE_S))
    peer.send(Api.HEARTBEAT, 3)
    assert peer.silent()
    assert server.reached == [1, 2, 3]
    assert peer.answer() == 3


def test_a_black_hole_swallows_both_directions(proxy: KafkaProxy, server: EchoServer, peer: Client) -> None:
    held = proxy.add(Rule(Api.FETCH, on=On.RESPONSE, action=Action.HOLD))
    peer.send(Api.FETCH, 1)
    held.wait_fired(_WAIT_S)
    hole = proxy.add(Rule(Api.HEARTBEAT, action=Action.BLACK_HOLE))
    peer.send(Api.HEARTBEAT, 2)
    hole.wait_fired(_WAIT_S)
    held.release()
    peer.send(Api.METADATA, 3)
    assert peer.silent()
    assert server.reached == [1]


def test_connections_are_cut_by_client_and_refused(proxy: KafkaProxy) -> None:
    with contextlib.ExitStack() as stack:
        first, second = Client(proxy, "first-member"), Client(proxy, "second-member")
        stack.enter_context(first.socket)
        stack.enter_context(second.socket)
        assert (first.ask(Api.METADATA, 1), second.ask(Api.METADATA, 1)) == (1, 1)
        assert proxy.cut_all("first") == 1
        assert first.answer() is None
        assert second.ask(Api.METADATA, 2) == 2
        proxy.refuse(True)
        third = Client(proxy)
        stack.enter_context(third.socket)
        with contextlib.suppress(OSError):
            third.send(Api.METADATA, 3)
        assert third.answer() is None
        assert second.ask(Api.METADATA, 3) == 3
        proxy.clear()
        fourth = Client(proxy)
        stack.enter_context(fourth.socket)
        assert fourth.ask(Api.METADATA, 4) == 4
        assert proxy.cut_all(broker=1) == 2


def test_clients_stay_behind_the_proxy_of_a_real_broker() -> None:
    with RealKafka(proxied=True) as kafka:
        Independent(kafka.proxied_servers).create_topic("orders", 2)
        Independent(kafka.proxied_servers).produce("orders", ["a", "b", "c"], 2)
        assert len(Independent(kafka.proxied_servers).records("orders")) == 3
        assert kafka.proxy.seen(Api.PRODUCE) > 0, "the metadata led the producer past the proxy"
        assert kafka.proxy.seen(Api.FETCH) > 0
        produced = kafka.proxy.seen(Api.PRODUCE)
        Independent(kafka.bootstrap_servers).produce("orders", ["d"], 2)
        assert kafka.proxy.seen(Api.PRODUCE) == produced
        servers = kafka.proxied_servers
        kafka.kill_broker(1)
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0, "reconnect.backoff.max.ms": 300})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=1.0)
        kafka.start_broker(1)
        assert kafka.proxied_servers == servers
        wait_for("records after the restart", lambda: len(Independent(servers).records("orders")) == 4, 30)
