"""Why brokers cannot be reached: what a client tells of its connections, and what of that will not heal by itself."""

from __future__ import annotations

import re

from confluent_kafka import KafkaError

from spark_groupsource.clock import Clock, SystemClock

AUTHENTICATION = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
# How a broker refuses a client's certificate: the client takes it for a broken connection.
_TLS_ALERT = re.compile(
    r"alert (bad certificate|certificate (required|unknown|expired|revoked)|unknown ca|unsupported certificate"
    r"|access denied|decrypt error)"
)
# What the client tells as a refused identity although nobody refused it: the connection ended in the middle of a
# handshake, or there was no token to show.
_CUT_OFF = re.compile(r"Local: (Broker transport failure|Timed out)|Disconnected: ")
_NO_TOKEN = re.compile(r"Failed to acquire SASL OAUTHBEARER token|there is no token available")
# An identity that was taken before is refused for good when two refusals, without any answer in between, are so far
# apart: long enough for a provider of tokens, or a broker, to start anew. A client tells a refusal that goes on once
# more after 30 s, which is then the worst case, and within the default session timeout of 45 s.
_REFUSED_S = 20.0


class LastTransportError:
    """Remembers why the brokers could not be reached, because a request that times out does not say it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._text = ""
        # Whether the brokers have ever taken the identity.
        self._accepted = False
        # Since the last answer: whether it was refused at all, and in clear words; when first, and when last.
        self._authentication = False
        self._clear = False
        self._first_s = self._last_s = 0.0

    def __call__(self, error: KafkaError) -> None:
        """Take an error from the client (its `error_cb`)."""
        text = error.str() or ""
        if self._refuses(error.code(), text):
            self._last_s = self._clock.monotonic_s()
            if not self._authentication:
                self._first_s = self._last_s
            self._authentication = True
            self._clear = self._clear or not (_CUT_OFF.search(text) or _NO_TOKEN.search(text))
            self._text = text
        elif not self._authentication and (not self._text or error.code() != KafkaError._ALL_BROKERS_DOWN):
            self._text = text

    def _refuses(self, code: int, text: str) -> bool:
        # Who was taken before, and is cut off in a handshake now, meets a broker that goes away.
        known = self._accepted and _CUT_OFF.search(text)
        return not known and (code in AUTHENTICATION or _TLS_ALERT.search(text) is not None)

    def worked(self) -> None:
        """Take that a request was answered: an identity that was refused before is not refused now."""
        self._accepted, self._authentication, self._clear = True, False, False

    @property
    def text(self) -> str:
        """The last reason; empty when there is none."""
        return self._text

    def describe(self, fallback: str) -> str:
        """Return the last reason, or `fallback` when there is none."""
        return self._text or fallback

    @property
    def authentication_failed(self) -> bool:
        """Whether a broker refused the client's identity, and nothing was answered since."""
        return self._authentication

    @property
    def refused_for_good(self) -> bool:
        """Whether there is no use in waiting: a wrong setting, or an identity that has become one.

        The sequence that this protects against: a provider of tokens is away for a second while the token in hand is
        good, or a broker that starts does not know its users yet; the client tells it, and heals by itself.
        """
        if not self._authentication:
            return False
        return (self._clear and not self._accepted) or self._last_s - self._first_s >= _REFUSED_S
