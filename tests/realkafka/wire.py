"""What a proxy must know of Kafka's protocol: frames, request headers, and rules about them. Pure: no sockets.

A frame is a size (int32) and that many bytes. A request starts with api key (int16), api version (int16), correlation
id (int32) and client id (int16 length, -1 for none); a response with the correlation id of its request. One
connection's responses come in the order of its requests.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum

# Kafka's own limit of a request (socket.request.max.bytes) is 100 MiB: more than this is no Kafka frame.
_MAX_FRAME = 128 * 1024 * 1024
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
_INT32 = struct.Struct(">i")


class WireError(Exception):
    """These bytes are not Kafka's protocol."""


class RuleError(Exception):
    """A rule's own condition failed."""


class Api(IntEnum):
    """The api keys that tests name; a request may have another one."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    CONSUMER_GROUP_HEARTBEAT = 68


class On(Enum):
    """Which frame of an exchange a rule acts on."""

    REQUEST = "request"
    """Before the request is forwarded: the broker never sees it."""
    RESPONSE = "response"
    """When the broker has answered and before the client gets the answer: what was asked for has happened."""


class Action(Enum):
    """What a rule does with the frame."""

    CUT = "cut"
    """Close the connection instead of forwarding the frame."""
    DELAY = "delay"
    """Forward it later; what follows it in the same direction waits as well."""
    HOLD = "hold"
    """As DELAY, until `Rule.release`."""
    BLACK_HOLE = "black-hole"
    """Leave the connection open and forward nothing of it any more, in either direction."""


class FrameSplitter:
    """Cuts a byte stream into frames, without their size."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that `data` completes. Raises WireError for a size that no frame has."""
        self._left += data
        frames = []
        begin = 0
        while len(self._left) - begin >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._left, begin)
            if not 0 <= size <= _MAX_FRAME:
                raise WireError(f"a frame of {size} bytes")
            end = begin + _SIZE.size + size
            if len(self._left) < end:
                break
            frames.append(bytes(self._left[begin + _SIZE.size : end]))
            begin = end
        del self._left[:begin]
        return frames


def framed(payload: bytes) -> bytes:
    """Return the frame with its size."""
    return _SIZE.pack(len(payload)) + payload


@dataclass(frozen=True, slots=True)
class Request:
    """A request's header and whole payload; `body` is where the header's client id ends."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    payload: bytes
    body: int


def parse_request(payload: bytes) -> Request:
    """Read the header. Raises WireError when it is cut short."""
    if len(payload) < _HEADER.size:
        raise WireError(f"a request of {len(payload)} bytes")
    api_key, version, correlation_id, length = _HEADER.unpack_from(payload)
    body = _HEADER.size + max(length, 0)
    if body > len(payload):
        raise WireError(f"a client id of {length} bytes in a request of {len(payload)}")
    client_id = payload[_HEADER.size : body].decode(errors="replace")
    return Request(api_key, version, correlation_id, client_id, payload, body)


class Exchanges:
    """The requests of one connection that are not answered yet."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, Request] = OrderedDict()

    def asked(self, request: Request) -> None:
        """Remember a request that is forwarded."""
        self._open[request.correlation_id] = request

    def answered(self, payload: bytes) -> Request | None:
        """Return the request that this response answers; None when it is unknown.

        Earlier ones get no answer any more: a produce request with acks=0 has none.
        """
        if len(payload) < _INT32.size:
            raise WireError(f"a response of {len(payload)} bytes")
        (correlation_id,) = _INT32.unpack_from(payload)
        if correlation_id not in self._open:
            return None
        while True:
            found, request = self._open.popitem(last=False)
            if found == correlation_id:
                return request


