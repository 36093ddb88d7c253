"""Keep one valid token per provider and process, and set it on all Kafka clients that log in with it.

A thread of the keeper calls the provider, at first and when 80 % of a token's life are over, and gives each token to
all clients. No Kafka client ever calls a provider itself, for three reasons:

- confluent-kafka's `oauth_cb` makes each client a second slower: its constructor sleeps for whole seconds until its
  background thread has called the function (`wait_for_oauth_token_set`, 2.16).
- If the function raises, that constructor waits for 10 s, and the error is lost.
- One call serves all clients of a process.

The token is set with librdkafka's `rd_kafka_oauthbearer_set_token`. Any thread may call it while the client exists. So
a client leaves its keeper before it closes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import socket
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from spark_groupsource import errors
from spark_groupsource._librdkafka import library_path
from spark_groupsource.client.token_providers import Callback, Token, Unusable, callback_of, token_of
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.errors import AccessError, GroupKafkaError, OptionError
from spark_groupsource.options.token_login import TokenLogin
from spark_groupsource.redaction import forget, masked, masked_foreign, remember

LOG = logging.getLogger(__name__)
C = TypeVar("C", Consumer, AdminClient)

# Key of the keeper in a client's settings. confluent-kafka itself could call it.
SETTING = "oauth_cb"
# Part of a token's life after which the next one is requested, as in librdkafka.
_REFRESH_AT = 0.8
# Seconds between two attempts of a failing provider: the first, and the longest.
_RETRY_S, _LONGEST_RETRY_S = 0.5, 5.0
# Seconds between two attempts that succeed, so that a provider of very short tokens is not called all the time.
_SHORTEST_S = 0.2
# Seconds that a first token may take if the provider raises: on the driver, and on an executor, whose task Spark
# repeats. Then if it does not return. All leave time to report the error within 15 s of the first call.
_FIRST_S, _FIRST_EXECUTOR_S, _FIRST_HANGS_S = 3.0, 6.0, 10.0
# Seconds that a client waits for a new token if the last one has expired, as long as for rejected credentials.
_EXPIRED_S = 20.0
# Seconds until all clients have connected again with a token that came too late: librdkafka's longest pause between two
# attempts (reconnect.backoff.max.ms), and some.
_RECONNECT_S = 12.0
# The thread checks the time at least that often, because its sleep does not count a suspended machine.
_STEP_S = 30.0
# Tokens that stay masked after they were replaced.
_REMEMBERED = 4
_ERRSTR_SIZE = 512


class TokenKeeper:
    """Keep the token of one provider. Thread-safe. `side` names the process, for errors.

    `_lock` guards all that follows it. It is never held while the provider runs or a client is closed.
    """

    def __init__(
        self,
        login: TokenLogin,
        config: str | None,
        side: str,
        make_callback: Callable[[], Callback],
        clock: Clock | None = None,
    ) -> None:
        self._login, self._config, self._side = login, config, side
        self._make_callback = make_callback
        self._callback: Callback | None = None
        self._clock = clock or SystemClock()
        self._lock = threading.Condition()
        self._token: Token | None = None
        self._unusable: Unusable | None = None
        self._failure = ""
        self._attempts = 0
        # When a token came after the last one had expired, in seconds of the monotonic clock.
        self._recovered_s = -math.inf
        self._calling_since_s: float | None = None
        self._thread: threading.Thread | None = None
        # Whether a client asked for the token since the last refresh.
        self._wanted = False
        # Whether a server refused the token, and its thread has not called the provider since.
        self._is_refused = False
        self._issued: list[str] = []
        # By the address of the Python object.
        self._clients: dict[int, weakref.ref[Any]] = {}
        self._handles: set[int] = set()

    # --- what clients do

    def current(self) -> Token:
        """Return a valid token; wait for the first one, or for the next one if the last has expired.

        Raises the provider's own error, as an error of the catalogue.
        """
        with self._lock:
            self._wanted = True
            self._start()
            begun_s = self._clock.monotonic_s()
            while (token := self._token) is None or not self._is_valid():
                self._wanted = True
                if self._unusable is not None:
                    raise self._as_unusable(self._unusable)
                waited_s = self._clock.monotonic_s() - begun_s
                if waited_s >= self._patience_s():
                    raise self._as_failed(waited_s)
                self._lock.wait(0.1)
            return token

    def renewed(self, refused: Token) -> Token:
        """Return the token after one that a server refused before its expiry; calls the provider at once.

        Returns the refused one if the provider fails, or does not return within 10 s.
        """
        with self._lock:
            self._wanted = True
            if self._token is refused:
                self._is_refused = True
                self._start()
                self._lock.notify_all()
            begun_s = self._clock.monotonic_s()
            while self._is_refused and self._clock.monotonic_s() - begun_s < _FIRST_HANGS_S:
                self._lock.wait(0.1)
            return self._token or refused

    def latest(self) -> Token:
        """Return the last token, even if it has expired. Waits only for the first one. Raises as `current`."""
        with self._lock:
            self._wanted = True
            self._start()
            token = self._token
        return self.current() if token is None else token

    def __call__(self, _: object) -> tuple[str, float, str, dict[str, str]]:
        """Return the token by the contract of confluent-kafka's `oauth_cb`."""
        token = self.current()
        return token.value, token.expires_s, token.principal, dict(token.extensions)

    def trouble(self) -> str:
        """Return why the provider fails, if it has failed since its last token expired; else an empty text."""
        with self._lock:
            return "" if self._is_valid() or not self._failure else self._described()

    def recovers(self) -> bool:
        """Return whether brokers may refuse clients only because a token is late: see `provider_recovers`."""
        with self._lock:
            if self._token is None:
                return False
            if not self._is_valid():
                return self._clock.epoch_s() - self._token.expires_s < _EXPIRED_S
            return self._clock.monotonic_s() - self._recovered_s < _RECONNECT_S

    def add(self, client: Consumer | AdminClient) -> bool:
        """Set the token on a client of confluent-kafka, now and later. Return False if its handle is not found."""
        token = self.current()
        with self._lock:
            handle = _handle_of(client)
            if handle is None:
                return False
            self._clients[id(client)] = weakref.ref(client)
            _set_token(handle, self._token or token)
        return True

    def remove(self, client: Consumer | AdminClient) -> None:
        """Stop setting tokens on a client, which may then be closed."""
        with self._lock:
            self._clients.pop(id(client), None)

    def add_handle(self, handle: int) -> None:
        """Set the token on a client of librdkafka, now and later."""
        token = self.current()
        with self._lock:
            # First, because the caller destroys the client if this fails.
            _set_token(handle, self._token or token)
            self._handles.add(handle)

    def remove_handle(self, handle: int) -> None:
        """Stop setting tokens on a client of librdkafka, which may then be destroyed."""
        with self._lock:
            self._handles.discard(handle)

    # --- the thread

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="groupkafka-tokens", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            wake_s = self._clock.epoch_s() + pause_s
            with self._lock:
                while not self._is_refused and (left_s := wake_s - self._clock.epoch_s()) > 0:
                    self._lock.wait(min(left_s, _STEP_S))
                if self._unusable is not None or not self._is_needed():
                    self._thread = None
                    return
                self._wanted = False
                self._calling_since_s = self._clock.monotonic_s()
            pause_s = self._refresh()

    def _is_needed(self) -> bool:
        self._clients = {address: known for address, known in self._clients.items() if known() is not None}
        return bool(self._wanted or self._clients or self._handles)

    def _refresh(self) -> float:
        """Call the provider once. Return the seconds until the next call."""
        unusable: Unusable | None = None
        token: Token | None = None
        pause_s, failure = 0.0, ""
        try:
            if self._callback is None:
                self._callback = self._make_callback()
            token = token_of(self._callback(self._config), self._clock.epoch_s())
        except Unusable as error:
            unusable, failure = error, _described(error)
        except BaseException as error:  # noqa: BLE001 - it is the user's code, on a thread of its own
            failure = _described(error)
        # Clients whose last reference may be the one taken here: they must not be destroyed under the lock.
        held: list[Any] = []
        with self._lock:
            self._calling_since_s, self._unusable, was = None, unusable, self._failure
            self._is_refused = False
            if token is None:
                self._failure = failure
                self._attempts += 1
                pause_s = min(_LONGEST_RETRY_S, _RETRY_S * 2 ** min(self._attempts - 1, 10))
                self._lock.notify_all()
                valid_s = self._valid_s()
            else:
                self._failure, self._attempts = "", 0
                self._take(token, held)
                valid_s = self._valid_s()
                pause_s = max(_SHORTEST_S, _REFRESH_AT * valid_s)
        if failure and failure != was and unusable is None:
            LOG.warning(
                "the token provider fails: provider=%s error=%s the_token_is_valid_for_s=%.0f",
                self._login.provider, failure, valid_s,
            )  # fmt: skip
        elif was and not failure:
            LOG.info("the token provider works again: provider=%s", self._login.provider)
        return pause_s

    def _take(self, token: Token, held: list[Any]) -> None:
        """Set a new token on all clients. With the lock."""
        remember([token.value])
        self._issued.append(token.value)
        for old in self._issued[:-_REMEMBERED]:
            if old not in self._issued[-_REMEMBERED:]:
                forget(old)
        self._issued = self._issued[-_REMEMBERED:]
        if self._token is not None and not self._is_valid():
            self._recovered_s = self._clock.monotonic_s()
        self._token = token
        for known in self._clients.values():
            client = known()
            held.append(client)
            handle = None if client is None else _handle_of(client)
            if handle is not None:
                _set_token(handle, token)
        for handle in self._handles:
            _set_token(handle, token)
        self._lock.notify_all()

    # --- with the lock

    def _valid_s(self) -> float:
        return 0.0 if self._token is None else max(0.0, self._token.expires_s - self._clock.epoch_s())

    def _is_valid(self) -> bool:
        return self._valid_s() > 0

    def _patience_s(self) -> float:
        if self._token is not None:
            return _EXPIRED_S
        if not self._failure or self._calling_since_s is not None:
            return _FIRST_HANGS_S
        return _FIRST_S if self._side == _DRIVER else _FIRST_EXECUTOR_S

    def _described(self) -> str:
        name = f"'{self._login.option}' (value '{self._login.value}')"
        return f"the token provider {self._login.provider} of option {name} fails: {self._failure}"

    def _as_failed(self, waited_s: float) -> GroupKafkaError:
        since_s = self._calling_since_s
        hangs = since_s is not None and self._clock.monotonic_s() - since_s > _RETRY_S
        reason = f"it has not returned for {waited_s:.0f} s" if hangs or not self._failure else self._failure
        return AccessError(errors.TOKEN_PROVIDER_FAILED, provider=self._login.provider, reason=reason, **self._where())

    def _as_unusable(self, error: Unusable) -> GroupKafkaError:
        reason = masked_foreign(" ".join(str(error).split()))
        return OptionError(errors.TOKEN_PROVIDER_UNUSABLE, reason=reason, remedy=error.remedy, **self._where())

    def _where(self) -> dict[str, str]:
        return {
            "option": self._login.option, "value": self._login.value,
            "side": self._side, "host": socket.gethostname(),
        }  # fmt: skip


