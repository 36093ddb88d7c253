"""Implement the group client on kafka-python 3, for assignment strategies that librdkafka does not have.

Translates between `GroupPort` and the client, and decides nothing. The client's I/O thread and the thread that polls it
put events into a queue (`poller.py`). The membership thread handles and answers them in `poll` and `close`.

A commit is one request under the generation of that moment, and never repeated here (rule R21).
"""

from __future__ import annotations

import functools
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as client_errors
from kafka.structs import MemberState, OffsetAndMetadata
from kafka.structs import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.assignors.interface import Assignor, MemberSettings, RebalanceProtocol
from spark_groupsource.assignors.notes import LeaderNote
from spark_groupsource.assignors.rounds import Again
from spark_groupsource.client.errors import not_authenticated
from spark_groupsource.client.kafka_python_settings import member_consumer_settings, named_in, quiet
from spark_groupsource.clock import Clock, Deadline, SystemClock
from spark_groupsource.errors import GroupKafkaError, MembershipError, OptionError
from spark_groupsource.membership.backends.kafka_python.assignor import Holdings, client_assignors
from spark_groupsource.membership.backends.kafka_python.errors import (
    classify_refusal,
    fatal,
    is_refused_identity,
    refused_commit,
    unreachable,
)
from spark_groupsource.membership.backends.kafka_python.identity import Identity
from spark_groupsource.membership.backends.kafka_python.peers import others
from spark_groupsource.membership.backends.kafka_python.poller import Callbacks, Happened, Kind, Poller
from spark_groupsource.membership.backends.kafka_python.private import Internals
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.port import CommitResult, MemberListener, Refusal
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)

# Seconds between two checks, while the member closes, for events of the client.
_STEP_S = 0.01
# Seconds that a member without any partition so far waits while the strategy refuses.
_REFUSAL_S = 15.0
# Seconds that a leader waits for a topic's metadata before it requests another round.
_METADATA_WAIT_S = 10.0
# Seconds. Longer than any request's own timeout: kafka.session.timeout.ms unless kafka.socket.timeout.ms is set.
_ANSWER_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Part:
    """The partitions that the leader gave this member, and its note."""

    active: frozenset[TopicPartition]
    note: LeaderNote


