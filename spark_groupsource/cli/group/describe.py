"""Describe a group: state, members, assignment, and the raw bytes that members of a classic group exchange.

confluent-kafka returns everything but these bytes. kafka-python's admin client returns them, if it is installed (the
extra `assignors`). Without them the command shows the rest: a failure of the second client is no error of the command.
A note reports what is missing, except where only the extra is, and the group has one of Kafka's usual strategies.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import ConsumerGroupDescription  # type: ignore[attr-defined]

from spark_groupsource import errors
from spark_groupsource.assignors.notes import LeaderNote, MemberNote, WireError
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.group.member_data import MemberData
from spark_groupsource.cli.group.view import DescribedMember, GroupDescription
from spark_groupsource.errors import AccessError, CommandError
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import LIBRDKAFKA_STRATEGIES
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.redaction import masked

EXTRA_MISSING = (
    "the data that members report to each other (weights, racks, standby partitions) needs kafka-python"
    " (the extra of groupkafka[assignors])"
)
# Kafka's own names, where the client's differ in more than spelling.
_STATES: dict[object, str] = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
}
# confluent-kafka has reached the brokers before, so a timeout of this client has another reason.
_SECOND_CLIENT = {"bootstrap_timeout_ms": 10_000, "request_timeout_ms": 10_000}


class GroupDescriber:
    """Requests of the command for a group, to confluent-kafka, and to kafka-python for the members' bytes.

    Errors are those of the catalogue, and every wait has a limit. `make_client` is for tests. It returns a client whose
    `describe_groups` does not decode the response, see `kafka_python_client`. An ImportError means that kafka-python is
    not installed.
    """

    def __init__(
        self, admin: GroupAdmin, options: SourceOptions, make_client: Callable[[SourceOptions], Any] | None = None
    ) -> None:
        self._admin = admin
        self._options = options
        self._group = options.group_id
        self._make_client = make_client or kafka_python_client
        self._client: Any = None
        # Why the client cannot be created. No second attempt: a client that does not connect leaves a thread behind.
        self._hopeless = ""

    def describe_group(self) -> GroupDescription | None:
        """Return the group as its coordinator describes it; None if it does not exist."""
        try:
            answer = _described(self._admin, self._group)
        except CommandError as error:
            if error.condition is errors.GROUP_NOT_OF_CONSUMERS:
                return self._of_others(str(error.parameters["reason"]))
            raise
        if answer is None:
            return None
        description = description_of(answer)
        if answer.type is ConsumerGroupType.CONSUMER or not answer.members:
            # The coordinator does not store these bytes for such a group.
            return description
        raw, why = self._read_raw()
        if raw is not None:
            return with_data(description, raw)
        # With these strategies, members report nothing that decides who gets what.
        is_silent = why == EXTRA_MISSING and description.strategy in LIBRDKAFKA_STRATEGIES
        return description if is_silent else replace(description, notes=(why,))

    def close(self) -> None:
        """Free kafka-python's client; idempotent."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _of_others(self, reason: str) -> GroupDescription:
        """Return a classic group whose members are not consumers; confluent-kafka does not describe it."""
        raw, why = self._read_raw()
        return GroupDescription(self._group, protocol="classic", notes=(reason, why)) if raw is None else raw

    def _read_raw(self) -> tuple[GroupDescription | None, str]:
        """Return the classic group with its members' bytes, or None and the reason for the user."""
        if self._client is None and not self._hopeless:
            try:
                self._client = self._make_client(self._options)
            except ImportError:
                self._hopeless = EXTRA_MISSING
            except Exception as error:  # noqa: BLE001 - it has its own errors for settings, TLS, SASL and timeouts
                self._hopeless = _trouble(error)
        if self._client is None:
            return None, self._hopeless
        try:
            answer = self._client.describe_groups([self._group])[self._group]
        except Exception as error:  # noqa: BLE001 - see above
            return None, self._given_up(error)
        if answer.error_code:
            return None, self._given_up(f"DescribeGroups returned error {answer.error_code}")
        return raw_group(answer), ""

    def _given_up(self, reason: object) -> str:
        # The next attempt needs a new client, because this one continues to ask the coordinator that it knows.
        self.close()
        return _trouble(reason)


def _described(admin: GroupAdmin, group: str) -> ConsumerGroupDescription | None:
    """Return the group as its coordinator describes it, with the error of a group that may be another program's."""
    try:
        return admin.described(group)
    except AccessError as error:
        if error.condition is errors.GROUP_ACCESS_DENIED:
            raise AccessError(errors.OTHER_GROUP_ACCESS_DENIED, group=group) from None
        raise


def without_data(admin: GroupAdmin, group: str) -> GroupDescription | None:
    """Return any group of consumers without the data that members report to each other.

    None if it does not exist, or the broker cannot describe groups (embedded).
    """
    try:
        answer = _described(admin, group)
    except CommandError as error:
        if error.condition is errors.COMMAND_UNSUPPORTED:
            return None
        raise
    return None if answer is None else description_of(answer)


