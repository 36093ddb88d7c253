"""Decide from the arguments of `from_confluent_avro` where the schema registries are, and how to log in. No I/O.

Options have the names of Confluent's Python client (`SchemaRegistryClient`), and `tokenProvider` is the source's own.
A value that may hold a secret is in no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

from spark_groupsource import errors
from spark_groupsource.client.https import TlsFiles
from spark_groupsource.errors import OptionError
from spark_groupsource.options.permissions import Permissions
from spark_groupsource.options.secrets import permitted
from spark_groupsource.options.token_login import AZURE_IMDS, GCP, GCP_ACCESS, MSK, OIDC, TokenLogin, provider_name
from spark_groupsource.options.token_login import OPTION as _PROVIDER

_URL = "schema_registry_url"
_USER_INFO, _TOKEN, _SOURCE = "basic.auth.user.info", "bearer.auth.token", "bearer.auth.credentials.source"
_CLIENT_ID, _CLIENT_SECRET, _SCOPE = "bearer.auth.client.id", "bearer.auth.client.secret", "bearer.auth.scope"
_ENDPOINT, _QUERY = "bearer.auth.issuer.endpoint.url", "bearer.auth.issuer.endpoint.query"
_CLUSTER, _POOL = "bearer.auth.logical.cluster", "bearer.auth.identity.pool.id"
_CA, _CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
_KEY, _KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
REGISTRY_OPTIONS = (
    _USER_INFO, _TOKEN, _SOURCE, _CLIENT_ID, _CLIENT_SECRET, _SCOPE, _ENDPOINT, _QUERY, _CLUSTER, _POOL, _PROVIDER,
    _CA, _CERTIFICATE, _KEY, _KEY_PASSWORD,
)  # fmt: skip

_STATIC, _OAUTH, _AZURE, _CUSTOM = "STATIC_TOKEN", "OAUTHBEARER", "OAUTHBEARER_AZURE_IMDS", "CUSTOM"
# The options of each source of bearer tokens: those that it needs, and those that it may have.
_OF_SOURCE = {
    _STATIC: ((_TOKEN,), ()),
    _OAUTH: ((_CLIENT_ID, _CLIENT_SECRET, _ENDPOINT), (_SCOPE,)),
    _AZURE: ((), (_ENDPOINT, _QUERY)),
}
_HEADERS = {_CLUSTER: "target-sr-cluster", _POOL: "Confluent-Identity-Pool-Id"}
_AZURE_ENDPOINT = "http://169.254.169.254/metadata/identity/oauth2/token"
# Google's own registries; no other program can receive what is sent there over verified TLS.
_GOOGLE = r"managedkafka(\.[a-z0-9-]+\.rep)?\.googleapis\.com"
_PLACE = "http://host:port or https://host:port, also with a path, several separated by commas"


@dataclass(frozen=True, slots=True)
class RegistryUrl:
    """One registry: its address without user and password and without a slash at the end, and the user info."""

    base: str
    user_info: str = field(default="", repr=False)  # user:password


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registries are and how to log in. Pickled into each task; `repr` has no secret."""

    urls: tuple[RegistryUrl, ...]
    bearer_token: str = field(default="", repr=False)
    token_login: TokenLogin | None = None
    client_secret: str = field(default="", repr=False)  # what the provider of tokens needs, too
    headers: tuple[tuple[str, str], ...] = ()
    context: str = ""  # with its colons; empty for the default one
    tls: TlsFiles = field(default_factory=TlsFiles)

    @property
    def shown(self) -> str:
        """The addresses, without user and password."""
        return ", ".join(url.base for url in self.urls)


