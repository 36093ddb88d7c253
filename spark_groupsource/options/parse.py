"""Check the options of a reader.

Turn Spark's string options into one frozen `SourceOptions`, or raise an `OptionError` that names the option, the value
and the allowed values. No I/O apart from reading the environment, no Kafka client, no Spark.

Client settings (`kafka.*`) pass through to librdkafka, except those of `REFUSED_CLIENT_SETTINGS`, which would break a
promise. Durations are in milliseconds in options and in seconds inside; only this module converts them.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import replace

from spark_groupsource import errors
from spark_groupsource.assignors.registry import (
    AssignorNotFound,
    ProtocolConflict,
    SameName,
    common_protocol,
    find_all,
)
from spark_groupsource.errors import OptionError
from spark_groupsource.model.names import group_name
from spark_groupsource.options.client_settings import (
    CLIENT_PREFIX,
    EXECUTOR_PREFIX,
    GroupProtocol,
    check_client_settings,
    check_executor_settings,
    group_protocol,
    has_own_identity,
    interval_ms,
    invalid_option,
    librdkafka_has,
    merged_executor_settings,
)
from spark_groupsource.options.model import Reads, SourceOptions, Subscription
from spark_groupsource.options.offset_spec import AtEdge, AtOffset, AtTime, ReasonedValueError, Start, Starting
from spark_groupsource.options.permissions import Permissions, permissions_of
from spark_groupsource.options.secrets import conflict, permitted
from spark_groupsource.options.table import OPTIONS, OptionSpec
from spark_groupsource.options.token_login import EXECUTOR_OPTION as EXECUTOR_TOKEN_PROVIDER
from spark_groupsource.options.token_login import MSK, OAUTHBEARER, REGION_OPTION, Asked, TokenLogin, token_login
from spark_groupsource.options.token_login import OPTION as TOKEN_PROVIDER

_BY_KEY = {spec.name.lower(): spec for spec in OPTIONS}
# Options that Spark itself adds to a source's options.
_IGNORED_KEYS = frozenset({"path"})
# Options that have an effect only beside one of these others -> the others, and what to set.
_READ_BESIDE = {
    "memberWeight": (("assignors",), "assignors=weighted, in all queries of the group"),
    "memberRedundancy": (("assignors",), "assignors=redundant, in all queries of the group"),
    "metricsAddress": (("metricsPort",), "metricsPort"),
    "metricsLagIntervalMs": (("metricsPort", "metricsPath"), "metricsPort or metricsPath"),
}
# Options of a group's member, which a query with `assign` is not.
_OF_MEMBERS = (
    "assignors", "kafka.group.instance.id", "kafka.partition.assignment.strategy", "kafka.group.remote.assignor",
    "onPartitionsLost", "maxBatchMs",
)  # fmt: skip
_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
# Error text for an empty value, in the words of Spark's own source.
_EMPTY = {
    "subscribe": "there are no topics to subscribe to",
    "subscribePattern": "the pattern to subscribe is empty",
    "assign": "there are no topicpartitions to assign",
}
_TO_WRITE = "To write, use Spark's own format 'kafka': this source only reads."
# Names that users write instead of `subscribe`.
_MEANT = {
    "topic": f" Did you mean 'subscribe'? {_TO_WRITE}",
    "topics": " Did you mean 'subscribe'?",
}


# --- parsing


def parse_options(
    raw: Mapping[str, str], reads: Reads | None = Reads.STREAM, permissions: Permissions | None = None
) -> SourceOptions:
    """Check all options of a reader. Names are case-insensitive, as in Spark.

    If `reads` is None, the use is not known yet: options that only one use needs or forbids are not checked.
    `permissions` limit what options may name; the default is what the environment of this process permits. Raises
    `OptionError` for the first option that is missing, unknown, malformed, out of range or refused. Missing options are
    reported in the order of Spark's own source: the subscription before the brokers.
    """
    given = {key.lower(): value for key, value in raw.items() if key.lower() not in _IGNORED_KEYS}
    for key, value in given.items():
        if key not in _BY_KEY and not key.startswith((CLIENT_PREFIX, EXECUTOR_PREFIX)):
            raise _unknown_option(key, value)
    _check_on_conflict(given)
    values = {spec.name: _parse_one(spec, given.get(spec.name.lower())) for spec in OPTIONS}
    if reads is not None:
        _check_use(values, given, reads)
    _check_subscription(values, given)
    _check_instance_id(given)
    _check_effects(values, given)
    granted = permissions_of(os.environ) if permissions is None else permissions
    shown: frozenset[str] = values["allowedUnsafeSettings"] or frozenset()  # type: ignore[assignment]
    client, executor, login, executor_login = _logins(values, given, granted)
    client = check_client_settings(client, shown, granted)
    executor = check_executor_settings(executor, shown, granted)
    _check_required(values, reads)
    _check_permitted(values, granted)
    _check_strategies(values, client, given.get("kafka.partition.assignment.strategy"))
    return replace(
        _assemble(values, given, client, executor, reads),
        permissions=granted, token_login=login, executor_token_login=executor_login,
    )  # fmt: skip


def _logins(
    values: Mapping[str, object], given: Mapping[str, str], permissions: Permissions
) -> tuple[dict[str, str], dict[str, str], TokenLogin | None, TokenLogin | None]:
    """Return the settings of all clients and those of executors, without what only names a token provider.

    Then their providers: that of all clients, and that of executors, which may have an identity of their own.
    """
    region: str | None = values[REGION_OPTION]  # type: ignore[assignment]
    common: str | None = values[TOKEN_PROVIDER]  # type: ignore[assignment]
    own: str | None = values[EXECUTOR_TOKEN_PROVIDER]  # type: ignore[assignment]
    servers = str(values["kafka.bootstrap.servers"] or "")
    client, executor = _with_prefix(given, CLIENT_PREFIX), _with_prefix(given, EXECUTOR_PREFIX)
    asked = Asked(CLIENT_PREFIX, TOKEN_PROVIDER, common, region, servers)
    checked, login = token_login(client, asked, permissions)
    own_login = login
    if own is not None or executor:
        inherits = own is None and not has_own_identity(executor)
        asked = Asked(
            CLIENT_PREFIX if inherits else EXECUTOR_PREFIX,
            TOKEN_PROVIDER if inherits else EXECUTOR_TOKEN_PROVIDER,
            common if inherits else own,
            region,
            executor.get("bootstrap.servers", servers),
        )
        if own is not None and not executor.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
            # A provider is an identity of the executors' own: the common one is not theirs.
            executor = executor | {"sasl.mechanism": OAUTHBEARER}
        # Checked with all that executors use: they may contact other brokers.
        merged, own_login = token_login(merged_executor_settings(client, executor), asked, permissions)
        if own_login is not None and not inherits:
            executor = {name: merged[name] for name in executor if name in merged}
            executor["sasl.mechanism"] = merged["sasl.mechanism"]
    if region is not None and MSK not in {each.provider for each in (login, own_login) if each is not None}:
        raise OptionError(
            errors.OPTION_REFUSED, option=REGION_OPTION, value=region,
            reason="only the token provider of MSK needs a region.",
            replacement="leave it out, or set kafka.sasl.mechanism=AWS_MSK_IAM.",
        )  # fmt: skip
    return checked, executor, login, own_login


def _check_permitted(values: Mapping[str, object], permissions: Permissions) -> None:
    """Raise `OptionError` for names that the driver's environment does not permit, before any import or connection."""
    servers, address = str(values["kafka.bootstrap.servers"]), str(values["metricsAddress"])
    with permitted("kafka.bootstrap.servers", servers):
        permissions.check_brokers(servers)
    with permitted("metricsAddress", address):
        permissions.check_metrics_address(address)
    names = values["assignors"]
    for name in names if isinstance(names, tuple) else ():
        if ":" in name:
            with permitted("assignors", name):
                permissions.check_assignor(name)


