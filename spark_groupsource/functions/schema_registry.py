"""Read schemas from Confluent schema registries: GET requests, with the standard library.

Confluent's own client would bring its HTTP packages into every executor's Python for them. Schemas never change
under an id, so that each is requested once per process.

The credentials are in no text of this module: `repr` masks them, errors name the URLs without user and password, and
redirects are refused, which would send them to another host.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

from spark_groupsource import errors
from spark_groupsource.client.https import TlsFiles, json_object, new_opener, refusal_object, refusal_text, tls_context
from spark_groupsource.functions.registry_options import RegistrySettings, RegistryUrl
from spark_groupsource.redaction import masked_foreign, remember

if TYPE_CHECKING:
    from spark_groupsource.client.tokens import TokenKeeper

_TIMEOUT_S = 10.0
_ATTEMPTS = 4
_PAUSE_S = 0.5  # before the second attempt, then twice as long each time
# Seconds after which TLS files are read again. Reading the system's authorities takes 20 ms and more.
_FILES_S = 60.0
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_GUIDS = "/schemas/guids/"
_TRY_AGAIN = (408, 429, 500, 502, 503, 504)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

# Of each list of addresses, the one that answered last in this process: one that hangs costs its timeout once only.
_answered_last: dict[frozenset[str], str] = {}


class SchemaNotFound(LookupError):
    """The registry has no such schema."""


class _NoAnswer(Exception):
    """A registry gave no answer; another one, or the same one later, may give one."""


class _Refused(Exception):
    """A registry answered with a status that no other attempt changes."""

    def __init__(self, reason: str, status: int) -> None:
        super().__init__(reason)
        self.status = status


class Registry:
    """Requests schemas from the first registry of a list that answers. A Python worker runs one task at a time.

    The addresses are tried in their order, beginning with the one that answered last. A registry does not answer if the
    connection fails, the answer is no schema, or its status is 408, 429, 500, 502, 503 or 504. Then the next one is
    tried, and after a pause all of them again. So it is for a 404 without an error code of a registry, which a proxy
    sends. Any other status is an answer, as for Confluent's clients: 404 means that no registry of the list has the
    schema, 401 and 403 that the login is wrong. After 401, a provider of tokens is called once more.

    `side` names the process, for errors. TLS files are read again when they were read a minute ago, so that a renewed
    certificate is used. Raises `OptionError` if they cannot be used.
    """

    def __init__(self, settings: RegistrySettings, side: str = "the driver") -> None:
        self._settings = settings
        self._side = side
        self._urls = frozenset(url.base for url in settings.urls)
        remember(_secrets(settings))
        self._open()

    def by_id(self, schema_id: int | UUID) -> dict[str, Any]:
        """Return `schema`, and `schemaType` and `references` if there are any. Raises `SchemaNotFound`.

        Raises `KafkaUnavailableError` if no registry answers or the login is refused, and `AccessError` if the provider
        of tokens fails; so does `by_version`.
        """
        if isinstance(schema_id, UUID):
            return self._get(f"{_GUIDS}{schema_id}")
        context = self._settings.context
        return self._get(f"/schemas/ids/{schema_id}" + (f"?subject={quote(context, safe='')}" if context else ""))

    def by_version(self, subject: str, version: int | str = "latest") -> dict[str, Any]:
        """Return a version of a subject, as `by_id` does, with its `id`. Raises `SchemaNotFound`.

        A subject without a context is one of the settings' context, as references of its schemas have it.
        """
        subject = subject if subject.startswith(":") else self._settings.context + subject
        return self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")

    def settings_for_tasks(self) -> RegistrySettings:
        """Return the settings with the registry first that answered last: no task waits for one that hangs."""
        return dataclasses.replace(self._settings, urls=tuple(self._in_turn()))

    def _in_turn(self) -> Iterator[RegistryUrl]:
        last = _answered_last.get(self._urls)
        yield from sorted(self._settings.urls, key=lambda url: url.base != last)

    def _open(self) -> None:
        """Read the TLS files. Without https none are needed, not even the system's."""
        settings = self._settings
        has_tls = settings.tls != TlsFiles() or any(url.base.startswith("https:") for url in settings.urls)
        self._opener = new_opener(tls_context(settings.tls) if has_tls else None)
        self._opened_s = time.monotonic()

    def _get(self, path: str) -> dict[str, Any]:
        if time.monotonic() - self._opened_s >= _FILES_S:
            self._open()
        reasons: dict[str, str] = {}
        for attempt in range(_ATTEMPTS):
            for url in self._in_turn():
                try:
                    found = self._answer(url, path)
                except _NoAnswer as error:
                    reasons[url.base] = str(error)
                    continue
                except _Refused as error:
                    raise self._failed(path, {url.base: str(error)}) from None
                _answered_last[self._urls] = url.base
                return found
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_S * 2**attempt)
        raise self._failed(path, reasons)

    def _answer(self, url: RegistryUrl, path: str) -> dict[str, Any]:
        """Return one registry's answer. Raises `_NoAnswer`, `_Refused` and `SchemaNotFound`."""
        keeper = self._keeper()
        if keeper is None:
            return self._ask(url, path, self._settings.bearer_token)
        token = keeper.current()
        try:
            return self._ask(url, path, token.value)
        except _Refused as error:
            if error.status != _UNAUTHORIZED:
                raise
            # A token may be revoked before its expiry.
            return self._ask(url, path, keeper.renewed(token).value)

    def _ask(self, url: RegistryUrl, path: str, bearer_token: str) -> dict[str, Any]:
        request = self._request(url, path, bearer_token.strip())
        try:
            found = json_object(self._opener.open(request, timeout=_TIMEOUT_S))
        except urllib.error.HTTPError as error:
            answer = refusal_object(error)
            reason = refusal_text(error, answer, "message")
            if error.code in _TRY_AGAIN:
                raise _NoAnswer(reason) from None
            if error.code == _NOT_FOUND:
                if not _is_of_registry(answer, path):
                    raise _NoAnswer(f"{reason} (no answer of a registry: check the URL's path)") from None
                _answered_last[self._urls] = url.base
                raise SchemaNotFound(f"the registry has no {path} ({reason})") from None
            raise _Refused(reason, error.code) from None
        except (OSError, HTTPException, ValueError) as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from None
        if not isinstance(found.get("schema"), str):
            raise _NoAnswer("the answer has no 'schema'")
        return found

    def _keeper(self) -> TokenKeeper | None:
        if self._settings.token_login is None:
            return None
        # Without a provider nothing needs the Kafka client that the keepers know.
        from spark_groupsource.client.tokens import keeper_of  # noqa: PLC0415

        return keeper_of(self._settings.token_login, self._settings.client_secret or None, None, self._side)

    def _request(self, url: RegistryUrl, path: str, bearer_token: str) -> urllib.request.Request:
        headers = {"Accept": _ACCEPT, **dict(self._settings.headers)}
        # The opener has no handler for other schemes than http and https.
        request = urllib.request.Request(url.base + path, headers=headers)  # noqa: S310
        if not (bearer_token.isascii() and bearer_token.isprintable()):
            # The error of http.client would have the token.
            raise _Refused("the provider's token has characters that a header cannot have", 0)
        if bearer_token:
            request.add_unredirected_header("Authorization", f"Bearer {bearer_token}")
        elif url.user_info:
            basic = base64.b64encode(url.user_info.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {basic}")
        return request

    def _failed(self, path: str, reasons: dict[str, str]) -> errors.KafkaUnavailableError:
        one = len(self._settings.urls) == 1
        reason = "; ".join(why if one else f"{base}: {why}" for base, why in reasons.items())
        return errors.KafkaUnavailableError(
            errors.SCHEMA_REGISTRY_FAILED, url=self._settings.shown, path=path, reason=masked_foreign(reason)
        )


def context_of(subject: str) -> str:
    """Return the context of a qualified subject, `:.context:subject`, with its colons; empty without one.

    Guards against:
    1. A registry has contexts, and each counts the ids of its schemas anew.
    2. Records have ids of the context of `subject`.
    3. An id without a context means the default one: the records would be read with a schema that is not theirs.
    """
    found = re.match(r":\.[^:]+:", subject)
    return found[0] if found else ""


def _is_of_registry(answer: dict[str, Any], path: str) -> bool:
    """Return whether the answer of a 404 is that of a registry: 40401 (subject), 40402 (version), 40403 (schema).

    Registries that do not know GUIDs answer JSON without such a code. A record may have any 16 bytes as its GUID.
    """
    code = answer.get("error_code")
    has_code = isinstance(code, int) and code // 100 == _NOT_FOUND
    return has_code or (bool(answer) and path.startswith(_GUIDS))


def _secrets(settings: RegistrySettings) -> list[str]:
    """Return the texts to mask in errors and logs."""
    user_infos = [url.user_info for url in settings.urls if url.user_info]
    found = [text.partition(":")[2] for text in user_infos]
    found += [base64.b64encode(text.encode()).decode() for text in user_infos]
    found += [settings.bearer_token, settings.client_secret, settings.tls.key_password]
    return [text for text in found if text]