def registry_settings(urls: str, options: Mapping[str, str], permissions: Permissions) -> RegistrySettings:
    """Return the settings of the registries. `options` has names of `REGISTRY_OPTIONS` only.

    Raises `OptionError` for values that cannot be or do not fit each other, and for a provider of tokens that this
    process does not permit.
    """
    given = {name: _text(name, value) for name, value in options.items()}
    given = {name: value for name, value in given.items() if value}
    found = _registry_urls(urls)
    _check_one_login(given, found)
    if _USER_INFO in given:
        if ":" not in given[_USER_INFO]:
            raise _invalid(_USER_INFO, "...", "user:password")
        found = tuple(RegistryUrl(url.base, given[_USER_INFO]) for url in found)
    return RegistrySettings(
        found,
        bearer_token=given.get(_TOKEN, ""),
        token_login=_token_login(given, found, permissions),
        client_secret=given.get(_CLIENT_SECRET, ""),
        headers=tuple((header, given[name]) for name, header in _HEADERS.items() if name in given),
        tls=_tls_files(given),
    )


def _text(name: str, value: object) -> str:
    """Return an option's value as it is sent. A file that it was read from often ends with a new line."""
    if not isinstance(value, str):
        raise _invalid(name, type(value).__name__, "a text")
    text = value.strip("\r\n")
    if not text.isprintable() or (name in (_TOKEN, *_HEADERS) and not text.isascii()):
        raise _invalid(name, "...", "a text without control characters, ASCII in tokens and headers")
    return text


def _registry_urls(urls: str) -> tuple[RegistryUrl, ...]:
    """Split the list, as Confluent's clients do; skip empty items and repetitions."""
    if not isinstance(urls, str):
        raise _invalid(_URL, type(urls).__name__, _PLACE)
    found = tuple(dict.fromkeys(_registry_url(item.strip()) for item in urls.split(",") if item.strip()))
    if not found:
        raise _invalid(_URL, "", _PLACE)
    return found


def _registry_url(text: str) -> RegistryUrl:
    parts = _split(text)
    # A password with one of these characters would be cut, and a part of it shown as the path.
    if parts is None or parts.query or parts.fragment or "@" in parts.path:
        # It may hold a password.
        scheme = text.partition("://")[0]
        shown = f"{scheme}:..." if "://" in text and re.fullmatch(r"[a-z]+", scheme) else "..."
        allowed = f"{_PLACE}; characters like , / ? # @ in user and password percent-encoded"
        raise _invalid(_URL, shown, allowed)
    user, at, host = parts.netloc.rpartition("@")
    user, _, password = user.partition(":")
    user_info = f"{unquote(user)}:{unquote(password)}" if at else ""
    path = quote(parts.path.rstrip("/"), safe="/%:!$&'()*+;=~")
    return RegistryUrl(f"{parts.scheme}://{host}{path}", "" if user_info == ":" else user_info)


