"""Query brokers for topics, topic ids and log bounds, and record whether they refuse the client's identity."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from spark_groupsource.client.errors import lacking_resources, not_authenticated, topics_denied
from spark_groupsource.client.tokens import provider_recovers
from spark_groupsource.executor.clients.port import (
    FetchClient,
    RequestFailed,
    TopicDenied,
    TopicUnknown,
)
from spark_groupsource.executor.topic_ids import AdminClients, TopicIdRequest
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Timeout of a metadata request for a new topic. Without the request the client waits up to 1 s for its own timer.
_METADATA_TIMEOUT_S = 1.0
# Failures that are an answer from a broker, as opposed to no answer.
_ANSWERS = (TopicDenied, TopicUnknown)


class BrokerRequests:
    """Send the queries of one client.

    `reason` is the last reported reason why no records arrive, empty if there is none. `refused` is the same while a
    broker refuses the client's identity, and none has answered since. `options` are those of the query that currently
    reads with the client, whose client settings are the same: errors name them.
    """

    def __init__(self, client: FetchClient, options: SourceOptions, admins: AdminClients) -> None:
        self._client = client
        self.options = options
        self._admins = admins
        self._known_topics: frozenset[str] = frozenset()
        self.refused = ""
        self.reason = ""

    def answered(self) -> None:
        """Record that a broker has answered: an earlier refusal of the client's identity no longer holds."""
        self.refused = ""

    def check_identity(self) -> None:
        """Raise `AccessError` if the client was refused and no broker has answered since.

        Not while a token provider may recover: the refusal is its failure.

        Guards against (rule R66):
        1. A provider of tokens is away for a second. A connection is refused.
        2. The client connects again with a new token.
        3. The task, and with it the query, would have failed for nothing.
        """
        # R66: refused, and nothing was answered since
        if self.refused and not provider_recovers(self.options.token_login):
            raise not_authenticated(self.options, self.refused)

    def check_resources(self) -> None:
        """Raise `KafkaUnavailableError` if nothing comes because the client has no thread for a broker.

        Guards against:
        1. A client gets no thread for one of many brokers.
        2. A task reads partitions of the others. Their records take a moment to arrive.
        3. The task, and with it the query, would have failed for nothing.
        """
        if error := lacking_resources(self.reason):
            raise error

    def request_new_leaders(self, topics: frozenset[str]) -> None:
        """Request the leaders of topics that are new to this client, without waiting for its timer.

        A client requests the leaders of its first assignment when it connects. For topics of a later assignment it
        waits for its timer of 1 s, which delays small batches.
        """
        if self._known_topics:
            for _ in self._asked(topics - self._known_topics):
                # On failure the timer repeats the request. The task has a deadline.
                pass
        self._known_topics |= topics

    def request_moved_leaders(self, topics: frozenset[str]) -> bool:
        """Request the leaders of those topics that the client knows already. Return whether brokers have answered."""
        return self.can_reach(topics & self._known_topics)

    def unknown(self, topics: Collection[str]) -> tuple[dict[str, str], bool]:
        """Return the unknown topics with the broker's error text, and whether the brokers answered for all topics.

        Raises `AccessError` for a topic that the client may not describe, or if the brokers refuse the client.
        """
        found: dict[str, str] = {}
        for topic, failure in self._asked(topics):
            if isinstance(failure, TopicDenied):
                raise topics_denied(self.options, [topic])
            if isinstance(failure, TopicUnknown):
                found[topic] = str(failure)
            elif failure is not None:
                self.check_identity()
                return found, False
        return found, True

    def can_reach(self, topics: Collection[str]) -> bool:
        """Return whether brokers answer a request for each of the topics, be it with an error."""
        return all(failure is None or isinstance(failure, _ANSWERS) for _, failure in self._asked(topics))

    def request_topic_ids(self, topics: Sequence[str], timeout_s: float) -> TopicIdRequest:
        """Send a request for the current ids of topics."""
        return TopicIdRequest(self.options, topics, timeout_s, self._admins)

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the first offset and the end offset of the partition's log. Raises `RequestFailed`."""
        return self._client.log_bounds(partition, timeout_s)

    def _asked(self, topics: Collection[str]) -> Iterator[tuple[str, RequestFailed | None]]:
        """Request the leaders of topics. Yield each topic with its failure, None on success.

        Stops at the first topic without an answer. Otherwise a task of 300 topics would wait five minutes for silent
        brokers, whatever its deadline.
        """
        failure: RequestFailed | None
        for topic in sorted(topics):
            try:
                self._client.request_leaders(topic, _METADATA_TIMEOUT_S)
            except RequestFailed as error:
                failure = error
            else:
                failure = None
            answered = failure is None or isinstance(failure, _ANSWERS)
            if failure is not None and (answered or not self.reason):
                # What the client has reported explains more than a request without an answer.
                self.reason = str(failure)
            if answered:
                self.answered()
            yield topic, failure
            if not answered:
                return