def description_of(answer: ConsumerGroupDescription) -> GroupDescription:
    """Convert confluent-kafka's description."""
    is_new = answer.type is ConsumerGroupType.CONSUMER
    return GroupDescription(
        group=answer.group_id,
        state=_STATES.get(answer.state, answer.state.name.capitalize()),
        protocol="consumer" if is_new else "classic",
        protocol_type=None if is_new else "" if answer.is_simple_consumer_group else "consumer",
        strategy=answer.partition_assignor or None,
        coordinator=None if answer.coordinator is None else (
            f"{answer.coordinator.host}:{answer.coordinator.port}", answer.coordinator.id
        ),
        members=tuple(
            DescribedMember(
                member_id=one.member_id,
                client_id=one.client_id,
                host=one.host.lstrip("/"),
                instance_id=one.group_instance_id,
                partitions=_partitions(one.assignment),
                target=None if one.target_assignment is None else _partitions(one.target_assignment),
            )
            for one in sorted(answer.members, key=lambda one: (one.client_id, one.member_id))
        ),
    )  # fmt: skip


def with_data(description: GroupDescription, raw: GroupDescription) -> GroupDescription:
    """Add the members' data to a description; members that joined between the two requests have none yet."""
    found = {member.member_id: member.data for member in raw.members}
    members = tuple(replace(member, data=found.get(member.member_id)) for member in description.members)
    return replace(description, protocol_type=raw.protocol_type, members=members)


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(part.topic, part.partition) for part in assignment.topic_partitions)


def kafka_python_client(options: SourceOptions) -> Any:
    """Return kafka-python's admin client, with a `describe_groups` that does not decode the response.

    It would decode the members' bytes as those of consumers, and fail completely for any other group. Raises
    ImportError without kafka-python, `OptionError` for a setting that it does not have, and kafka-python's own errors.
    """
    # This extra may be missing.
    from kafka.admin import KafkaAdminClient  # noqa: PLC0415

    from spark_groupsource.client.kafka_python_settings import admin_settings  # noqa: PLC0415

    class UndecodedAdmin(KafkaAdminClient):  # type: ignore[misc]
        def _describe_groups_process_response(self, response: Any) -> dict[str, Any]:
            return {group.group_id: group for group in response.groups}

    # The client's errors contain what it logs.
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    return UndecodedAdmin(**(admin_settings(options) | _SECOND_CLIENT))


def raw_group(answer: Any) -> GroupDescription:
    """Convert one group of kafka-python's DescribeGroupsResponse, without what only consumers have."""
    members = [
        DescribedMember(
            one.member_id, one.client_id, one.client_host.lstrip("/"), one.group_instance_id,
            data=decoded(answer.protocol_type, bytes(one.member_metadata or b""), bytes(one.member_assignment or b"")),
        )
        for one in sorted(answer.members, key=lambda one: (one.client_id, one.member_id))
    ]  # fmt: skip
    return GroupDescription(
        answer.group_id, answer.group_state, "classic", answer.protocol_type, answer.protocol_data,
        members=tuple(members),
    )  # fmt: skip


def decoded(protocol_type: str, subscription: bytes, assignment: bytes) -> MemberData | None:
    """Decode the bytes of a member and of its leader. Return None if there are none: only a stable group has them.

    For the protocol type "consumer" they are ConsumerProtocolSubscription and ConsumerProtocolAssignment, both with
    user data. A newer version is read as the newest known one, as Kafka's own clients do.
    """
    from kafka.protocol.consumer.metadata import (  # noqa: PLC0415 - as above
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )

    if not subscription:
        return None
    size = len(subscription)
    if protocol_type != "consumer":
        return MemberData(size)
    try:
        found = ConsumerProtocolSubscription.decode(subscription)
        of_leader = ConsumerProtocolAssignment.decode(assignment).user_data if assignment else None
    except (ValueError, struct.error):
        # A program that uses the type "consumer" with another format.
        return MemberData(size)
    user_data = found.user_data or b""
    note, leader = None, LeaderNote()
    with suppress(WireError):
        leader = LeaderNote.decode(of_leader or b"")
    with suppress(WireError):
        note = MemberNote.decode(user_data) if user_data else None
    owned = frozenset(
        TopicPartition(part.topic or "", number) for part in found.owned_partitions for number in part.partitions
    )
    foreign_size = 0 if note is not None else len(user_data)
    return MemberData(
        size,
        True,
        tuple(topic or "" for topic in found.topics),
        owned,
        found.generation_id,
        found.rack_id,
        note,
        foreign_size,
        leader,
    )


def _trouble(error: object) -> str:
    # One line: errors of TLS and of several brokers have more.
    reason = " ".join(masked(str(error) or type(error).__name__).split())
    return f"the data that members report to each other is not known: {reason}"