class Rule:
    """One scripted fault; safe in every thread."""

    def __init__(
        self,
        api: int | None,
        *,
        client: str = "",
        on: On = On.REQUEST,
        action: Action = Action.CUT,
        times: int | None = 1,
        skip: int = 0,
        delay_s: float = 0.0,
        broker: int | None = None,
        where: Callable[[Request], bool] | None = None,
    ) -> None:
        """Match requests of `api` (None: any) whose client id contains `client`, at `broker` (None: any).

        on: the request itself, or its response. times: how often it acts, None for ever. skip: how many matches pass
        before. where: a further condition on the request.
        """
        self.api = api
        self.client = client
        self.on = on
        self.action = action
        self.times = times
        self.delay_s = delay_s
        self.broker = broker
        self._skip = skip
        self._where = where
        self._state = threading.Condition()
        self._fired = 0
        self._released = False
        self._holders: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        name = "any" if self.api is None else Api(self.api).name if self.api in set(Api) else self.api
        return f"Rule({self.action.value} {name} {self.on.value} of {self.client or 'any'!r}, fired={self.fired})"

    @property
    def fired(self) -> int:
        """How often it has acted."""
        with self._state:
            return self._fired

    def claim(self, on: On, request: Request, broker: int) -> bool:
        """Tell whether the rule acts on this frame, and count it."""
        if on is not self.on or (self.api is not None and request.api_key != self.api):
            return False
        if self.client not in request.client_id or self.broker not in (None, broker):
            return False
        if self._where is not None:
            try:
                if not self._where(request):
                    return False
            except Exception as error:
                raise RuleError(f"{self!r}: {error!r}") from error
        with self._state:
            if self.times is not None and self._fired >= self.times:
                return False
            if self._skip > 0:
                self._skip -= 1
                return False
            self._fired += 1
            self._state.notify_all()
            return True

    def wait_fired(self, timeout_s: float, times: int = 1) -> None:
        """Wait until it has acted so often. Raises TimeoutError."""
        with self._state:
            if not self._state.wait_for(lambda: self._fired >= times, timeout_s):
                fired = self._fired
            else:
                return
        raise TimeoutError(f"waited {timeout_s:.0f} s for {self!r} to fire {times} times, it did {fired} times")

    def hold(self, wake: Callable[[], object]) -> None:
        """Have `wake` called at the release, at once when that has been."""
        with self._state:
            if not self._released:
                self._holders.append(wake)
                return
        wake()

    def release(self) -> None:
        """Let go what is held, and everything that comes later."""
        with self._state:
            self._released = True
            holders, self._holders = self._holders, []
        for wake in holders:
            wake()


class RuleBook:
    """The rules in force, and how often each kind of request was seen. Safe in every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: Counter[tuple[str, int]] = Counter()
        self._received: Counter[tuple[str, int, int]] = Counter()

    def add(self, rule: Rule) -> Rule:
        """Put a rule in force, behind the earlier ones."""
        with self._lock:
            self._rules.append(rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """End a rule and let go what it holds; one that is no longer there is no error."""
        with self._lock:
            self._rules = [kept for kept in self._rules if kept is not rule]
        rule.release()

    def clear(self) -> None:
        """End all rules."""
        with self._lock:
            rules, self._rules = self._rules, []
        for rule in rules:
            rule.release()

    def note(self, request: Request) -> None:
        """Count a request that a client has sent."""
        with self._lock:
            self._seen[request.client_id, request.api_key] += 1

    def seen(self, api: int, client: str = "") -> int:
        """Return how many requests of this api came from clients whose id contains `client`."""
        with self._lock:
            return sum(count for (name, key), count in self._seen.items() if key == api and client in name)

    def note_answer(self, request: Request, broker: int, size: int) -> None:
        """Count the bytes of a broker's answer."""
        with self._lock:
            self._received[request.client_id, request.api_key, broker] += size

    def received(self, api: int, broker: int, client: str = "") -> int:
        """Return the bytes of a broker's answers to requests of this api by clients whose id contains `client`."""
        with self._lock:
            counts = self._received.items()
            return sum(size for (name, *key), size in counts if key == [api, broker] and client in name)

    def match(self, on: On, request: Request, broker: int) -> Rule | None:
        """Return the first rule that acts on this frame; it is counted as fired."""
        with self._lock:
            rules = tuple(self._rules)
        return next((rule for rule in rules if rule.claim(on, request, broker)), None)
