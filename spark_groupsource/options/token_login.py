"""Decide from the options which token provider a client logs in with: `tokenProvider`, or a mechanism that implies one.

A provider returns tokens for SASL OAUTHBEARER. It runs code or sends the machine's own cloud identity to the brokers
that the options name. So the environment of the driver must permit it (`permissions.TOKEN_PROVIDERS`). A cloud's own
provider needs no permission if the token can only reach that cloud's brokers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.options.permissions import Permissions
from spark_groupsource.options.secrets import conflict, permitted, setting_of

OPTION = "tokenProvider"
EXECUTOR_OPTION = "executor.tokenProvider"
REGION_OPTION = "awsRegion"
MSK, GCP, AWS_IAM = "msk", "gcp", "aws_iam"
# Providers of schema registries only: an OAuth 2 token endpoint, Azure's metadata service, and Google's token in the
# form of a registry.
OIDC, AZURE_IMDS, GCP_ACCESS = "oidc", "azure_imds", "gcp_access_token"
# What the option accepts besides package.module:function. AWS_IAM is set by librdkafka's own settings.
CLOUD_PROVIDERS = (MSK, GCP)
# Patterns are compiled when they are used: every Python process of a query imports this module, and few need them.
_FUNCTION = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
# The name that Spark users and the Java client's users write.
MSK_MECHANISM = "AWS_MSK_IAM"
OAUTHBEARER = "OAUTHBEARER"
_METHOD, _METADATA = "sasl.oauthbearer.method", "sasl.oauthbearer.metadata.authentication.type"
_UNSECURE = "enable.sasl.oauthbearer.unsecure.jwt"
_JAAS, _HANDLER = "sasl.jaas.config", "sasl.client.callback.handler.class"
# On Databricks the names of these Java classes have a prefix.
_MSK_PACKAGE = r"(?:shadedmskiam\.)?software\.amazon\.msk\.auth\.iam\."
_MSK_HANDLER = _MSK_PACKAGE + "IAMClientCallbackHandler"
_MSK_MODULE = rf"(?s){_MSK_PACKAGE}IAMLoginModule\s+required\s*(?P<arguments>.*?)\s*;?"
_JAAS_ARGUMENT = r'\s*(\w+)\s*=\s*(?:"([^"]*)"|\'([^\']*)\'|([^\s;"\']+))'
_JAAS_NAMES = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
# The brokers that clouds run; no other program can receive what is sent there over verified TLS.
_BROKERS = {
    MSK: r"[^/]+\.kafka(-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?",
    GCP: r"[^/]+\.managedkafka\.[a-z0-9.:-]+\.cloud\.goog",
}
_REGION = r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}"


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """A provider of tokens. `option` and `value` are what the user wrote, for errors."""

    option: str
    value: str
    provider: str
    region: str | None = None
    # (name, value) of what the provider needs to know. No secrets.
    arguments: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options outside of the client settings ask for, and the prefix of the client settings."""

    prefix: str
    option: str
    provider: str | None
    region: str | None
    servers: str


def provider_name(text: str) -> str:
    """Parse option tokenProvider. Raises ValueError."""
    name = text.strip()
    if name.lower() in CLOUD_PROVIDERS:
        return name.lower()
    if not re.fullmatch(_FUNCTION, name):
        raise ValueError(text)
    return name


def region_name(text: str) -> str:
    """Parse option awsRegion. Raises ValueError."""
    if not re.fullmatch(_REGION, text.strip()):
        raise ValueError(text)
    return text.strip()


def token_login(
    settings: Mapping[str, str], asked: Asked, permissions: Permissions
) -> tuple[dict[str, str], TokenLogin | None]:
    """Return the client settings without what only names a provider, and the provider if there is one.

    Raises `OptionError` for a provider that does not fit the other settings, or that the driver does not permit.
    """
    left = {name: value.strip() for name, value in settings.items()}
    named = next((name for name in _MECHANISMS if name in left), "sasl.mechanism")
    mechanism = left.get(named, "").upper()
    metadata = left.get(_METADATA, "").lower()
    arguments: tuple[tuple[str, str], ...] = ()
    option, value, provider = asked.option, asked.provider or "", asked.provider
    if mechanism == MSK_MECHANISM:
        if provider not in (None, MSK):
            raise _conflict(asked, named, left[named], "the mechanism has a provider of its own (msk).")
        if provider is None:
            option, value, provider = asked.prefix + named, left[named], MSK
        arguments = _take_jaas(left, asked.prefix)
    elif provider is None and metadata == AWS_IAM:
        # librdkafka leaves this one to its callers.
        option, value, provider = asked.prefix + _METADATA, left[_METADATA], AWS_IAM
        with permitted(option, value):
            permissions.check_setting(_METADATA, "it makes the client send the machine's own cloud identity")
    if provider is None:
        return left, None
    _check_fit(left, asked, provider, named, mechanism)
    for name in _MECHANISMS:
        left.pop(name, None)
    left["sasl.mechanism"] = OAUTHBEARER
    region = (asked.region or _region_of(asked.servers)) if provider == MSK else None
    login = TokenLogin(option, value, provider, region, arguments)
    _check_permitted(left, login, asked.servers, permissions)
    if provider == MSK and region is None:
        raise OptionError(
            errors.OPTION_MISSING, option=REGION_OPTION,
            meaning="the region of the MSK cluster, which the name of a broker does not show.",
        )  # fmt: skip
    return left, login


