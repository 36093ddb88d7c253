"""Token providers of the tests, by the contract of confluent-kafka's `oauth_cb`.

The setting sasl.oauthbearer.config says where to fetch a token, and which file gets the time of each call:
`url=<token endpoint> calls=<path> secret=<client secret>`.
"""

from __future__ import annotations

import time

from tests.realkafka.oidc import fetch


def _noted(config: str) -> dict[str, str]:
    given = dict(part.split("=", 1) for part in config.split())
    with open(given["calls"], "a", encoding="utf-8") as file:
        file.write(f"{time.time()}\n")
    return given


def fetched(config: str) -> tuple[str, float]:
    """Fetch a token of the token server."""
    given = _noted(config)
    return fetch(given["url"], given["secret"])


def raising(config: str) -> tuple[str, float]:
    """Fail with a text that has a secret in it."""
    _noted(config)
    raise PermissionError(f"invalid_client: no grant for client_secret={config}")


def hanging(config: str) -> tuple[str, float]:
    """Never return."""
    _noted(config)
    time.sleep(3600)
    raise AssertionError


def wrong(config: str) -> tuple[str, str]:
    """Return an expiry that is no number."""
    _noted(config)
    return "a-token", "soon"
