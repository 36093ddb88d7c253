"""Read schemas from a Confluent schema registry: two kinds of GET requests, with the standard library.

Confluent's own client would bring its HTTP packages into every executor's Python for them. Schemas never change
under an id, so that each is requested once per process.

The credentials are in no text of this module: `repr` masks them, errors name the URL without user and password, and
redirects are refused, which would send them to another host.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit

from spark_groupsource import errors
from spark_groupsource.redaction import remember

_TIMEOUT_S = 10.0
_ATTEMPTS = 4
_PAUSE_S = 0.5  # before the second attempt, then twice as long each time
_LONGEST_ANSWER = 16 * 1024 * 1024
_NOT_FOUND = 404
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


class SchemaNotFound(LookupError):
    """The registry has no such schema."""


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registry is and how to log in. Pickled into each task; `repr` has no secret."""

    url: str = field(repr=False)
    user_info: str = field(default="", repr=False)  # user:password
    bearer_token: str = field(default="", repr=False)
    ca_location: str = ""

    @property
    def shown(self) -> str:
        """The URL without user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def authorization(self) -> str | None:
        """Return the header's value."""
        if self.bearer_token:
            return f"Bearer {self.bearer_token}"
        user_info = self.user_info or unquote(urlsplit(self.url).netloc.rpartition("@")[0])
        return f"Basic {base64.b64encode(user_info.encode()).decode()}" if user_info else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Let the redirect be an error."""


class Registry:
    """Requests schemas. Not thread-safe; a Python worker runs one task at a time.

    Raises `OptionError` if the file `ca_location` cannot be used.
    """

    def __init__(self, settings: RegistrySettings, pause_s: float = _PAUSE_S) -> None:
        self._settings = settings
        self._pause_s = pause_s
        remember(secret for secret in (settings.user_info.partition(":")[2], settings.bearer_token) if secret)
        context = _tls_context(settings.ca_location)
        # No proxies but those of the environment, and no other scheme than http and https.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(context=context),
            _NoRedirect(), urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor(),
            urllib.request.UnknownHandler(),
        ):  # fmt: skip
            self._opener.add_handler(handler)

    def by_id(self, number: int) -> dict[str, Any]:
        """Return `schema`, and `schemaType` and `references` if there are any. Raises `SchemaNotFound`."""
        return self._get(f"/schemas/ids/{number}")

    def by_version(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """Return a version of a subject, as `by_id` does, with its `id`. Raises `SchemaNotFound`."""
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")

    def _get(self, path: str) -> dict[str, Any]:
        parts = urlsplit(self._settings.url)
        place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        # The opener has no handler for other schemes than http and https.
        request = urllib.request.Request(place + path, headers={"Accept": _ACCEPT})  # noqa: S310
        authorization = self._settings.authorization()
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        for attempt in range(_ATTEMPTS):
            try:
                return _answer(self._opener.open(request, timeout=_TIMEOUT_S))
            except urllib.error.HTTPError as error:
                reason = _reason(error)
                if error.code == _NOT_FOUND:
                    raise SchemaNotFound(f"the registry has no {path} ({reason})") from None
                if error.code not in _TRY_AGAIN:
                    break
            except (OSError, HTTPException, ValueError) as error:
                reason = f"{type(error).__name__}: {error}"
            if attempt + 1 < _ATTEMPTS:
                time.sleep(self._pause_s * 2**attempt)
        raise errors.KafkaUnavailableError(
            errors.SCHEMA_REGISTRY_FAILED, url=self._settings.shown, path=path, reason=reason
        ) from None


def _tls_context(ca_location: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_location or None)
    except OSError as error:
        # The error of a missing file does not name it. A file that is not PEM is an `SSLError`, also an `OSError`.
        allowed = f"a PEM file of certificates, on the driver and on executors; here: {error.strerror or error}"
        raise errors.OptionError(
            errors.OPTION_INVALID, option="ssl.ca.location", value=ca_location, allowed=allowed
        ) from None


def _answer(response: IO[bytes] | None) -> dict[str, Any]:
    if response is None:
        raise ValueError("no answer")
    with response:
        found = json.loads(response.read(_LONGEST_ANSWER))
    if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
        raise ValueError("the answer has no 'schema'")  # noqa: TRY004
    return found


def _reason(error: urllib.error.HTTPError) -> str:
    """Return the status and the registry's own message."""
    with error:
        try:
            said = json.loads(error.read(_LONGEST_ANSWER)).get("message", "")
        except (OSError, ValueError, AttributeError):
            said = ""
    return f"HTTP {error.code}: {str(said or error.reason)[:300]}"
