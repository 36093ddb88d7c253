"""Decide what the options of a source may name: files, variables, brokers, and settings that run code.

The person who sets options (SQL is enough) may have fewer rights than the one who runs the driver. So only the
environment of the driver's process decides, never an option. Executors receive the driver's permissions with the
reader; they run the driver's code anyway. The command line permits everything, because its caller could read the files
without it.

Each variable is a list of names, separated by commas (directories: by colons). A name that ends in `*` stands for all
names with that beginning.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

SECRET_DIRS = "GROUPKAFKA_SECRET_DIRS"  # noqa: S105 - no password
SECRET_ENV = "GROUPKAFKA_SECRET_ENV"  # noqa: S105
ALLOW_UNSAFE_SETTINGS = "GROUPKAFKA_ALLOW_UNSAFE_SETTINGS"
ALLOW_ASSIGNORS = "GROUPKAFKA_ALLOW_ASSIGNORS"
TOKEN_PROVIDERS = "GROUPKAFKA_ALLOW_TOKEN_PROVIDERS"  # noqa: S105
ONLY_TOKEN_ENDPOINTS = "GROUPKAFKA_ONLY_TOKEN_ENDPOINTS"  # noqa: S105
ONLY_BROKERS = "GROUPKAFKA_ONLY_BROKERS"
METRICS_ADDRESSES = "GROUPKAFKA_METRICS_ADDRESSES"
# The directory of a systemd service's credentials.
_CREDENTIALS = "CREDENTIALS_DIRECTORY"

DIRECTORIES = ("/run/secrets", "/var/run/secrets", "/etc/kafka")
# Folders in them that hold the machine's own identity, mounted by Kubernetes and clouds. The token of a service account
# could start pods. Options may name them only if the operator's own list has them.
OF_THE_PLATFORM = ("kubernetes.io", "eks.amazonaws.com", "pods.eks.amazonaws.com", "azure", "tokens", "rhsm")
VARIABLES = ("KAFKA_*", "GROUPKAFKA_*")
# Other machines cannot connect to these.
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class NotPermitted(ValueError):
    """An option names something that the driver does not permit. The text is the reason, `remedy` the advice."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Permissions:
    """What options may name.

    `directories` add to `DIRECTORIES`; `only_brokers` is None if all brokers are permitted.
    """

    directories: tuple[str, ...] = ()
    variables: tuple[str, ...] = VARIABLES
    unsafe_settings: tuple[str, ...] = ()
    assignors: tuple[str, ...] = ()
    token_providers: tuple[str, ...] = ()
    only_brokers: tuple[str, ...] | None = None
    only_token_endpoints: tuple[str, ...] | None = None
    metrics_addresses: tuple[str, ...] = LOOPBACK
    everything: bool = False

    def check_setting(self, name: str, what: str) -> None:
        """Raise `NotPermitted` unless this client setting is permitted; `what` describes its effect, for the error."""
        if not self._has(name, self.unsafe_settings):
            raise NotPermitted(what, _remedy("leave it out", ALLOW_UNSAFE_SETTINGS, f"with the name {name}"))

    def check_variable(self, name: str) -> None:
        """Raise `NotPermitted` unless options may name this environment variable as the source of a secret."""
        if not self._has(name, self.variables):
            reason = f"options may name only the variables {', '.join(self.variables)}"
            raise NotPermitted(reason, _remedy("give the variable such a name", SECRET_ENV, "with its name"))

    def check_assignor(self, name: str) -> None:
        """Raise `NotPermitted` unless this `package.module:Class` may be imported."""
        if not self._has(name, self.assignors):
            raise NotPermitted(
                f"it makes the driver import the module of {name}, which runs code",
                _remedy("use a strategy of docs/assignors.md", ALLOW_ASSIGNORS, f"with {name}"),
            )

    def check_metrics_address(self, address: str) -> None:
        """Raise `NotPermitted` unless metrics may be served on this address, without TLS and without a password."""
        if not self._has(address, self.metrics_addresses):
            raise NotPermitted(
                f"options may name only {', '.join(self.metrics_addresses)}; other machines could read the metrics",
                _remedy("leave it out", METRICS_ADDRESSES, f"with {address}"),
            )

    def check_token_provider(self, name: str, what: str) -> None:
        """Raise `NotPermitted` unless clients may log in with this provider; `what` describes its effect."""
        if not self._has(name, self.token_providers):
            raise NotPermitted(what, _remedy("use another login", TOKEN_PROVIDERS, f"with {name}"))

    def check_token_endpoint(self, url: str) -> None:
        """Raise `NotPermitted` unless clients may send token requests, with the client's secret, to this URL.

        A token endpoint is treated like a broker: a driver that is limited to some brokers contacts no other endpoint.
        """
        if self.only_brokers is None and self.only_token_endpoints is None:
            return
        if not self._has(url, self.only_token_endpoints or ()):
            raise NotPermitted(
                "it is not one of the token endpoints that this driver is limited to",
                _remedy("leave it out", ONLY_TOKEN_ENDPOINTS, "with the URL"),
            )

    def check_brokers(self, servers: str) -> None:
        """Raise `NotPermitted` unless all of these brokers may be contacted (`host:port`, or host)."""
        if self.only_brokers is None:
            return
        for server in filter(None, (each.strip().rpartition("://")[2].lower() for each in servers.split(","))):
            if not any(_is_broker(server, allowed) for allowed in self.only_brokers):
                raise NotPermitted(
                    f"{server} is not one of the brokers that this driver is limited to",
                    _remedy("name other brokers", ONLY_BROKERS, f"with {server} added"),
                )

    def check_file(self, path: str) -> str:
        """Return the real path of a file that options may name. Raises `NotPermitted` for any other file.

        The given path and its target must be below a permitted directory. The check of the given path guards against
        users who change a link in their own directory between this check and the client's read. Kubernetes needs links
        inside a directory: a secret is `<name> -> ..data/<name>`, and `..data` is a link, too.

        Only for permitted paths it is reported whether the file exists. Raises OSError for a missing one.
        """
        if self.everything:
            return os.path.realpath(path, strict=True)
        added = [directory for directory in (*self.directories, os.environ.get(_CREDENTIALS, "")) if directory]
        remedy = _remedy("put the file below one of these directories", SECRET_DIRS, "with its directory")
        if ".." in PurePath(path).parts or not _is_below(os.path.abspath(path), added, os.path.abspath):
            shown = ", ".join([*DIRECTORIES, *added])
            raise NotPermitted(f"options may name only files below {shown}, and no tokens of the platform", remedy)
        real = os.path.realpath(path)
        if not _is_below(real, added, os.path.realpath):
            raise NotPermitted("it is a link to a file outside of the permitted directories", remedy)
        _check_kind(os.stat(real).st_mode)
        return real

    def check_trust_store(self, path: str) -> None:
        """Raise `NotPermitted` unless it is a file or a directory. Raises OSError if it is missing.

        Certificates of authorities may be anywhere: no client sends their content.
        """
        mode = os.stat(path).st_mode
        if not stat.S_ISDIR(mode):
            _check_kind(mode)

    def _has(self, name: str, names: Iterable[str]) -> bool:
        return self.everything or any(
            name.startswith(known[:-1]) if known.endswith("*") else name == known for known in names
        )