_DRIVER = "the driver"


def _described(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - it is the user's code, too
        text = ""
    return f"{type(error).__name__}: {masked_foreign(text)}" if text else type(error).__name__


# --- the keepers of this process

_keepers: dict[tuple[int, TokenLogin, str | None, str | None], TokenKeeper] = {}
_keepers_lock = threading.Lock()


def keeper_of(login: TokenLogin, config: str | None, extensions: str | None, side: str) -> TokenKeeper:
    """Return this process's keeper of a login. A forked process has none of its parent's threads, and so its own."""
    key = (os.getpid(), login, config, extensions)
    with _keepers_lock:
        if key not in _keepers:
            _keepers[key] = TokenKeeper(login, config, side, functools.partial(callback_of, login, extensions))
        return _keepers[key]


def provider_trouble(login: TokenLogin | None) -> str:
    """Return why a login's provider has no valid token in this process, for the error of a refusal; else empty."""
    return next(filter(None, (keeper.trouble() for keeper in _keepers_here(login))), "")


def provider_recovers(login: TokenLogin | None) -> bool:
    """Return whether a refused login may pass, because its provider is late with a token in this process.

    Guards against:
    1. The provider is down for 13 s, and the token expires meanwhile.
    2. A broker ends the connections with the expired token, and refuses it when a task's client connects again.
    3. The task fails although the provider is back a moment later.
    """
    return any(keeper.recovers() for keeper in _keepers_here(login))


def _keepers_here(login: TokenLogin | None) -> list[TokenKeeper]:
    """Return the keepers of a login that this process has made itself: one per configuration of its provider."""
    here = (os.getpid(), login)
    return [keeper for key, keeper in list(_keepers.items()) if key[:2] == here]


# --- clients of confluent-kafka


class _TokenConsumer(Consumer):
    """A consumer that leaves its keeper before it closes."""

    keeper: TokenKeeper | None = None

    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.remove(self)
        super().close()


class _TokenAdmin(AdminClient):
    """An admin client that leaves its keeper before it is destroyed.

    Guards against:
    1. A request is not answered, and its client is destroyed. That takes some milliseconds, without Python's lock.
    2. The keeper has a new token, and finds the client's handle: confluent-kafka clears it at the end.
    3. It sets the token on memory that is freed.
    """

    keeper: TokenKeeper | None = None

    def __exit__(self, *error: Any) -> None:
        if self.keeper is not None:
            self.keeper.remove(self)
        super().__exit__(*error)


def new_consumer(settings: dict[str, Any]) -> Consumer:
    """Create a consumer, and set the token on it if the settings have a keeper of tokens."""
    return _logged_in(Consumer, _TokenConsumer, settings)


def new_admin(settings: dict[str, Any]) -> AdminClient:
    """Create an admin client, as `new_consumer`."""
    return _logged_in(AdminClient, _TokenAdmin, settings)


def _logged_in(plain: Callable[[dict[str, Any]], C], token: Any, settings: dict[str, Any]) -> C:
    keeper = settings.get(SETTING)
    if not isinstance(keeper, TokenKeeper):
        return plain(settings)
    # The first token comes first: a client without one would delay the provider's error until it is destroyed.
    keeper.current()
    client: Any = token({name: value for name, value in settings.items() if name != SETTING})
    client.keeper = keeper
    if keeper.add(client):
        return client  # type: ignore[no-any-return]
    # Slower by a second. The client calls the keeper for each token.
    LOG.info("the client's handle is not known: confluent-kafka calls for tokens itself")
    if isinstance(client, Consumer):
        client.close()
    return plain(settings)


# --- librdkafka's C API


@functools.cache
def _library() -> ctypes.CDLL:
    found = ctypes.CDLL(library_path())
    found.rd_kafka_opaque.restype, found.rd_kafka_opaque.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    setter = found.rd_kafka_oauthbearer_set_token
    setter.restype = ctypes.c_int
    setter.argtypes = (
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p),
        ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    return found


def _handle_of(client: Consumer | AdminClient) -> int | None:
    """Return the address of librdkafka's client in an object of confluent-kafka; None if it is not there.

    It is the first field after the head that all Python objects have (`Handle` in confluent_kafka.h). Each of these
    clients carries the address of its Python object, which proves that the field is what it seems.
    """
    try:
        library = _library()
    except OSError:
        return None
    handle = ctypes.c_void_p.from_address(id(client) + object.__basicsize__).value
    return handle if handle and library.rd_kafka_opaque(handle) == id(client) else None


def _set_token(handle: int, token: Token) -> None:
    text = ctypes.create_string_buffer(_ERRSTR_SIZE)
    flat = [part.encode() for pair in token.extensions for part in pair]
    extensions = (ctypes.c_char_p * len(flat))(*flat)
    code = _library().rd_kafka_oauthbearer_set_token(
        handle, token.value.encode(), int(token.expires_s * 1000), token.principal.encode(), extensions, len(flat),
        text, _ERRSTR_SIZE,
    )  # fmt: skip
    if code:
        # librdkafka refuses characters that no token has; its text may repeat them.
        LOG.warning("librdkafka refuses a token: error=%s", masked(text.value.decode(errors="replace")))
