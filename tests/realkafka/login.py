"""A Kafka whose clients log in, without keys: what `scripts/kafka start --sasl` starts. With TLS: security.py."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

SCRAM = "SCRAM-SHA-512"
# The first release whose storage tool takes users (KIP-900).
OLDEST_WITH_USERS = (3, 5)


class Secured(Protocol):
    """What RealKafka asks about the security of its brokers."""

    @property
    def listeners(self) -> Sequence[str]:
        """The security protocols of the listeners, which are their names, too."""

    def login(self) -> dict[str, str]:
        """Return the settings of the clients that the cluster is made for; empty without such clients."""

    def prepare(self, run_dir: Path) -> dict[str, object]:
        """Write files into the run directory; return the settings of every broker."""

    def java_options(self) -> list[str]:
        """Return options of the brokers' JVMs."""

    def format_arguments(self) -> list[str]:
        """Return arguments of the storage tool."""


class Login:
    """One user with a new password, who may do everything. The plain listener stays, for the brokers and for topics.

    What no rule allows is denied to any other user that you add.
    """

    def __init__(self, user: str) -> None:
        self._user, self._password = user, secrets.token_hex(8)

    @property
    def listeners(self) -> Sequence[str]:
        """See Secured."""
        return ("SASL_PLAINTEXT",)

    def login(self) -> dict[str, str]:
        """See Secured."""
        return scram_settings(self._user, self._password)

    def prepare(self, run_dir: Path) -> dict[str, object]:
        """See Secured."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "sasl.enabled.mechanisms": SCRAM,
            f"listener.name.sasl_plaintext.{SCRAM.lower()}.sasl.jaas.config": module,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{self._user}",
        }

    def java_options(self) -> list[str]:
        """See Secured."""
        return []

    def format_arguments(self) -> list[str]:
        """See Secured."""
        return [f"--add-scram={SCRAM}=[name={self._user},password={self._password}]"]


def scram_settings(username: str, password: str) -> dict[str, str]:
    """Return a client's settings for the SASL_PLAINTEXT listener."""
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": SCRAM,
        "sasl.username": username,
        "sasl.password": password,
    }