EVERYTHING = Permissions(everything=True)


def permissions_of(environment: Mapping[str, str]) -> Permissions:
    """Return the permissions that a process with this environment grants."""

    def names(variable: str) -> tuple[str, ...]:
        return tuple(filter(None, (each.strip() for each in environment.get(variable, "").split(","))))

    directories = tuple(filter(None, environment.get(SECRET_DIRS, "").split(os.pathsep)))
    return Permissions(
        directories=directories,
        variables=VARIABLES + names(SECRET_ENV),
        unsafe_settings=names(ALLOW_UNSAFE_SETTINGS),
        assignors=names(ALLOW_ASSIGNORS),
        metrics_addresses=LOOPBACK + names(METRICS_ADDRESSES),
        token_providers=names(TOKEN_PROVIDERS),
        only_brokers=tuple(each.lower() for each in names(ONLY_BROKERS)) if ONLY_BROKERS in environment else None,
        only_token_endpoints=names(ONLY_TOKEN_ENDPOINTS) if ONLY_TOKEN_ENDPOINTS in environment else None,
    )


def _is_below(path: str, added: Iterable[str], form: Callable[[str], str]) -> bool:
    """Return whether a path is below a permitted directory; `form` makes directories comparable to the path."""
    if any(PurePath(path).is_relative_to(form(directory)) for directory in added):
        return True
    known = [PurePath(form(directory)) for directory in DIRECTORIES]
    inside = [PurePath(path).relative_to(each) for each in known if PurePath(path).is_relative_to(each)]
    return any(each.parts and each.parts[0] not in OF_THE_PLATFORM for each in inside)


def _check_kind(mode: int) -> None:
    """Raise `NotPermitted` for a named pipe or a device, which could block a client for ever."""
    if not stat.S_ISREG(mode):
        raise NotPermitted("it is not a regular file", "name a regular file.")


def _remedy(other: str, variable: str, how: str) -> str:
    return (
        f"{other}; or let the operator of the driver set the variable {variable} {how}, in the environment in which the"
        " driver starts (docs/security.md)."
    )


def _is_broker(server: str, allowed: str) -> bool:
    """Return whether `host:port` matches `allowed`: `host:port`, a host with any port, or `*.domain` of either."""
    host = server.rpartition(":")[0] or server
    return any(mine.endswith(allowed[1:]) if allowed.startswith("*.") else mine == allowed for mine in (server, host))