def _with_prefix(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the client settings with this prefix, with the prefix removed, except those with a row in the table."""
    return {key[len(prefix) :]: value for key, value in given.items() if key.startswith(prefix) and key not in _BY_KEY}


def _parse_one(spec: OptionSpec, value: str | None) -> object:
    if value is None:
        return spec.default
    try:
        return spec.parse(value)
    except ValueError as error:
        empty = spec.name in _EMPTY and not value.strip(" ,{}")
        more = f"; {_EMPTY[spec.name]}" if empty else ""
        if isinstance(error, ReasonedValueError):
            more += f". {error}"
        # A text that does not begin as JSON is not meant as JSON.
        if isinstance(error, json.JSONDecodeError) and value.lstrip().startswith("{"):
            where = f"line {error.lineno}, column {error.colno}"
            more += f". The value is no JSON: {error.msg.lower()} at {where} (character {error.pos + 1})"
        raise invalid_option(spec.name, value, spec.allowed + more) from None


def _unknown_option(key: str, value: str) -> OptionError:
    if key == "groupidprefix":
        return OptionError(
            errors.OPTION_REFUSED, option="groupIdPrefix", value=value,
            reason="this source does not generate group names.",
            replacement="leave it out; kafka.group.id names the group.",
        )  # fmt: skip
    near = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.6)
    suggestion = f" Did you mean '{_BY_KEY[near[0]].name}'?" if near else ""
    return OptionError(errors.OPTION_UNKNOWN, option=key, suggestion=_MEANT.get(key, suggestion))


def _check_use(values: Mapping[str, object], given: Mapping[str, str], reads: Reads) -> None:
    """Raise `OptionError` for options that make no sense in a streaming query, or in a batch read.

    Of several starting options only the first one applies, likewise of ending options; the others are not checked.
    """
    if reads is Reads.STREAM:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if values[name] is not None:
                what = "offset" if name == "endingOffsets" else "timestamp"
                raise OptionError(
                    errors.OPTION_REFUSED, option=name, value=given[name.lower()],
                    reason=f"ending {what} not valid in streaming queries, which have no end.",
                    replacement="leave it out, or read with spark.read.",
                )  # fmt: skip
    else:
        starting = _position(values, given, "starting", AtEdge())
        ending = _position(values, given, "ending", AtEdge(latest=True))
        _check_edge(starting, latest=True)
        _check_edge(ending, latest=False)
        _check_order(starting, ending)


def _check_edge(position: Starting, *, latest: bool) -> None:
    """Raise `OptionError` for a batch read that starts at the log's end or ends at its beginning: it would be empty."""
    wrong = AtEdge(latest=latest)
    shown, what = ("latest (-1)", "starting offset") if latest else ("earliest (-2)", "ending offset")
    allowed = f"in a batch read no {shown}: {{}} can't be {wrong} for batch queries on Kafka"
    if position.everywhere == wrong:
        raise invalid_option(position.option, position.shown, allowed.format(what))
    for where, start in (*sorted(position.each.items()), *sorted(position.topics.items())):
        if start == wrong:
            what = position.option if latest else what
            raise invalid_option(position.option, position.shown, allowed.format(f"{what} for {where}"))


def _check_order(starting: Starting, ending: Starting) -> None:
    """Raise `OptionError` for a start after the end, if the options show it: two offsets or two times."""
    named = sorted(starting.each.keys() | ending.each.keys())
    ranges = [(str(partition), starting.of(partition), ending.of(partition)) for partition in named]
    for where, start, end in ranges or [("every partition", starting.everywhere, ending.everywhere)]:
        match start, end:
            case (AtOffset(first), AtOffset(last)) | (AtTime(first), AtTime(last)) if first > last:
                kind = "timestamp" if isinstance(start, AtTime) else "offset"
                raise invalid_option(
                    starting.option,
                    starting.shown,
                    f"no start beyond the end. The specified start {kind} {first} is greater than the end {kind} {last}"
                    f" for {where} (option '{ending.option}')",
                )


def _check_required(values: Mapping[str, object], reads: Reads | None) -> None:
    """Raise `OptionError` for a missing option."""
    servers = _BY_KEY["kafka.bootstrap.servers"]
    if values[servers.name] is None:
        raise OptionError(errors.OPTION_MISSING, option=servers.name, meaning=servers.doc)
    if reads is Reads.STREAM and values["kafka.group.id"] is None:
        raise OptionError(errors.OPTION_MISSING, option="kafka.group.id", meaning="the consumer group to join.")


def _check_strategies(values: Mapping[str, object], client: Mapping[str, str], strategy: str | None) -> None:
    """Raise `OptionError` for strategies that do not exist, or that have no effect with the other options."""
    names = values["assignors"]
    remote = client.get("group.remote.assignor")
    consumer = group_protocol(client) is GroupProtocol.CONSUMER
    if remote is not None and not consumer:
        raise conflict(
            "kafka.group.remote.assignor",
            remote,
            "kafka.group.protocol",
            "classic",
            "only under KIP-848 the broker assigns partitions; use kafka.partition.assignment.strategy or assignors.",
        )
    if not isinstance(names, tuple):
        return
    shown = ",".join(names)
    for other, value, reason in (
        (
            "kafka.group.protocol", "consumer" if consumer else None,
            "under KIP-848 the broker assigns partitions, set by kafka.group.remote.assignor.",
        ),
        ("kafka.partition.assignment.strategy", strategy, "both set the strategies that the member offers."),
    ):  # fmt: skip
        if value is not None:
            raise conflict("assignors", shown, other, str(value), reason)
    try:
        common_protocol(find_all(names))
    except (AssignorNotFound, SameName, ProtocolConflict) as error:
        raise OptionError(errors.ASSIGNORS_UNUSABLE, value=shown, reason=str(error)) from None


def _check_effects(values: Mapping[str, object], given: Mapping[str, str]) -> None:
    """Raise `OptionError` for options that would have no effect beside the others.

    Strategies that do not read memberWeight or memberRedundancy are accepted: a group that changes its strategy can
    keep its other options.
    """
    for name, (others, wanted) in _READ_BESIDE.items():
        value = given.get(name.lower())
        if value is not None and all(values[other] is None for other in others):
            raise OptionError(
                errors.OPTION_REFUSED, option=name, value=value,
                reason=f"it has no effect without {' or '.join(others)}.",
                replacement=f"set {wanted}, or leave {name} out.",
            )  # fmt: skip
    for name in _OF_MEMBERS if values["assign"] is not None else ():
        if name.lower() in given:
            reason = "a query with 'assign' joins no group."
            raise conflict(name, given[name.lower()], "assign", given["assign"], reason)


def _check_subscription(values: Mapping[str, object], given: Mapping[str, str]) -> None:
    """Raise `OptionError` unless exactly one of the options that select topics is given."""
    found = [name for name in _SUBSCRIPTIONS if values[name] is not None]
    choices = ", ".join(_SUBSCRIPTIONS)
    if not found:
        meaning = f"to select what to read, one of these options must be specified: {choices}. {_TO_WRITE}"
        raise OptionError(errors.OPTION_MISSING, option="subscribe", meaning=meaning)
    if len(found) > 1:
        options = " and ".join(f"'{name}' (value '{given[name.lower()]}')" for name in found)
        reason = f"only one of these options can be specified: {choices}."
        raise OptionError(errors.OPTION_CONFLICT, options=options, reason=reason)


def _check_instance_id(given: Mapping[str, str]) -> None:
    """Raise `OptionError` for an instance id that the client would change: two members with one id fence each other."""
    name = "kafka.group.instance.id"
    if name in given:
        try:
            group_name(given[name])
        except ValueError:
            allowed = "an id without white space at its ends and without a zero byte"
            raise invalid_option(name, given[name], allowed) from None


def _subscription(values: Mapping[str, object]) -> Subscription:
    name = next(name for name in _SUBSCRIPTIONS if values[name] is not None)
    value = values[name]
    if not isinstance(value, tuple):
        return Subscription(pattern=str(value))
    if name == "subscribe":
        return Subscription(topics=value)
    return Subscription(tuple(dict.fromkeys(partition.topic for partition in value)), partitions=value)


def _position(values: Mapping[str, object], given: Mapping[str, str], kind: str, default: Start) -> Starting:
    """Return the position of the first starting (or ending) option that is given, as in Spark."""
    names = (f"{kind}Timestamp", f"{kind}OffsetsByTimestamp", f"{kind}Offsets")
    option = next((name for name in names if values[name] is not None), f"{kind}Offsets")
    found = values[option]
    position = found if isinstance(found, Starting) else Starting(default)
    return replace(position, option=option, text=given.get(option.lower(), str(default)))


def _check_max_batch(values: Mapping[str, object]) -> None:
    """Raise `OptionError` for maxBatchMs without a commit log, where a batch ends only at the next trigger."""
    value = values["maxBatchMs"]
    if value is not None and values["checkpointLocation"] is None:
        raise OptionError(
            errors.OPTION_REFUSED, option="maxBatchMs", value=str(value),
            reason="without option checkpointLocation the source cannot detect the end of a batch.",
            replacement="give the source the writer's checkpointLocation, or leave maxBatchMs out.",
        )  # fmt: skip


def _check_on_conflict(given: Mapping[str, str]) -> None:
    """Raise `OptionError` for a value of version 0.2."""
    value = given.get("onconflict")
    if value is not None and value.lower() == "checkpoint":
        raise OptionError(
            errors.OPTION_REFUSED, option="onConflict", value=value,
            reason="a checkpoint does not win over offsets that another program has set.",
            replacement="leave it out, or set onConflict=fail; to continue from other offsets, use groupkafka reset.",
        )  # fmt: skip


def _assemble(
    values: Mapping[str, object],
    given: Mapping[str, str],
    client: Mapping[str, str],
    executor: Mapping[str, str],
    reads: Reads | None,
) -> SourceOptions:
    names: tuple[str, ...] = values["assignors"] or ()  # type: ignore[assignment]
    if names and librdkafka_has(names):
        client = {**client, "partition.assignment.strategy": ",".join(names)}
    max_poll_interval_ms = interval_ms(client, "max.poll.interval.ms")
    drain_timeout_ms: int | None = values["drainTimeoutMs"]  # type: ignore[assignment]
    if drain_timeout_ms is not None and drain_timeout_ms > max_poll_interval_ms:
        allowed = f"0 to kafka.max.poll.interval.ms ({max_poll_interval_ms})"
        raise invalid_option("drainTimeoutMs", str(drain_timeout_ms), allowed)
    _check_max_batch(values)
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if isinstance(least, int) and isinstance(most, int) and least > most:
        allowed = f"1 to {most}; it is higher than the maxOffsetsPerTrigger({most})"
        raise invalid_option("minOffsetsPerTrigger", str(least), allowed)
    combined: dict[str, object] = {
        "group_id": values["kafka.group.id"] or "",
        "subscription": _subscription(values),
        "starting": _position(values, given, "starting", AtEdge(latest=reads is not Reads.BATCH)),
        "ending": _position(values, given, "ending", AtEdge(latest=True)),
        "drain_timeout_s": (0.8 * max_poll_interval_ms if drain_timeout_ms is None else drain_timeout_ms) / 1000,
        "session_timeout_s": interval_ms(client, "session.timeout.ms") / 1000,
        "heartbeat_interval_s": interval_ms(client, "heartbeat.interval.ms") / 1000,
        "rebalance_timeout_s": max_poll_interval_ms / 1000,
        "group_protocol": group_protocol(client),
        "assignors": names,
        "client_settings": dict(client),
        "executor_settings": dict(executor),
    }
    single = {spec.field: _in_seconds(spec, values[spec.name]) for spec in OPTIONS if spec.field is not None}
    return SourceOptions(**single, **combined)  # type: ignore[arg-type]


def _in_seconds(spec: OptionSpec, value: object) -> object:
    """Return the value of an option, in seconds if its name says milliseconds."""
    return value / 1000 if spec.name.endswith("Ms") and isinstance(value, int) else value
