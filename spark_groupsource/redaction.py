"""Mask secrets in texts of the Kafka client: log lines and errors.

Code that creates a client registers the client's secrets with `remember`; they stay registered until the process ends.
librdkafka masks most secrets itself. One of its errors contains a part of `sasl.oauthbearer.config`, and its debug log
contains values that it does not know to be secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

MASK = "*********(redacted)"

# Masking shorter texts would damage ordinary words and protect nothing.
_SHORTEST = 4
# Parts of a secret: a word of a longer configuration, a line of a key.
_SHORTEST_PART = 8

# Each change is one operation on the dict, so any thread may add and remove.
_known: dict[str, None] = {}


def remember(secrets: Iterable[str]) -> None:
    """Register secrets to be masked from now on, and the parts of secrets with several words or lines."""
    for secret in secrets:
        lines = [line for line in secret.splitlines() if not line.startswith("-----")]
        words = (word for line in lines for word in re.split(r"[\s,]+", line))
        parts = (part for part in map(_value, words) if len(part) >= _SHORTEST_PART)
        for text in (secret, *parts):
            if len(text) >= _SHORTEST:
                _known[text] = None


def forget(secret: str) -> None:
    """Stop masking a secret that is no longer of use, such as an expired token, so that the list does not grow."""
    _known.pop(secret, None)


# Names before a value, as in URLs, headers and JSON, and a JSON Web Token. If somebody's password is such a word, the
# name itself is masked.
_NAMED = (
    r"""((?:secret|password|passwd|jaas\.config|token|assertion|signature|credential|api[-_]?key|authorization|\(redacted\))"""
    r"""["']?\s*[=:]\s*["']?)"""
    r"""(?:(?:bearer|basic)\s+)?[^\s"'&,;)}]{4,}"""
)
_JWT = r"\beyJ[\w-]{5,}(\.[\w-]+){1,2}"
_USER = r"(://)[^/\s@]+@"


def masked_foreign(text: str) -> str:
    """Return the text of another program's error with everything replaced that may be a secret, known or not."""
    text = re.sub(_NAMED, rf"\1{MASK}", masked(text), flags=re.IGNORECASE)
    return without_user(re.sub(_JWT, MASK, text))


def without_user(text: str) -> str:
    """Return the text with user and password masked in its URLs."""
    return re.sub(_USER, rf"\1{MASK}@", text)


def _value(word: str) -> str:
    """Return the value of `name=value`; return the word itself if it does not have this form."""
    value = word.partition("=")[2]
    return value if value.strip("=") else word


def masked(text: str) -> str:
    """Return the text with every known secret replaced by `MASK`."""
    found = [secret for secret in list(_known) if secret in text]
    # Longest first: a secret may be a part of another one.
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


class MaskSecrets(logging.Filter):
    """Replace known secrets in log lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the line and keep it."""
        text = record.getMessage()
        shown = masked(text)
        if shown != text:
            record.msg, record.args = shown, ()
        return True
