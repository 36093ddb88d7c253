"""Find strategies by their names in option `assignors`."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping, Sequence

from spark_groupsource.assignors.co_partitioned import CoPartitionedAssignor
from spark_groupsource.assignors.interface import Assignor, RebalanceProtocol, wire_name_of
from spark_groupsource.assignors.rack_aware import RackAwareAssignor
from spark_groupsource.assignors.redundant import RedundantAssignor
from spark_groupsource.assignors.single_active import SingleActiveAssignor
from spark_groupsource.assignors.weighted import WeightedAssignor

BUILT_IN: Mapping[str, type[Assignor]] = {
    kind.name: kind
    for kind in (
        CoPartitionedAssignor, RackAwareAssignor, RedundantAssignor, SingleActiveAssignor, WeightedAssignor,
    )
}  # fmt: skip

_EAGER = (RebalanceProtocol.EAGER,)
_KAFKA_PYTHON: Mapping[str, tuple[RebalanceProtocol, ...]] = {
    "range": _EAGER,
    "roundrobin": _EAGER,
    "sticky": _EAGER,
    "cooperative-sticky": (RebalanceProtocol.COOPERATIVE,),
}
# Used as kafka-python implements them.
KAFKA_PYTHON_NAMES = tuple(_KAFKA_PYTHON)

# Result of `find`: a strategy class, or the name of one of kafka-python's strategies.
Choice = type[Assignor] | str


class AssignorNotFound(ValueError):
    """A name does not resolve to a usable strategy; the text has the reason."""


class SameName(ValueError):
    """Two strategies in one list have the same name for the group; the text names them as listed."""


class ProtocolConflict(ValueError):
    """Strategies in one list have no rebalance protocol in common; the text names them by protocol."""


def find(name: str) -> Choice:
    """Return the strategy of this name, or the class `package.module:Class`.

    Imports the module. Raises `AssignorNotFound`.
    """
    if name in _KAFKA_PYTHON:
        return name
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        known = sorted([*BUILT_IN, *KAFKA_PYTHON_NAMES])
        near = difflib.get_close_matches(name.lower(), known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise AssignorNotFound(
            f"there is no strategy {name}{meant}; there are {', '.join(known)}, and package.module:Class"
        )
    if not all(part.isidentifier() for part in [*module.split("."), attribute]):
        raise AssignorNotFound(f"{name} is not of the form package.module:Class")
    if module == "__main__":
        raise AssignorNotFound(
            f"{name} is defined in the script or notebook itself, but Spark starts another Python process for the "
            f"source: put {attribute} into a module that is installed or on PYTHONPATH"
        )
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:
        # A module may raise anything during import. A script that calls sys.exit would end the query's process.
        raise AssignorNotFound(
            f"module {module} cannot be imported: {type(error).__name__}: {error}; the source runs in its own Python"
            " process, so the module must be installed there or be on PYTHONPATH; --py-files does not reach it"
        ) from error
    if found is None:
        raise AssignorNotFound(f"module {module} has no {attribute}")
    if reason := _unfit(found):
        raise AssignorNotFound(f"{name} {reason}")
    kind: type[Assignor] = found
    return kind


def find_all(names: Sequence[str]) -> tuple[Choice, ...]:
    """Return the strategies of a list.

    Raises `AssignorNotFound`, and `SameName` for two with one name for the group.
    """
    choices = tuple(map(find, names))
    first: dict[str, str] = {}
    for name, choice in zip(names, choices, strict=True):
        other = first.setdefault(strategy_name(choice), name)
        if other != name:
            raise SameName(
                f"the group cannot distinguish {other} from {name}, both are {strategy_name(choice)}: "
                "give one of them another name or version"
            )
    return choices


def _unfit(found: object) -> str:
    """Return the reason why an object cannot be used as a strategy; empty if it can."""
    if not (isinstance(found, type) and issubclass(found, Assignor)):
        return "is not a subclass of Assignor"
    name, version, protocols = getattr(found, "name", None), found.version, found.protocols
    checks = (
        (not inspect.isabstract(found), f"does not define {', '.join(sorted(found.__abstractmethods__))}"),
        (isinstance(name, str) and name.strip() == name != "", "has no name"),
        (name not in _KAFKA_PYTHON, f"has the name {name}, which is one of kafka-python's strategies"),
        (BUILT_IN.get(str(name), found) is found, f"has the name {name}, which is one of this package's strategies"),
        (type(version) is int and version >= 1, f"has version {version!r}, which is not an integer from 1"),
        (
            isinstance(protocols, tuple)
            and bool(protocols)
            and all(isinstance(protocol, RebalanceProtocol) for protocol in protocols),
            "has no tuple of rebalance protocols",
        ),
        (_needs_nothing(found), "cannot be created without arguments"),
    )
    return next((reason for fits, reason in checks if not fits), "")


def _needs_nothing(kind: type[Assignor]) -> bool:
    try:
        inspect.signature(kind).bind()
    except TypeError:
        return False
    return True


def common_protocol(choices: Sequence[Choice]) -> RebalanceProtocol:
    """Return the protocol that all of one or more strategies support; of two, the one that the first strategy prefers.

    The built-in strategies prefer the cooperative protocol. Raises `ProtocolConflict`.
    """
    for protocol in _protocols(choices[0]):
        if all(protocol in _protocols(choice) for choice in choices):
            return protocol
    by_protocol = {
        protocol: ", ".join(strategy_name(choice) for choice in choices if _protocols(choice) == (protocol,))
        for protocol in RebalanceProtocol
    }
    raise ProtocolConflict(
        f"a member cannot offer {by_protocol[RebalanceProtocol.EAGER]} (eager protocol only) together with "
        f"{by_protocol[RebalanceProtocol.COOPERATIVE]} (cooperative protocol only)"
    )


def strategy_name(choice: Choice) -> str:
    """Return the name that the group's members compare."""
    return choice if isinstance(choice, str) else wire_name_of(choice.name, choice.version)


def _protocols(choice: Choice) -> tuple[RebalanceProtocol, ...]:
    return _KAFKA_PYTHON[choice] if isinstance(choice, str) else choice.protocols
