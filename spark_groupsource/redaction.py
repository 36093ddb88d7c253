"""Keeps secrets out of texts that come from elsewhere: the Kafka client's log and its errors.

Whoever makes a client says here what must not be shown; that holds for the rest of the process. librdkafka itself
shows few secrets, but in one of its errors stands a part of `sasl.oauthbearer.config`, and its debug log shows what it
does not know to be a secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

MASK = "*********(redacted)"

# What is shorter would blacken words that happen to hold it, and protects nothing.
_SHORTEST = 4
# Parts of a secret: a word of a longer configuration, a line of a key.
_SHORTEST_PART = 8

# Only ever added to, one key at a time, so that any thread may.
_known: dict[str, None] = {}


def remember(secrets: Iterable[str]) -> None:
    """Mask these from now on, and the parts of those with several words or lines."""
    for secret in secrets:
        lines = [line for line in secret.splitlines() if not line.startswith("-----")]
        words = (word for line in lines for word in re.split(r"[\s,]+", line))
        parts = (part for part in map(_value, words) if len(part) >= _SHORTEST_PART)
        for text in (secret, *parts):
            if len(text) >= _SHORTEST:
                _known[text] = None


def _value(word: str) -> str:
    """Return the value of name=value; the word itself when it is none."""
    value = word.partition("=")[2]
    return value if value.strip("=") else word


def masked(text: str) -> str:
    """Return the text without any known secret."""
    found = [secret for secret in list(_known) if secret in text]
    # The longest first: a secret may be a part of another one.
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


class MaskSecrets(logging.Filter):
    """Takes known secrets out of log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the line, masked."""
        text = record.getMessage()
        shown = masked(text)
        if shown != text:
            record.msg, record.args = shown, ()
        return True
