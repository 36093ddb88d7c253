"""Send the command line's requests to a group and its cluster, as a client that is no member.

Every request has a time limit. Errors are those of the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConsumerGroupDescription,
    DescribeClusterResult,
)

from spark_groupsource import errors
from spark_groupsource.client.answers import decoded_offsets
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S, kafka_error, map_error
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.admin import AdminRequests
from spark_groupsource.errors import CommandError
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, requests_of
from spark_groupsource.model.names import first_names
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Errors with which a coordinator rejects commits from outside of a group that has members.
_HAS_MEMBERS = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.NON_EMPTY_GROUP,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.STALE_MEMBER_EPOCH,
}
# The group's coordinator is being found, or moves: retried until the deadline.
_PASSING = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_RETRY_PAUSE_S = 0.2
# Number of partitions that an error names.
_NAMES_SHOWN = 50


class GroupAdmin:
    """Requests of the commands to a group, on confluent-kafka's AdminClient."""

    def __init__(self, options: SourceOptions, clock: Clock, pause: Callable[[float], object]) -> None:
        self._options = options
        self._clock = clock
        self._pause = pause
        self._group = options.group_id
        self._requests = AdminRequests(options, clock)
        # A wrong setting is an error here, not at each request.
        self._requests.client()

    def group_names(self) -> list[str]:
        """Return all groups of consumers that the client may describe, also those without members.

        Raises the first broker's error if any broker does not answer: its groups would be missing.
        """
        try:
            # Each broker lists its own groups, and the client does not renew its list of brokers by itself.
            self._requests.client().list_topics(timeout=CONTACT_TIMEOUT_S)
            answer = self._ask(lambda client: client.list_consumer_groups(request_timeout=CONTACT_TIMEOUT_S))
        except KafkaException as error:
            raise self._mapped(error, "ListGroups") from None
        if answer.errors:
            raise self._mapped(KafkaException(answer.errors[0]), "ListGroups")
        return sorted(group.group_id for group in answer.valid)

    def member_names(self) -> tuple[str, ...]:
        """Return the live members as text for users; empty if the group does not exist."""
        group = self.described()
        return () if group is None else tuple(f"{one.client_id} on {one.host.lstrip('/')}" for one in group.members)

    def is_simple(self) -> bool:
        """Return whether the group never had a member: queries with option assign, or tools, wrote its offsets."""
        group = self.described()
        return group is not None and group.is_simple_consumer_group

    def described(self, group: str | None = None) -> ConsumerGroupDescription | None:
        """Return the group, or another one, as its coordinator describes it; None if it does not exist.

        Raises `CommandError` for a group of another kind, such as that of Kafka Connect's workers.
        """
        try:
            found = self.ask_description(group)
        except KafkaException as error:
            if _code(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return None
            if _code(error) == KafkaError._INVALID_ARG:
                reason = kafka_error(error).str()
                name = group or self._group
                raise CommandError(errors.GROUP_NOT_OF_CONSUMERS, group=name, reason=reason) from None
            raise self._mapped(error, "DescribeGroups") from None
        # Older brokers describe a group that does not exist as dead.
        return None if found.state is ConsumerGroupState.DEAD and not found.members else found

    def ask_description(self, group: str | None = None, *, with_rights: bool = False) -> ConsumerGroupDescription:
        """Return the group, or another one, as its coordinator describes it.

        `with_rights` adds the operations that the caller may do.

        Raises KafkaException unmapped, for callers that handle it themselves.
        """
        name = group or self._group
        found: ConsumerGroupDescription = self._ask(
            lambda client: client.describe_consumer_groups(
                [name], include_authorized_operations=with_rights, request_timeout=CONTACT_TIMEOUT_S
            )[name]
        )
        return found

    def group_offsets(self) -> dict[TopicPartition, GroupOffset]:
        """Return all committed offsets of the group.

        Raises `CommandError` for a broker that lists none: it describes no groups either (the embedded one).
        """
        request = [ConsumerGroupTopicPartitions(self._group)]

        def ask() -> list[ClientPartition]:
            answer = self._ask(
                lambda client: client.list_consumer_group_offsets(request, request_timeout=CONTACT_TIMEOUT_S)[
                    self._group
                ]
            )
            failed = [part for part in answer.topic_partitions if part.error is not None]
            if failed:
                raise self._mapped(KafkaException(failed[0].error), "OffsetFetch", failed[0].topic)
            return [part for part in answer.topic_partitions if part.offset >= 0]

        try:
            found = decoded_offsets(ask)
        except KafkaException as error:
            if _code(error) == KafkaError.GROUP_ID_NOT_FOUND:
                return {}
            raise self._mapped(error, "OffsetFetch") from None
        if not found:
            self.described()
        return found

    def commit(self, items: Sequence[CommitItem]) -> None:
        """Commit all offsets, in as many requests as needed.

        Raises `CommandError` if the coordinator rejects any, and `KafkaUnavailableError` if it does not answer: the
        offsets may then have been committed.
        """
        requests = list(requests_of(items))
        refused: list[tuple[TopicPartition, str]] = []
        for number, request in enumerate(requests):
            try:
                refused += self._commit(request)
            except CommandError:
                if number == 0:
                    raise
                # The offsets of the earlier requests remain committed.
                reason = f"members have joined the group since the first of {len(requests)} requests was accepted"
                refused += [(item.partition, reason) for later in requests[number:] for item in later]
                break
        if refused:
            shown = first_names([partition for partition, _ in refused], _NAMES_SHOWN)
            raise CommandError(errors.COMMIT_REFUSED, partitions=shown, reason=refused[0][1])

    def _commit(self, items: Sequence[CommitItem]) -> list[tuple[TopicPartition, str]]:
        """Send one request. Return the rejected partitions with their reasons."""
        parts = [
            ClientPartition(item.partition.topic, item.partition.partition, item.offset, metadata=item.metadata)
            for item in items
        ]
        request = [ConsumerGroupTopicPartitions(self._group, parts)]
        try:
            answer = self._ask(
                lambda client: client.alter_consumer_group_offsets(request, request_timeout=CONTACT_TIMEOUT_S)[
                    self._group
                ]
            )
        except KafkaException as error:
            raise self._refused(error) from None
        refused = [(part, part.error) for part in answer.topic_partitions if part.error is not None]
        if any(error.code() in _HAS_MEMBERS for _, error in refused):
            raise self._refused(KafkaException(refused[0][1]))
        return [(TopicPartition(str(part.topic), int(part.partition)), error.str()) for part, error in refused]

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        return str(self.describe_cluster().cluster_id)

    def describe_cluster(self) -> DescribeClusterResult:
        """Return the cluster's id and its brokers."""
        try:
            found: DescribeClusterResult = self._ask(
                lambda client: client.describe_cluster(request_timeout=CONTACT_TIMEOUT_S)
            )
        except KafkaException as error:
            raise self._mapped(error, "DescribeCluster") from None
        return found

    # --- helpers

    def _ask(self, send: Callable[[AdminClient], Future[Any]]) -> Any:
        """Send a request; repeat it while the coordinator is not available yet.

        Guards against:
        1. The brokers refuse the exporter's identity: its token has expired. A minute later there is a new one.
        2. No later answer is there at once, because its client has to connect first.
        3. As long as the refusal counts, all requests fail.
        """
        if self._requests.transport.refused_for_good:
            self._requests.forget()
            self._requests = AdminRequests(self._options, self._clock)
        deadline = Deadline(self._clock, CONTACT_TIMEOUT_S)
        self._requests.patience.begin()
        while True:
            try:
                answer = self._requests.answer(send(self._requests.client()), self._requests.patience)
            except KafkaException as error:
                if _code(error) == KafkaError._TIMED_OUT:
                    self._requests.forget()
                if _code(error) not in _PASSING or deadline.expired():
                    raise
                self._pause(_RETRY_PAUSE_S)
            else:
                self._requests.transport.worked()
                return answer

    def _refused(self, error: KafkaException) -> Exception:
        if _code(error) in _HAS_MEMBERS:
            # Members joined after the command's check.
            return CommandError(
                errors.GROUP_HAS_MEMBERS, group=self._group, members="the coordinator rejected a non-member's commit"
            )
        return self._mapped(error, "OffsetCommit")

    def _mapped(self, error: KafkaException, request: str, topic: str = "?") -> Exception:
        self._requests.hear()
        if _code(error) == KafkaError._UNSUPPORTED_FEATURE:
            servers = self._options.bootstrap_servers
            return CommandError(errors.COMMAND_UNSUPPORTED, servers=servers, request=request)
        return map_error(self._options, kafka_error(error), request, self._requests.transport, (topic,))


def _code(error: KafkaException) -> int:
    return kafka_error(error).code()
