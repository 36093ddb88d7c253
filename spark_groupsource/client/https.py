"""Open HTTP and HTTPS addresses with the standard library: TLS files of the options, proxies of the environment.

Redirects are refused: they would send a secret to another host. For schema registries and token endpoints; Kafka
clients have their own TLS.

Why not another client: it would be one more package on each executor, and each Python worker imports it before its
first record. urllib.request takes 16 ms of processor time, urllib3 86 ms and requests 134 ms (Python 3.11).
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import IO, Any

from spark_groupsource import errors
from spark_groupsource.errors import OptionError

_LONGEST_ANSWER = 16 * 1024 * 1024
_CA, _CERTIFICATE, _KEY, _PASSWORD = (
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
)  # fmt: skip
_WHERE = "on the driver and on executors"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a connection, empty for none. The key may be in the certificate's file. `repr` has no password."""

    ca_location: str = ""
    certificate_location: str = ""
    key_location: str = ""
    key_password: str = field(default="", repr=False)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Let the redirect be an error."""


def new_opener(context: ssl.SSLContext | None, *, use_proxies: bool = True) -> urllib.request.OpenerDirector:
    """Return an opener of http and, with a context, https addresses, and of no others."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(None if use_proxies else {}), urllib.request.HTTPHandler(), _NoRedirect(),
        urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor(), urllib.request.UnknownHandler(),
    ):  # fmt: skip
        opener.add_handler(handler)
    if context is not None:
        opener.add_handler(urllib.request.HTTPSHandler(context=context))
    return opener


def json_object(response: IO[bytes] | None) -> dict[str, Any]:
    """Read and close an answer. Raises ValueError if it is no JSON object, OSError if the connection breaks."""
    if response is None:
        raise ValueError("no answer")
    with response:
        text = response.read(_LONGEST_ANSWER)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"the answer is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("the answer is no JSON object")  # noqa: TRY004
    return found


def refusal_object(error: urllib.error.HTTPError) -> dict[str, Any]:
    """Read and close the answer of a refused request: {} if it is no JSON object."""
    with error:
        try:
            found = json.loads(error.read(_LONGEST_ANSWER))
        except (OSError, ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}


def refusal_text(error: urllib.error.HTTPError, answer: dict[str, Any], *fields: str) -> str:
    """Return the status of a refused request, and the server's own message: the first of these fields in its answer."""
    message = next(filter(None, (answer.get(name) for name in fields)), "")
    return f"HTTP {error.code}: {str(message or error.reason)[:300]}"


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context that checks the server's name and certificate, by the system's authorities without a file.

    Raises `OptionError`, which names the option and the file, for files that cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=files.ca_location or None)
    except OSError as error:
        # The error of a missing file does not name it. A file that is not PEM is an `SSLError`, also an `OSError`.
        raise _unusable(_CA, files.ca_location, "a PEM file of certificates", error) from None
    if files.certificate_location:
        _load_certificate(context, files)
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    key = files.key_location or files.certificate_location
    key_option = _KEY if files.key_location else _CERTIFICATE
    requests = []

    def password() -> str:
        # Without a function OpenSSL would wait for a password on the terminal.
        requests.append(1)
        return files.key_password

    _check_readable(_CERTIFICATE, files.certificate_location)
    _check_readable(key_option, key)
    try:
        context.load_cert_chain(files.certificate_location, files.key_location or None, password)
    except (OSError, ValueError) as error:
        # OpenSSL names neither the file nor the password.
        if not _has_certificates(files.certificate_location):
            raise _unusable(_CERTIFICATE, files.certificate_location, "a PEM file of certificates", error) from None
        if requests:
            does_not = "does not open it" if files.key_password else "is needed to open it"
            allowed = f"the password of the file '{key}'; here: the password {does_not}"
            raise OptionError(
                errors.OPTION_INVALID, option=_PASSWORD, value="..." if files.key_password else "", allowed=allowed
            ) from None
        allowed = f"a PEM file with the private key of the certificate in '{files.certificate_location}'"
        raise _unusable(key_option, key, allowed, error) from None


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except (OSError, ValueError) as error:
        raise _unusable(option, path, "a PEM file", error) from None


def _has_certificates(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError:
        return False
    return True


def _unusable(option: str, path: str, what: str, error: Exception) -> OptionError:
    reason = getattr(error, "strerror", None) or str(error)
    allowed = f"{what}, {_WHERE}; here: {reason}"
    return OptionError(errors.OPTION_INVALID, option=option, value=path, allowed=allowed)
