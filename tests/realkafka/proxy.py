"""A TCP proxy between Kafka clients and brokers that does what rules say, for tests. Loopback only.

    with KafkaProxy({1: 9092}) as proxy:
        rule = proxy.add(Rule(Api.JOIN_GROUP, client="first-member", on=On.RESPONSE, action=Action.CUT))
        ... clients use proxy.address(1) ...
        rule.wait_fired(10)

Clients stay behind it only if the brokers advertise its ports: `RealKafka(proxied=True)`. Rules are in wire.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from tests.realkafka.wire import (
    Action,
    Api,
    Exchanges,
    FrameSplitter,
    On,
    Request,
    Rule,
    RuleBook,
    WireError,
    framed,
    parse_request,
)

__all__ = ["Action", "Api", "KafkaProxy", "On", "Rule"]

_HOST = "127.0.0.1"
_CHUNK = 256 * 1024
_CALL_TIMEOUT_S = 20.0
_FLUSH_S = 1.0
_T = TypeVar("_T")


class _Cut(Exception):
    """This connection is to end."""


class _Connection:
    """One client's connection and its twin to the broker. Loop thread only."""

    def __init__(
        self,
        broker: int,
        rules: RuleBook,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.broker = broker
        self.client_id = ""
        self._rules = rules
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._exchanges = Exchanges()
        self._dead = False

    async def run(self) -> None:
        """Forward until one side ends or a rule cuts; then close both."""
        ways = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._responses())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ends = await asyncio.gather(*ways, return_exceptions=True)
            await _close(self._to_client, self._to_server)
        for end in ends:
            # Cut, refused or reset connections, and bytes that are not Kafka's, just end.
            if isinstance(end, Exception) and not isinstance(end, (_Cut, WireError, OSError)):
                raise end

    async def _requests(self) -> None:
        splitter = FrameSplitter()
        while data := await self._from_client.read(_CHUNK):
            for payload in splitter.feed(data):
                request = parse_request(payload)
                self.client_id = request.client_id
                self._rules.note(request)
                await self._obey(On.REQUEST, request)
                self._exchanges.asked(request)
                await self._forward(self._to_server, payload)

    async def _responses(self) -> None:
        splitter = FrameSplitter()
        while data := await self._from_server.read(_CHUNK):
            for payload in splitter.feed(data):
                request = self._exchanges.answered(payload)
                if request is not None:
                    self._rules.note_answer(request, self.broker, len(payload))
                    await self._obey(On.RESPONSE, request)
                await self._forward(self._to_client, payload)

    async def _forward(self, writer: asyncio.StreamWriter, payload: bytes) -> None:
        if not self._dead:
            writer.write(framed(payload))
            await writer.drain()

    async def _obey(self, on: On, request: Request) -> None:
        rule = None if self._dead else self._rules.match(on, request, self.broker)
        if rule is None:
            return
        if rule.action is Action.CUT:
            raise _Cut
        if rule.action is Action.BLACK_HOLE:
            self._dead = True
        elif rule.action is Action.DELAY:
            await asyncio.sleep(rule.delay_s)
        else:
            await _released(rule)


async def _close(*writers: asyncio.StreamWriter) -> None:
    """Close; what was forwarded before is still delivered, unless the other side does not read."""
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError):
            try:
                await asyncio.wait_for(writer.wait_closed(), _FLUSH_S)
            except asyncio.TimeoutError:
                writer.transport.abort()


async def _turns() -> None:
    """Let callbacks run that call each other: asyncio takes about four turns of its loop to accept a connection."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _released(rule: Rule) -> None:
    loop = asyncio.get_running_loop()
    released = asyncio.Event()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(released.set)

    rule.hold(wake)
    await released.wait()


class KafkaProxy:
    """One listening port per broker, on 127.0.0.1; its own thread does the work, every method may be called by any.

    ports: the brokers' ports by broker id. A broker that is down is a connection that is closed at once; it may come
    back on its port at any time.
    """

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._targets = dict(ports)
        self._rules = RuleBook()
        self._refused = False
        self._shutting = False
        self._connections: dict[asyncio.Task[None], _Connection | None] = {}
        self._servers: list[asyncio.Server] = []
        self._errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafkaproxy", daemon=True)
        self._thread.start()
        try:
            self._listening = self._call(self._listen())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> KafkaProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def port(self, broker: int) -> int:
        """Return the proxy's port for a broker."""
        return self._listening[broker]

    def address(self, broker: int) -> str:
        """Return host:port for a broker."""
        return f"{_HOST}:{self.port(broker)}"

    @property
    def servers(self) -> str:
        """host:port of every broker behind the proxy, comma separated."""
        return ",".join(self.address(broker) for broker in self._targets)

    # --- faults

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force, behind the earlier ones, and return it."""
        return self._rules.add(rule)

    def remove(self, rule: Rule) -> None:
        """End a rule and let go what it holds."""
        self._rules.remove(rule)

    def clear(self) -> None:
        """End all rules and accept connections again."""
        self._rules.clear()
        self.refuse(False)

    def seen(self, api: int, client: str = "") -> int:
        """Return how many requests of this api came from clients whose id contains `client`."""
        return self._rules.seen(api, client)

    def received(self, api: int, broker: int, client: str = "") -> int:
        """Return the bytes of a broker's answers to requests of this api by clients whose id contains `client`."""
        return self._rules.received(api, broker, client)

    def cut_all(self, client: str = "", broker: int | None = None) -> int:
        """Cut all connections, or those whose client id contains `client`, or those to a broker; return how many."""

        async def cut() -> int:
            chosen = [
                task
                for task, known in self._connections.items()
                if known is not None and client in known.client_id and broker in (None, known.broker)
            ]
            for task in chosen:
                task.cancel()
            await asyncio.gather(*chosen, return_exceptions=True)
            return len(chosen)

        return self._call(cut())

    def refuse(self, on: bool) -> None:
        """Close every new connection at once, until it is switched off."""
        self._refused = on

    # --- life

    def close(self) -> None:
        """Cut everything, free the ports and end the thread; a second call does nothing.

        Raises what failed inside the proxy, such as a rule's condition.
        """
        if self._loop.is_closed():
            return
        self._rules.clear()
        self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()
        if self._errors:
            raise self._errors[0]

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    async def _listen(self) -> dict[int, int]:
        found = {}
        for broker in self._targets:
            server = await asyncio.start_server(partial(self._accepted, broker), _HOST, 0)
            self._servers.append(server)
            found[broker] = int(server.sockets[0].getsockname()[1])
        return found

    async def _shut(self) -> None:
        # First accept no more, and let what is just being accepted get to `_accepted`: a server that closes meanwhile
        # leaves such a connection open for ever.
        self._shutting = True
        for server in self._servers:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
        await _turns()
        for server in self._servers:
            server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _turns()  # what was closed is let go of

    def _accepted(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shutting:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(broker, reader, writer))
        self._connections[task] = None
        task.add_done_callback(partial(self._ended, writer))

    def _ended(self, writer: asyncio.StreamWriter, task: asyncio.Task[None]) -> None:
        # A task that is cancelled before it has begun closes nothing.
        writer.close()
        del self._connections[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    async def _serve(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = None
        try:
            if not self._refused:
                twin = await asyncio.open_connection(_HOST, self._targets[broker])
                connection = _Connection(broker, self._rules, (reader, writer), twin)
                task = asyncio.current_task()
                if task is not None:
                    self._connections[task] = connection
                await connection.run()
        except OSError:
            pass  # the broker is down
        finally:
            if connection is None:
                await _close(writer)
