"""Fetch tokens over HTTP for schema registries: client credentials of OAuth 2, and Azure's metadata service.

librdkafka does the same for Kafka clients.
"""

from __future__ import annotations

import base64
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from spark_groupsource.client.https import json_object, new_opener, refusal_object, refusal_text
from spark_groupsource.options.token_login import TokenLogin

_TIMEOUT_S = 10.0
# The life of a token whose endpoint names none (RFC 6749 only recommends it).
_DEFAULT_LIFE_S = 300.0


def client_credentials(login: TokenLogin) -> Callable[[Any], tuple[str, float]]:
    """Return a provider of tokens by RFC 6749, section 4.4. It takes the client's secret.

    The client's id and secret are sent as HTTP basic authentication, as Confluent's clients send them.
    """
    given = dict(login.arguments)
    scope = {"scope": given["scope"]} if given.get("scope") else {}
    body = urlencode({"grant_type": "client_credentials", **scope}).encode()

    def token(secret: Any) -> tuple[str, float]:
        identity = base64.b64encode(f"{given['client_id']}:{secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {identity}", "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip
        return _fetched(given["url"], headers, body, given.get("ca_location", ""))

    return token


def azure_imds(login: TokenLogin) -> Callable[[Any], tuple[str, float]]:
    """Return a provider of tokens of the machine's identity. Proxies are not used: the service is the machine's own."""
    url = dict(login.arguments)["url"]

    def token(_: Any) -> tuple[str, float]:
        return _fetched(url, {"Metadata": "true", "Accept": "application/json"}, None, "", use_proxies=False)

    return token


def _fetched(
    url: str, headers: dict[str, str], body: bytes | None, ca_location: str, *, use_proxies: bool = True
) -> tuple[str, float]:
    """Return a token and its expiry. Raises OSError and ValueError, whose texts have no part of the token."""
    context = ssl.create_default_context()
    if ca_location:
        # In addition: the registry's authority is often private, and the endpoint's is not.
        context.load_verify_locations(cafile=ca_location)
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 - the opener knows http and https
    try:
        answer = json_object(new_opener(context, use_proxies=use_proxies).open(request, timeout=_TIMEOUT_S))
    except urllib.error.HTTPError as error:
        text = refusal_text(error, refusal_object(error), "error_description", "error", "message")
        raise OSError(f"{url.partition('?')[0]} answers {text}") from None
    except OSError as error:
        raise OSError(f"{url.partition('?')[0]} cannot be reached: {error}") from None
    value = answer.get("access_token")
    if not isinstance(value, str):
        raise ValueError(f"the answer of {url.partition('?')[0]} has no 'access_token'")  # noqa: TRY004
    # Azure returns numbers as text.
    life_s = float(answer.get("expires_in") or _DEFAULT_LIFE_S)
    return value, time.time() + life_s
