"""Carry requests and answers between one client and the coordinator, in order, over sockets that may break.

What it copies: TCP (nothing overtakes on a socket; what was sent before a break may arrive after it), Kafka's broker
(`kafka.network.SocketServer`: it reads the next request of a connection when it has answered the last one), and
librdkafka's broker thread (timeouts, reconnects), at the commit that `client_base.py` names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.sim.kafka.coordinator import Coordinator
from tests.sim.kafka.protocol import ConsumerHeartbeat, Error, Heartbeat
from tests.sim.world import Process, World

# reconnect.backoff.ms and reconnect.backoff.max.ms of librdkafka.
_RECONNECT_S, _RECONNECT_MAX_S = 0.1, 10.0
# How often a client asks any broker for its coordinator (rdkafka_cgrp.c:7255). A new coordinator is connected at once.
_FIND_COORDINATOR_S = 0.5


class _Sent:
    """A request under way."""

    __slots__ = ("broker", "deadline", "is_answered", "on_answer", "on_error", "request", "socket")

    def __init__(
        self, request: Any, deadline: float, on_answer: Callable[[Any], None], on_error: Callable[[Error], None]
    ) -> None:
        self.request, self.deadline = request, deadline
        self.on_answer, self.on_error = on_answer, on_error
        # The socket on which it was written; -1 before that.
        self.socket = -1
        # Which broker it was written to: how often the coordinator had moved.
        self.broker = -1
        self.is_answered = False


class Connection:
    """A client's connection to its coordinator, over all its sockets.

    `on_up` and `on_down` are called on the client's own thread, as `on_answer` and `on_error` are: never while the
    process is stopped. `seconds` of timeouts are those of the client's monotonic clock.
    """

    def __init__(self, world: World, coordinator: Coordinator, process: Process, client_id: str) -> None:
        self._world, self._coordinator, self._process, self._client_id = world, coordinator, process, client_id
        self.is_up = False
        # Requests that the client gave up: `req_timeouts` in librdkafka's statistics.
        self.timeouts = 0
        self.on_up: Callable[[], None] = lambda: None
        self.on_down: Callable[[], None] = lambda: None
        self.cut_until = 0.0
        self._socket = 0
        self._tries = 0
        self._is_closed = False
        # Written and not answered; not written yet.
        self._in_flight: list[_Sent] = []
        self._queue: list[_Sent] = []
        # At the coordinator's end: what it has not read, and what it has not answered.
        self._inbox: deque[_Sent] = deque()
        self._handled: _Sent | None = None
        self._last = {"sent": 0.0, "answered": 0.0}
        coordinator.listeners.append(self._coordinator_down)
        self._after(world.rng.uniform(0.005, 0.1), self._connect)

    # --- for the client

    def send(
        self, request: Any, timeout_s: float, on_answer: Callable[[Any], None], on_error: Callable[[Error], None]
    ) -> None:
        """Send a request now, or when there is a connection. Ends with an answer or an error, unless it is closed."""
        sent = _Sent(request, self._clock() + timeout_s, on_answer, on_error)
        if self.is_up:
            self._write(sent)
        else:
            self._queue.append(sent)

    def give_up_late(self) -> None:
        """Give up requests that had no answer in time, and the socket with them. Called by the client's timer.

        rdkafka_broker.c:1014 rd_kafka_broker_timeout_scan: socket.max.fails is 1.
        """
        now = self._clock()
        late = [sent for sent in self._in_flight if sent.deadline <= now]
        unsent = [sent for sent in self._queue if sent.deadline <= now]
        self._in_flight = [sent for sent in self._in_flight if sent not in late]
        self._queue = [sent for sent in self._queue if sent not in unsent]
        self.timeouts += len(late) + len(unsent)
        for sent in late + unsent:
            sent.is_answered = True
            sent.on_error(Error.TIMED_OUT)
        if late and self.is_up:
            self._break("request timed out")

    def close(self) -> None:
        """Close it. What was written is still delivered."""
        self._is_closed, self.is_up = True, False
        self._in_flight.clear()
        self._queue.clear()
        if self._coordinator_down in self._coordinator.listeners:
            self._coordinator.listeners.remove(self._coordinator_down)

    # --- faults

    def cut(self, until: float, *, always: bool = False) -> None:
        """Cut the client's network until that time: its socket breaks at once, or everything just waits."""
        self.cut_until = until
        if self.is_up and (always or (until > self._world.now and self._world.rng.random() < 0.5)):
            self._break("network cut")

    def _coordinator_down(self) -> None:
        if self.is_up:
            self._break("coordinator is down")

    def _break(self, why: str) -> None:
        """End this socket. Requests on their way are lost, or arrive at the coordinator later."""
        world = self._world
        world.say(self._client_id, f"connection lost: {why}")
        self._socket += 1
        self.is_up, self._tries, self._handled = False, 0, None
        late, self._inbox = list(self._inbox), deque()
        for sent in late:
            world.after(world.rng.uniform(0.0, 0.4), partial(self._arrive, sent))
        failed, self._in_flight = self._in_flight, []
        self._after(world.rng.uniform(0.0, 0.005), lambda: self._broken(failed))

    def _broken(self, failed: list[_Sent]) -> None:
        for sent in failed:
            if not sent.is_answered:
                sent.is_answered = True
                sent.on_error(Error.TRANSPORT)
        self.on_down()
        self._after(self._world.rng.uniform(0.02, 0.15), self._connect)

    # --- a new socket

    def _connect(self) -> None:
        """Try to connect; rd_kafka_broker_update_reconnect_backoff: 0.1 s, doubled up to 10 s, -25 % to +50 %."""
        if self.is_up:
            return
        world = self._world
        if self.cut_until > world.now or not self._coordinator.reachable():
            most = _FIND_COORDINATOR_S if self.cut_until <= world.now else _RECONNECT_MAX_S
            pause = min(_RECONNECT_S * 2**self._tries, most) * world.rng.uniform(0.75, 1.5)
            self._tries += 1
            self._after(pause, self._connect)
            return
        self._after(self._latency() * 3, self._connected)

    def _connected(self) -> None:
        if self.is_up or self.cut_until > self._world.now or not self._coordinator.reachable():
            self._connect()
            return
        self.is_up, self._tries = True, 0
        queue, self._queue = self._queue, []
        for sent in queue:
            self._write(sent)
        self.on_up()

    # --- requests and answers

    def _write(self, sent: _Sent) -> None:
        sent.socket, sent.broker = self._socket, self._coordinator.moves
        self._in_flight.append(sent)
        if self._is_lost(sent, self._coordinator.lose_request):
            self._world.saw("request lost")
            self._break_later()
            return
        self._world.at(self._in_order("sent"), lambda: self._arrive(sent))

    def _is_lost(self, sent: _Sent, chance: float) -> bool:
        return not isinstance(sent.request, ConsumerHeartbeat | Heartbeat) and self._world.rng.random() < chance

    def _break_later(self) -> None:
        socket = self._socket

        def breaks() -> None:
            if self._socket == socket and self.is_up:
                self._break("lost data")

        self._after(self._world.rng.uniform(0.02, 1.0), breaks)

    def _arrive(self, sent: _Sent) -> None:
        """Let the request arrive, when the network and the coordinator let it."""
        world = self._world
        if sent.broker != self._coordinator.moves:
            # That broker is dead.
            return
        if self.cut_until > world.now:
            world.at(self._in_order("sent", self.cut_until + 0.001), lambda: self._arrive(sent))
        elif sent.socket == self._socket:
            self._inbox.append(sent)
            self._read()
        elif world.rng.random() < 0.5:
            # The data of a broken socket were in the network. Nobody gets the answer.
            world.saw(f"{type(sent.request).__name__} arrived over an old connection")
            self._coordinator.receive(self._client_id, sent.request, lambda _: None)

    def _read(self) -> None:
        """Let the coordinator read one request (kafka.network.Processor mutes the channel until it is answered)."""
        if self._handled is None and self._inbox:
            sent = self._handled = self._inbox.popleft()
            self._coordinator.receive(self._client_id, sent.request, lambda answer: self._answer(sent, answer))

    def _answer(self, sent: _Sent, answer: Any) -> None:
        world, coordinator = self._world, self._coordinator
        if self._handled is not sent:
            return
        self._handled = None
        if self._is_lost(sent, coordinator.lose_answer):
            world.saw("answer lost")
            self._break_later()
        elif isinstance(sent.request, ConsumerHeartbeat) and world.rng.random() < coordinator.lose_heartbeat_answer:
            world.saw("heartbeat answer lost")
        else:
            world.at(self._in_order("answered"), lambda: self._deliver(sent, answer))
        world.after(0.00001, self._read)

    def _deliver(self, sent: _Sent, answer: Any) -> None:
        world = self._world
        blocked = max(self._process.stopped_until, self.cut_until)
        if blocked > world.now:
            world.at(self._in_order("answered", blocked + 0.001), lambda: self._deliver(sent, answer))
        elif sent.socket == self._socket and not sent.is_answered and self._process.alive and not self._is_closed:
            sent.is_answered = True
            self._in_flight.remove(sent)
            sent.on_answer(answer)

    # --- time

    def _clock(self) -> float:
        """Return CLOCK_MONOTONIC of the client's machine: it goes on while the process is stopped (rdtime.h:105)."""
        return self._world.now - self._process.suspended_s

    def _latency(self) -> float:
        return self._coordinator.latency()

    def _in_order(self, way: str, earliest: float = 0.0) -> float:
        when = max(self._world.now + self._latency(), earliest, self._last[way] + 0.00001)
        self._last[way] = when
        return when

    def _after(self, seconds: float, run: Callable[[], None]) -> None:
        """Run something on the client's thread."""
        self._process.after(seconds, run, over=lambda: self._is_closed)
