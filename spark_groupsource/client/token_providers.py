"""Create the function that returns tokens for a `TokenLogin`: of a cloud's library, or the user's own.

The libraries are extras and are imported when the first client needs a token, never before.
"""

from __future__ import annotations

import base64
import importlib
import json
import math
import os
import time
from collections.abc import Callable
from datetime import timezone
from typing import Any, NamedTuple

from spark_groupsource.options.token_login import AWS_IAM, AZURE_IMDS, GCP, GCP_ACCESS, MSK, OIDC, TokenLogin

# confluent-kafka's contract of `oauth_cb`: takes the setting sasl.oauthbearer.config, returns a token, its expiry in
# seconds since the epoch, and optionally the principal and SASL extensions.
Callback = Callable[[Any], Any]

_GCP_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# The variable that Google's own login for Java reads.
_GCP_PRINCIPAL = "GOOGLE_MANAGED_KAFKA_AUTH_PRINCIPAL"
_GCP_HEADER = '{"typ":"JWT","alg":"GOOG_OAUTH2_TOKEN"}'


class Unusable(Exception):
    """A provider that cannot be used in this process. The text is the reason, `remedy` the advice."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Token(NamedTuple):
    """A token, its expiry in seconds since the epoch, and what goes with it."""

    value: str
    expires_s: float
    principal: str = ""
    extensions: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Token(expires_s={self.expires_s:.0f})"


def callback_of(login: TokenLogin, extensions: str | None = None) -> Callback:
    """Return the login's function. `extensions` is the setting sasl.oauthbearer.extensions. Raises `Unusable`."""
    if login.provider == AWS_IAM:
        return lambda config: _aws_iam(config, extensions)
    if login.provider in (OIDC, AZURE_IMDS):
        # Kafka clients do without it, and without the HTTP modules that it imports.
        from spark_groupsource.client import token_endpoints  # noqa: PLC0415

        return (token_endpoints.client_credentials if login.provider == OIDC else token_endpoints.azure_imds)(login)
    return {MSK: _msk, GCP: _gcp, GCP_ACCESS: _gcp}.get(login.provider, _function)(login)


def token_of(answer: Any, now_s: float) -> Token:
    """Check what a provider returned. Raises ValueError or TypeError, whose text never contains the answer."""
    if not isinstance(answer, tuple) or not 2 <= len(answer) <= 4:
        raise ValueError(f"it returned {_kind(answer)}, not (token, expiry in seconds[, principal[, extensions]])")
    value, expires_s = answer[:2]
    principal: Any = answer[2] if len(answer) > 2 else ""
    extensions: Any = answer[3] if len(answer) > 3 else {}
    if not isinstance(value, str) or not value:
        raise ValueError(f"its token is {_kind(value)}, not a text")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        raise TypeError(f"its expiry is {_kind(expires_s)}, not a number of seconds since the epoch")
    if not isinstance(principal, str) or not isinstance(extensions, dict):
        kinds = f"{_kind(principal)} and {_kind(extensions)}"
        raise TypeError(f"its principal and extensions are {kinds}, not a text and a dict")
    if not all(isinstance(part, str) for pair in extensions.items() for part in pair):
        raise ValueError("its extensions are not all text")
    try:
        "".join((value, principal, *extensions, *extensions.values())).encode()
    except UnicodeEncodeError:
        raise ValueError("its token, principal and extensions are no text that UTF-8 can encode") from None
    if math.isnan(expires_s):
        raise ValueError("its expiry is nan, not a number of seconds since the epoch")
    if expires_s > 100 * now_s:
        raise ValueError("its expiry is in milliseconds; seconds since the epoch are needed")
    if expires_s <= now_s:
        raise ValueError(f"its token expired {now_s - expires_s:.0f} s ago")
    return Token(value, float(expires_s), principal, tuple(extensions.items()))


def _kind(value: object) -> str:
    return "an empty text" if value == "" else type(value).__name__ if value is not None else "None"


def _function(login: TokenLogin) -> Callback:
    module, _, attribute = login.provider.partition(":")
    remedy = f"install {module} on the driver and on all executors, or put it on their PYTHONPATH."
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise Unusable(f"it cannot be imported: {type(error).__name__}: {error}", remedy) from error
    try:
        found = getattr(imported, attribute)
    except AttributeError as error:
        raise Unusable(str(error), f"name a function of {module}.") from error
    if not callable(found):
        raise Unusable(f"it is no function but {_kind(found)}", f"name a function of {module}.")
    return found  # type: ignore[no-any-return]


def _extra(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unusable(str(error), f"install the extra on the driver and on all executors: {name}.") from None


def _msk(login: TokenLogin) -> Callback:
    signer = _extra("aws_msk_iam_sasl_signer.MSKAuthTokenProvider", "in groupkafka's checkout: pip install '.[msk]'")
    given = dict(login.arguments)

    def token(_: object) -> tuple[str, float]:
        if "awsRoleArn" in given:
            session = {"sts_session_name": given["awsRoleSessionName"]} if "awsRoleSessionName" in given else {}
            value, expires_ms = signer.generate_auth_token_from_role_arn(login.region, given["awsRoleArn"], **session)
        elif "awsProfileName" in given:
            value, expires_ms = signer.generate_auth_token_from_profile(login.region, given["awsProfileName"])
        else:
            # The library itself fails over missing credentials with an AttributeError.
            if importlib.import_module("botocore.session").Session().get_credentials() is None:
                raise LookupError("no AWS credentials were found (variables, shared files, container or machine role)")
            value, expires_ms = signer.generate_auth_token(login.region)
        return value, expires_ms / 1000

    return token


def _gcp(login: TokenLogin) -> Callback:
    auth = _extra("google.auth", "in groupkafka's checkout: pip install '.[gcp]'")
    transport = _extra("google.auth.transport.requests", "in groupkafka's checkout: pip install '.[gcp]'")
    credentials: list[Any] = []

    def token(_: object) -> tuple[str, float]:
        if not credentials:
            credentials.append(auth.default(scopes=[_GCP_SCOPE])[0])
        mine = credentials[0]
        mine.refresh(transport.Request())
        # Google's libraries return UTC without a time zone.
        expires_s = mine.expiry.replace(tzinfo=timezone.utc).timestamp()
        if login.provider == GCP_ACCESS:
            return mine.token, expires_s
        subject = os.environ.get(_GCP_PRINCIPAL) or getattr(mine, "service_account_email", None)
        if not subject:
            raise LookupError(f"the credentials have no service account: set {_GCP_PRINCIPAL} to the account's name")
        return gcp_token(mine.token, subject, expires_s), expires_s

    return token


def gcp_token(access_token: str, subject: str, expires_s: float) -> str:
    """Return the access token in the form that Managed Service for Apache Kafka expects: in a JWT's third part."""
    claims = {"exp": expires_s, "iss": "Google", "iat": time.time(), "scope": "kafka", "sub": subject}
    parts = (_GCP_HEADER, json.dumps(claims), access_token)
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def _aws_iam(config: object, extensions: str | None) -> Any:
    name = "pip install 'confluent-kafka[oauthbearer-aws]'"
    return _extra("confluent_kafka._oauthbearer.aws.aws_autowire", name).create_handler(config, extensions)(config)