def _split(text: str) -> SplitResult | None:
    """Return the parts of an http or https URL; None if it is no such URL."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        # Its port is no number, or its IPv6 address is not closed.
        return None
    return parts if is_usable and not re.search(r"[\s\x00-\x1f\x7f]", text) else None


def _check_one_login(given: Mapping[str, str], urls: tuple[RegistryUrl, ...]) -> None:
    """Raise `OptionError` if several options would set the login: one of them is a mistake."""
    source = given.get(_SOURCE, "").upper()
    logins = [name for name in (_USER_INFO, _TOKEN, _PROVIDER) if name in given]
    if source and not (source == _STATIC and _TOKEN in given):
        logins.append(_SOURCE)
    names = [f"'{name}'" for name in logins]
    if any(url.user_info for url in urls):
        names.append(f"'{_URL}' (with a user)")
    if len(names) > 1:
        raise OptionError(errors.OPTION_CONFLICT, options=" and ".join(names), reason="each is a login of its own.")


def _token_login(
    given: Mapping[str, str], urls: tuple[RegistryUrl, ...], permissions: Permissions
) -> TokenLogin | None:
    """Return the provider of tokens. None without one: another login, or the one token of the options."""
    source = given.get(_SOURCE, "").upper()
    if source == _CUSTOM:
        raise _invalid(_SOURCE, given[_SOURCE], f"{', '.join(_OF_SOURCE)}; for a function of yours set {_PROVIDER}")
    if source and source not in _OF_SOURCE:
        raise _invalid(_SOURCE, given[_SOURCE], ", ".join(_OF_SOURCE))
    needed, more = _OF_SOURCE.get(source, ((), ()))
    for name in (_CLIENT_ID, _CLIENT_SECRET, _SCOPE, _ENDPOINT, _QUERY):
        if name in given and name not in (*needed, *more):
            names = " or ".join(each for each, (first, second) in _OF_SOURCE.items() if name in (*first, *second))
            raise _invalid(_SOURCE, given.get(_SOURCE, ""), f"{names}, because '{name}' is set")
    for name in needed:
        if name not in given:
            raise _invalid(name, "", f"a value, because '{_SOURCE}' is {source}")
    if source == _OAUTH:
        return _of_endpoint(given, permissions)
    if source == _AZURE:
        return _of_azure(given, permissions)
    return _of_provider(given[_PROVIDER], given, urls, permissions) if _PROVIDER in given else None


def _of_endpoint(given: Mapping[str, str], permissions: Permissions) -> TokenLogin:
    url = _checked_endpoint(given[_ENDPOINT], permissions)
    arguments = {"url": url, "client_id": given[_CLIENT_ID], "scope": given.get(_SCOPE, "")}
    arguments["ca_location"] = given.get(_CA, "")
    return TokenLogin(_SOURCE, given[_SOURCE], OIDC, arguments=tuple(arguments.items()))


def _of_azure(given: Mapping[str, str], permissions: Permissions) -> TokenLogin:
    if _QUERY not in given and _ENDPOINT not in given:
        raise _invalid(_QUERY, "", f"a query like api-version=2018-02-01&resource=..., because '{_SOURCE}' is {_AZURE}")
    url = _checked_endpoint(given[_ENDPOINT], permissions) if _ENDPOINT in given else _AZURE_ENDPOINT
    if _QUERY in given:
        url = f"{url.partition('?')[0]}?{given[_QUERY]}"
    what = "it sends the machine's own cloud identity to the registries"
    with permitted(_SOURCE, given[_SOURCE]):
        permissions.check_token_provider(AZURE_IMDS, what)
    return TokenLogin(_SOURCE, given[_SOURCE], AZURE_IMDS, arguments=(("url", url),))


def _checked_endpoint(url: str, permissions: Permissions) -> str:
    parts = _split(url)
    if parts is None or "@" in parts.netloc or parts.fragment:
        raise _invalid(_ENDPOINT, "...", "an http or https URL without a user")
    with permitted(_ENDPOINT, url):
        permissions.check_token_endpoint(url)
    return url


def _of_provider(
    text: str, given: Mapping[str, str], urls: tuple[RegistryUrl, ...], permissions: Permissions
) -> TokenLogin:
    try:
        name = provider_name(text)
    except ValueError:
        name = MSK
    if name == MSK:
        # MSK's token is for its brokers.
        raise _invalid(_PROVIDER, text, f"{GCP}, or package.module:function")
    what = f"it makes clients run {name}"
    if name == GCP:
        what = (
            "it sends the machine's own cloud identity to registries that are not Google's, or whose certificates are"
            " checked by a file of yours"
        )
    if name != GCP or _CA in given or not all(_is_google(url) for url in urls):
        with permitted(_PROVIDER, text):
            permissions.check_token_provider(name, what)
    return TokenLogin(_PROVIDER, text, GCP_ACCESS if name == GCP else name)


def _is_google(url: RegistryUrl) -> bool:
    parts = urlsplit(url.base)
    return parts.scheme == "https" and re.fullmatch(_GOOGLE, parts.hostname or "") is not None


def _tls_files(given: Mapping[str, str]) -> TlsFiles:
    for name in (_KEY, _KEY_PASSWORD):
        if name in given and _CERTIFICATE not in given:
            raise _invalid(_CERTIFICATE, "", f"a file, because '{name}' is set")
    return TlsFiles(given.get(_CA, ""), given.get(_CERTIFICATE, ""), given.get(_KEY, ""), given.get(_KEY_PASSWORD, ""))


def _invalid(option: str, value: str, allowed: str) -> OptionError:
    return OptionError(errors.OPTION_INVALID, option=option, value=value, allowed=allowed)
