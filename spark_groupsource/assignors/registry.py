"""Which strategies there are, and how a name in option `assignors` becomes one."""

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
# Used as kafka-python has them.
KAFKA_PYTHON_NAMES = tuple(_KAFKA_PYTHON)

# What `find` returns: an own strategy, or the name of one of kafka-python's.
Choice = type[Assignor] | str


class AssignorNotFound(ValueError):
    """A name that is no strategy; the text says why not."""


class SameName(ValueError):
    """Two strategies in one list that the group could not tell apart; the text names them as they are listed."""


class ProtocolConflict(ValueError):
    """Strategies in one list that have no rebalance protocol in common; the text names them by protocol."""


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
            f"{name} is in the script or notebook itself, which the Python process that Spark starts for the source "
            f"does not run: put {attribute} into a module on PYTHONPATH or in --py-files"
        )
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        # A module may raise anything while it is imported.
        raise AssignorNotFound(
            f"module {module} cannot be imported: {type(error).__name__}: {error}; the source runs in a Python process"
            " of its own, so it must be installed, on PYTHONPATH or in --py-files"
        ) from error
    if found is None:
        raise AssignorNotFound(f"module {module} has no {attribute}")
    if reason := _unfit(found):
        raise AssignorNotFound(f"{name} {reason}")
    kind: type[Assignor] = found
    return kind


def find_all(names: Sequence[str]) -> tuple[Choice, ...]:
    """Return the strategies of a list. Raises `AssignorNotFound`, and `SameName` when two are one for the group."""
    choices = tuple(map(find, names))
    first: dict[str, str] = {}
    for name, choice in zip(names, choices, strict=True):
        other = first.setdefault(shown(choice), name)
        if other != name:
            raise SameName(
                f"the group cannot tell {other} from {name}, both are {shown(choice)}: "
                "give one of them another name or version"
            )
    return choices


def _unfit(found: object) -> str:
    """Return why something cannot be used as a strategy, nothing when it can."""
    if not (isinstance(found, type) and issubclass(found, Assignor)):
        return "is not a subclass of Assignor"
    name, version, protocols = getattr(found, "name", None), found.version, found.protocols
    checks = (
        (not inspect.isabstract(found), f"does not define {', '.join(sorted(found.__abstractmethods__))}"),
        (isinstance(name, str) and name.strip() == name != "", "has no name"),
        (name not in _KAFKA_PYTHON, f"has the name {name}, which is one of kafka-python's strategies"),
        (BUILT_IN.get(str(name), found) is found, f"has the name {name}, which is one of this package's strategies"),
        (type(version) is int and version >= 1, f"has version {version!r}, which is no whole number from 1 on"),
        (
            isinstance(protocols, tuple)
            and bool(protocols)
            and all(isinstance(protocol, RebalanceProtocol) for protocol in protocols),
            "has no tuple of rebalance protocols",
        ),
        (_needs_nothing(found), "cannot be made without arguments"),
    )
    return next((reason for fits, reason in checks if not fits), "")


def _needs_nothing(kind: type[Assignor]) -> bool:
    try:
        inspect.signature(kind).bind()
    except TypeError:
        return False
    return True


def common_protocol(choices: Sequence[Choice]) -> RebalanceProtocol:
    """Return the protocol under which all of one or more strategies can run; of two, the one that the first prefers.

    The built-in ones prefer the cooperative protocol. Raises `ProtocolConflict`.
    """
    for protocol in _protocols(choices[0]):
        if all(protocol in _protocols(choice) for choice in choices):
            return protocol
    by_protocol = {
        protocol: ", ".join(shown(choice) for choice in choices if _protocols(choice) == (protocol,))
        for protocol in RebalanceProtocol
    }
    raise ProtocolConflict(
        f"a member cannot offer {by_protocol[RebalanceProtocol.EAGER]} (eager protocol only) together with "
        f"{by_protocol[RebalanceProtocol.COOPERATIVE]} (cooperative protocol only)"
    )


def shown(choice: Choice) -> str:
    """Return the name that the group's members compare."""
    return choice if isinstance(choice, str) else wire_name_of(choice.name, choice.version)


def _protocols(choice: Choice) -> tuple[RebalanceProtocol, ...]:
    return _KAFKA_PYTHON[choice] if isinstance(choice, str) else choice.protocols