def _take_jaas(left: dict[str, str], prefix: str) -> tuple[tuple[str, str], ...]:
    """Remove the Java client's lines of an MSK login, and return the login module's arguments."""
    if re.fullmatch(_MSK_HANDLER, left.get(_HANDLER, "")):
        del left[_HANDLER]
    if _JAAS not in left:
        return ()
    text = left[_JAAS]
    module = re.fullmatch(_MSK_MODULE, text)
    rest = module["arguments"] if module else text
    found = {name: next(filter(None, values), "") for name, *values in re.findall(_JAAS_ARGUMENT, rest)}
    # With anything else the login would be another one than the line says.
    if module is None or re.sub(_JAAS_ARGUMENT, "", rest).strip() or not found.keys() <= set(_JAAS_NAMES):
        names = ", ".join(_JAAS_NAMES)
        allowed = f"software.amazon.msk.auth.iam.IAMLoginModule required; with no arguments but {names}"
        raise OptionError(errors.OPTION_INVALID, option=prefix + _JAAS, value="...", allowed=allowed)
    del left[_JAAS]
    return tuple(sorted(found.items()))


def _check_fit(left: Mapping[str, str], asked: Asked, provider: str, named: str, mechanism: str) -> None:
    """Raise `OptionError` if the other settings log in in another way."""
    if mechanism not in ("", OAUTHBEARER, MSK_MECHANISM):
        raise _conflict(asked, named, left[named], "a token needs the mechanism OAUTHBEARER.")
    if provider != AWS_IAM and left.get(_METHOD, "default").lower() != "default":
        raise _conflict(asked, _METHOD, left[_METHOD], "the client would fetch a token itself.")
    if left.get(_UNSECURE, "false").lower() == "true":
        raise _conflict(asked, _UNSECURE, left[_UNSECURE], "the client would make a token itself.")
    protocol = left.get("security.protocol", "").upper()
    allowed = ("SASL_SSL",) if provider in (MSK, GCP, AWS_IAM) else ("SASL_SSL", "SASL_PLAINTEXT")
    if protocol not in allowed:
        why = f"{' or '.join(allowed)}, because {asked.option} (or the mechanism) makes clients log in with a token"
        option = f"{asked.prefix}security.protocol"
        raise OptionError(errors.OPTION_INVALID, option=option, value=left.get("security.protocol", ""), allowed=why)


def _conflict(asked: Asked, name: str, value: str, reason: str) -> OptionError:
    return conflict(asked.option, asked.provider, asked.prefix + name, value, reason)


def _hosts(servers: str) -> list[str]:
    return [each.strip().rpartition("://")[2].rpartition(":")[0].lower() for each in servers.split(",") if each.strip()]


def _region_of(servers: str) -> str | None:
    """Return the region in the brokers' names; None if they have none, or several."""
    matches = (re.fullmatch(_BROKERS[MSK], host) for host in _hosts(servers))
    found = {match["region"] for match in matches if match}
    return found.pop() if len(found) == 1 else None


def _check_permitted(left: Mapping[str, str], login: TokenLogin, servers: str, permissions: Permissions) -> None:
    if login.provider == AWS_IAM:
        # Permitted as a client setting.
        return
    with permitted(login.option, login.value):
        if login.provider not in CLOUD_PROVIDERS:
            permissions.check_token_provider(login.provider, f"it makes clients run {login.provider}")
        elif login.arguments or not _stays_in_the_cloud(left, login.provider, servers):
            permissions.check_token_provider(
                login.provider,
                "it sends the machine's own cloud identity to brokers whose names are not the cloud's, or uses another"
                " identity than the machine's, or does not verify the brokers' certificates",
            )


def _stays_in_the_cloud(left: Mapping[str, str], provider: str, servers: str) -> bool:
    """Return whether only the cloud's own brokers can receive the token: by their names, over verified TLS."""
    hosts = _hosts(servers)
    verified = (
        left.get("enable.ssl.certificate.verification", "true").lower() == "true"
        and left.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
        and not any(setting_of(name).startswith("ssl.ca.") for name in left)
    )
    return verified and bool(hosts) and all(re.fullmatch(_BROKERS[provider], host) for host in hosts)
