"""Choose the client of a query's member: librdkafka, unless the options name a strategy that it does not have."""

from __future__ import annotations

import os
from importlib import import_module

from spark_groupsource import errors
from spark_groupsource.assignors.interface import Assignor, MemberSettings
from spark_groupsource.assignors.registry import common_protocol, find
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.backends.assigned import AssignedPartitions
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.port import GroupPort
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.secrets import resolved, setting_of


def group_client(options: SourceOptions) -> GroupPort:
    """Return the client that the options require; it connects when it is opened.

    Raises `OptionError` if it is not installed, or a strategy cannot be created.
    """
    if not options.is_member:
        return AssignedPartitions(options)
    if options.on_librdkafka:
        return LibrdkafkaGroup(options)
    return _kafka_python(options)


def member_settings(options: SourceOptions) -> MemberSettings:
    """Return the properties of the member that strategies use. Raises `OptionError` if its rack cannot be read."""
    named = {name: value for name, value in options.client_settings.items() if setting_of(name) == "client.rack"}
    rack = resolved(named, options.option_name, "the driver", options.permissions).get("client.rack")
    return MemberSettings(
        client_id=options.client_id or "",
        rack=rack or None,
        # The reader process does not know the application's executors.
        weight=options.member_weight or _cores(),
        redundancy=options.member_redundancy,
    )


def _cores() -> int:
    """Return how many cores this process may use: its CPU affinity where the system reports that, else all cores."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _kafka_python(options: SourceOptions) -> GroupPort:
    found = tuple(map(find, options.assignors))
    shown = ",".join(options.assignors)
    try:
        offered: tuple[Assignor | str, ...] = tuple(each if isinstance(each, str) else each() for each in found)
    except Exception as error:
        reason = f"it cannot be created: {type(error).__name__}: {error}"
        raise OptionError(errors.ASSIGNORS_UNUSABLE, value=shown, reason=reason) from error
    try:
        # Imported here: kafka-python is an extra.
        adapter = import_module("spark_groupsource.membership.backends.kafka_python.client")
    except ImportError as error:
        raise OptionError(errors.ASSIGNORS_NOT_INSTALLED, value=shown, reason=str(error)) from None
    port: GroupPort = adapter.KafkaPythonGroup(options, offered, common_protocol(found), member_settings(options))
    return port