class KafkaPythonGroup:
    """Implement `GroupPort` on `kafka.KafkaConsumer`. Offers the strategies of `offered`, the preferred one first."""

    # Set by `open`, which creates the client: nothing is reported before.
    _listener: MemberListener

    def __init__(
        self,
        options: SourceOptions,
        offered: Sequence[Assignor | str],
        protocol: RebalanceProtocol,
        settings: MemberSettings,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._offered = tuple(offered)
        self._protocol = protocol
        self._settings = settings
        self._internals: Internals | None = None
        self._poller: Poller | None = None
        self._callbacks: Callbacks | None = None
        # Filled by the client's threads, emptied by the membership thread.
        self._events: queue.SimpleQueue[Happened | CommitResult | Part] = queue.SimpleQueue()
        self._passing = ""
        self._heartbeat_s = float("-inf")
        self._clock = clock or SystemClock()
        self._identity = Identity(options.token_login, self._clock)
        # Whether the member has ever had a partition. Why the strategy refuses, and the deadline of the wait for it.
        self._served = False
        self._refusal = ""
        self._refused_until: Deadline | None = None

    @property
    def incremental(self) -> bool:
        """See `GroupPort`."""
        return self._protocol is RebalanceProtocol.COOPERATIVE

    @property
    def member_id(self) -> str:
        """See `GroupPort`."""
        member_id: str = self._opened().consumer.group_metadata().member_id
        return member_id

    @property
    def generation(self) -> bytes:
        """See `GroupPort`. This client joins only in a poll, and none is made during a revoke."""
        return b""

    # --- life

    def open(self, listener: MemberListener) -> None:
        """See `GroupPort`."""
        self._listener = listener
        quiet()
        settings = member_consumer_settings(self._options)
        holdings = Holdings(self._protocol, self._settings, lambda active, note: self._events.put(Part(active, note)))
        settings["partition_assignment_strategy"] = client_assignors(self._offered, holdings)
        self._callbacks = Callbacks(self._events.put, holdings.lost, holdings.gave_up)
        settings["kafka_client"] = self._identity.make_client
        try:
            internals = Internals(KafkaConsumer(**settings))
        except ImportError as error:
            shown = ",".join(self._options.assignors)
            raise OptionError(errors.ASSIGNORS_NOT_INSTALLED, value=shown, reason=str(error)) from None
        except (client_errors.KafkaConfigurationError, ValueError, TypeError) as error:
            raise self._refused(error) from None
        except (client_errors.KafkaError, OSError) as error:
            self._identity.learn()
            raise unreachable(self._options, error, self._identity.transport) from None
        self._identity.opened()
        if internals.is_cooperative is not self.incremental:
            raise RuntimeError(f"the client's rebalance protocol is not {self._protocol.name}")
        self._internals = internals
        self._poller = Poller(
            internals, self._callbacks, self._events.put, again_after_s=lambda: self._again_after_s(holdings.again)
        )

    def _refused(self, error: Exception) -> GroupKafkaError:
        option, value = named_in(self._options, str(error))
        return OptionError(errors.CLIENT_REFUSED_OPTION, option=option, value=value, reason=f"kafka-python: {error}")

    def _again_after_s(self, again: Again) -> float | None:
        return {Again.NO: None, Again.SOON: _METADATA_WAIT_S, Again.LATE: self._options.rebalance_timeout_s}[again]

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort`."""
        self._opened().consumer.subscribe(topics=sorted(topics), listener=self._callbacks)
        if self._poller is not None:
            self._poller.start()

    def poll(self) -> None:
        """See `GroupPort`."""
        self._serve()
        if self._refused_until is not None and self._refused_until.expired():
            group = self._options.group_id
            self._listener.on_error(MembershipError(errors.ASSIGNMENT_REFUSED, group=group, reason=self._refusal))
        if self._internals is not None:
            self._listener.on_coordinator(self._internals.coordinator_known)
            self._check_identity(self._internals.heartbeat_answered_s)

    def _check_identity(self, answered_s: float) -> None:
        """Report an identity that is refused for good; see `TransportState`."""
        self._identity.learn()
        if answered_s > self._heartbeat_s:
            self._heartbeat_s = answered_s
            self._identity.transport.worked()
        if self._identity.transport.refused_for_good:
            self._listener.on_error(not_authenticated(self._options, self._identity.transport.text))

    def stay_out(self) -> None:
        """See `GroupPort`."""
        if self._internals is not None:
            # R111: the client would join in the poll that reports the loss or the revoke
            self._internals.refuse_to_join()

    def _serve(self) -> None:
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            self._handle(event)

    def close(self) -> None:
        """See `GroupPort`. The client first gives up its partitions, whose callback this thread must serve.

        If the listener raises, call `close` again: it continues there. Otherwise the client's next callback would wait
        forever, and the member would keep its partitions.
        """
        poller = self._poller
        if poller is None:
            return
        poller.request_close()
        pause = threading.Event()
        while not poller.ended:
            self._serve()
            pause.wait(_STEP_S)
        self._poller = None
        try:
            self._serve()
        finally:
            self._internals = None

    # --- events

    def _handle(self, event: Happened | CommitResult | Part) -> None:
        if isinstance(event, CommitResult):
            if event.acknowledged:
                self._identity.transport.worked()
            self._listener.on_commit_result(event)
        elif isinstance(event, Part):
            self._report_part(event)
        else:
            try:
                self._report(event)
            finally:
                if event.answer is not None and self._internals is not None:
                    self._internals.call_soon(event.answer.success, None)

    def _report_part(self, part: Part) -> None:
        """Report the leader's note to the listener.

        If the strategy refuses, a member without any partition so far has nothing to read. It waits `_REFUSAL_S` before
        it fails: topics that must be alike are created, or get partitions, one after the other.
        """
        self._listener.on_note(tuple(sorted(part.note.standby)), part.note.error)
        if not part.note.error:
            # An empty part may come from a leader that knows no topic yet.
            self._served, self._refused_until = self._served or bool(part.active), None
        elif not self._served and not part.active:
            self._refusal = part.note.error
            self._refused_until = self._refused_until or Deadline(self._clock, _REFUSAL_S)

    def _report(self, event: Happened) -> None:
        match event.kind:
            case Kind.ASSIGNED:
                self._identity.transport.worked()
                self._listener.on_assigned(event.partitions)
            case Kind.REVOKED:
                self._listener.on_revoked(event.partitions)
            case Kind.LOST:
                self._listener.on_lost(event.partitions)
            case Kind.FAILED:
                self._on_error(event.error or RuntimeError("unknown"))

    def _on_error(self, error: BaseException) -> None:
        if isinstance(error, client_errors.InconsistentGroupProtocolError):
            mapped: GroupKafkaError | None = self._nothing_in_common()
        elif is_refused_identity(error):
            # It may pass: `poll` reports one that does not. The connection of the request has reported it already.
            mapped = None
        else:
            mapped = fatal(self._options, error)
        if mapped is not None:
            self._listener.on_error(mapped)
        elif str(error) != self._passing:
            self._passing = str(error)
            LOG.info("member error, the client tries again: group=%s error=%s", self._options.group_id, error)

    def _nothing_in_common(self) -> GroupKafkaError:
        offered = ", ".join(each if isinstance(each, str) else each.wire_name for each in self._offered)
        return MembershipError(
            errors.NO_COMMON_STRATEGY, group=self._options.group_id, offered=offered, others=others(self._options)
        )

    # --- partitions and offsets

    def accept(self, partitions: Partitions) -> None:
        """See `GroupPort`. The client has them already, and fetches nothing."""

    def release(self, partitions: Partitions) -> None:
        """See `GroupPort`. The client releases them when its callback returns."""

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """See `GroupPort`.

        Sends nothing while the client joins. A broker answers a connection's requests in order, so this one would wait
        for the JoinGroup, which waits for the group's slowest member. If it times out, the client closes the
        connection, which ends the JoinGroup, too.
        """
        internals = self._opened()
        if internals.consumer.group_metadata().state == MemberState.REBALANCING:
            return {}
        wanted = [ClientPartition(*partition) for partition in partitions]
        try:
            answers = internals.fetch_committed(wanted, round(timeout_s * 1000))
        except client_errors.KafkaError as error:
            LOG.info("offset fetch failed and is repeated: group=%s error=%s", self._options.group_id, error)
            return {}
        found = {}
        for partition in partitions:
            answer = answers.get(ClientPartition(*partition))
            found[partition] = GroupOffset(None, "") if answer is None else _group_offset(answer)
        return found

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """See `GroupPort`."""
        self._send(tuple(items)).add_both(self._events.put)

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """See `GroupPort`."""
        done, found = threading.Event(), []

        def answered(result: CommitResult) -> None:
            found.append(result)
            done.set()

        self._send(tuple(items)).add_both(answered)
        # The client reports every request, at the latest when it times out, unless its I/O thread has died.
        if not done.wait(_ANSWER_TIMEOUT_S):
            return CommitResult(refused=tuple((item, Refusal.UNCERTAIN) for item in items), reason="no answer")
        return found[0]

    def _send(self, items: tuple[CommitItem, ...]) -> Any:
        return self._opened().call_soon(self._commit, items)

    async def _commit(self, items: tuple[CommitItem, ...]) -> CommitResult:
        """Send one request. The client's I/O thread only. Never raises: no caller would get the exception."""
        try:
            await self._opened().send_commit(_client_items(items))
        except BaseException as error:  # noqa: BLE001 - it is the answer
            refusal = classify_refusal(error)
            topics = sorted({item.partition.topic for item in items})
            if refusal is not Refusal.NO_TOPIC or len(topics) == 1:
                return refused_commit(self._options, error, items)
        else:
            return CommitResult(acknowledged=items)
        # The client reports only the first error of a request. One topic is missing, so each topic is sent alone.
        each = [await self._commit(tuple(i for i in items if i.partition.topic == topic)) for topic in topics]
        return functools.reduce(CommitResult.and_also, each)

    def _opened(self) -> Internals:
        if self._internals is None:
            raise MembershipError(errors.MEMBER_FAILED, group=self._options.group_id, reason="its client is closed")
        return self._internals


def _group_offset(answer: OffsetAndMetadata) -> GroupOffset:
    # confluent-kafka commits the zero byte that ends a text in C, too, and leaves it out when it reads.
    return GroupOffset(answer.offset, (answer.metadata or "").rstrip("\0"))


def _client_items(items: Sequence[CommitItem]) -> dict[ClientPartition, OffsetAndMetadata]:
    return {
        ClientPartition(*item.partition): OffsetAndMetadata(
            # Ends with the zero byte that readers on confluent-kafka need: without it they read past the text's end.
            item.offset,
            item.metadata + "\0",
            -1 if item.leader_epoch is None else item.leader_epoch,
        )
        for item in items
    }
