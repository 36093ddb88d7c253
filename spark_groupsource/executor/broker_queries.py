"""What a consumer asks the brokers besides records, and what they have said of the client itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from spark_groupsource.executor.clients.port import FetchClient, RequestFailed, TopicDenied, TopicInquiry, TopicUnknown
from spark_groupsource.executor.read_errors import denied, refused, unreadable
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# How long a moved consumer may wait for what the cluster says about a new topic; by itself it waits up to 1 s.
_METADATA_TIMEOUT_S = 1.0
# What a broker says, as opposed to silence.
_ANSWERS = (TopicDenied, TopicUnknown)


class Inquiries:
    """One client's. `reason` is why nothing came, as far as it was last said; empty when nothing was.

    `options` are those of the query that it reads for now: errors name them.
    """

    def __init__(self, client: FetchClient, options: SourceOptions) -> None:
        self._client = client
        self.options = options
        self._met: frozenset[str] = frozenset()
        self._refused = ""
        self.reason = ""

    def answered(self) -> None:
        """A broker has answered: an identity that was refused before is not refused now."""
        self._refused = ""

    def refuse(self, reason: str) -> None:
        """A broker does not take the client for who it says it is; maybe it has not, and does by now."""
        self.reason = self._refused = reason

    def check_identity(self) -> None:
        """Raise `AccessError` when the client was refused, and nothing was answered since."""
        # R66: refused, and nothing was answered since
        if self._refused:
            raise refused(self.options, self._refused)

    def meet(self, topics: frozenset[str]) -> None:
        """Make a moved consumer ask for its new topics' leaders at once.

        A client asks for the topics of its first assignment when it connects. For those of a later one it waits
        for its timer of 1 s, in which small batches stand still.
        """
        if self._met:
            for _ in self._asked(topics - self._met):
                # Where it fails, the timer asks again, and the task has a deadline.
                pass
        self._met |= topics

    def unknown(self, topics: Collection[str]) -> tuple[dict[str, str], bool]:
        """Return those of the topics that the broker does not know, with its words, and whether it answered for all.

        Raises `AccessError` for a topic that the client may not know, or when the brokers refuse the client.
        """
        found: dict[str, str] = {}
        for topic, failure in self._asked(topics):
            if isinstance(failure, TopicDenied):
                raise denied(self.options, topic)
            if isinstance(failure, TopicUnknown):
                found[topic] = str(failure)
            elif failure is not None:
                self.check_identity()
                return found, False
        return found, True

    def answers(self, topic: str) -> bool:
        """Whether a broker says anything of a topic."""
        return all(failure is None or isinstance(failure, _ANSWERS) for _, failure in self._asked([topic]))

    def identify(self, topics: Sequence[str], timeout_s: float) -> TopicInquiry:
        """Send a question for the ids that topics have now."""
        return self._client.identify(topics, timeout_s)

    def log_bounds(self, partition: TopicPartition, offset: int, timeout_s: float) -> tuple[int, int]:
        """Return the first offset of the log, which is to be read at `offset`, and its end.

        Raises `ReadError` when the broker does not tell.
        """
        try:
            return self._client.log_bounds(partition, timeout_s)
        except RequestFailed as error:
            raise unreadable(partition, offset, str(error)) from None

    def _asked(self, topics: Collection[str]) -> Iterator[tuple[str, RequestFailed | None]]:
        """Ask where topics' leaders are; yields the topics, and why it failed.

        Ends with the first one that nobody answered for: a task of 300 topics would wait for silent brokers for five
        minutes, whatever its deadline is.
        """
        failure: RequestFailed | None
        for topic in sorted(topics):
            try:
                self._client.learn(topic, _METADATA_TIMEOUT_S)
            except RequestFailed as error:
                failure, self.reason = error, str(error)
            else:
                failure = None
            answered = failure is None or isinstance(failure, _ANSWERS)
            if answered:
                self.answered()
            yield topic, failure
            if not answered:
                return
