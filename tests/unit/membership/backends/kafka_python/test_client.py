"""The port on kafka-python: events in order, answers that always come, commits, closing. A scripted client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka import errors as client_errors
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.coordinator.heartbeat import Heartbeat
from kafka.future import Future
from kafka.protocol.admin import DescribeGroupsResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.structs import MemberState, OffsetAndMetadata
from kafka.structs import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.assignors.interface import Assignor, MemberSettings, RebalanceProtocol
from spark_groupsource.assignors.notes import LeaderNote, MemberNote
from spark_groupsource.assignors.redundant import RedundantAssignor
from spark_groupsource.assignors.weighted import WeightedAssignor
from spark_groupsource.client.kafka_python_settings import quiet
from spark_groupsource.client.log import quiet_logger
from spark_groupsource.errors import GroupKafkaError, MembershipError, OptionError
from spark_groupsource.membership.backends.kafka_python import client as kafkapython
from spark_groupsource.membership.backends.kafka_python import peers as kafkapeers
from spark_groupsource.membership.backends.kafka_python.client import KafkaPythonGroup, Part
from spark_groupsource.membership.backends.kafka_python.poller import Callbacks, Happened, Kind
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from tests.unit.fakes import WAIT_S, ManualClock, make_options, tp
from tests.unit.membership.backends.listener import Listener

CANARY = "canary-7f3a"
OPTIONS = make_options(assignors="weighted")


class FakeCoordinator:
    """The client's coordinator, which never joins; commits are answered by `answer`."""

    def __init__(self, protocol: ClientProtocol) -> None:
        self._rebalance_protocol = protocol
        self._offset_fetch_futures: dict[frozenset[ClientPartition], Future] = {}
        self.coordinator_id: str | None = None
        self.heartbeat = Heartbeat(group_id="shop")
        self.rejoining = self._heartbeat_enabled = False
        self.requests: list[dict[ClientPartition, OffsetAndMetadata]] = []
        self.answer: Callable[[set[str]], BaseException | None] = lambda _: None
        self.committed: dict[ClientPartition, OffsetAndMetadata] | BaseException = {}
        self.idle = threading.Event()

    def poll(self, timeout_ms: int) -> bool:
        self.idle.wait(0.002)
        return False

    def need_rejoin(self) -> bool:
        return True

    async def _do_join_and_sync_async(self) -> bytes:
        return b""

    def request_rejoin(self) -> None:
        """It is due all the time."""

    def reset_generation(self) -> None:
        """Never joined."""

    async def _send_offset_commit_request(self, offsets: dict[ClientPartition, OffsetAndMetadata]) -> None:
        self.requests.append(offsets)
        error = self.answer({partition.topic for partition in offsets})
        if error is not None:
            raise error

    def fetch_committed_offsets(
        self, partitions: Sequence[ClientPartition], timeout_ms: int
    ) -> dict[ClientPartition, OffsetAndMetadata]:
        kept = self._offset_fetch_futures.get(frozenset(partitions))
        if kept is not None:
            return kept.value
        if isinstance(self.committed, BaseException):
            raise self.committed
        return {partition: self.committed[partition] for partition in partitions if partition in self.committed}


class FakeManager:
    """Runs at once what the client's I/O thread would run."""

    def __init__(self) -> None:
        self.cluster = SimpleNamespace(config={"allow_auto_create_topics": True})

    def call_soon(self, work: Callable[..., Any], *args: object) -> Future:
        found = work(*args)
        if isinstance(found, Future):
            return found
        try:
            found.send(None)
        except StopIteration as end:
            return Future().success(end.value)
        raise AssertionError("nothing to wait for here")


class FakeConsumer:
    """What `KafkaConsumer` is to the adapter."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self._manager = FakeManager()
        (first, *_) = settings["partition_assignment_strategy"]
        self._coordinator = FakeCoordinator(max(first.supported_protocols()))
        self.listener: Callbacks | None = None
        self.topics: list[str] = []
        self.state = MemberState.UNJOINED
        self.closes = 0
        self.when_closed: Callable[[], object] = lambda: None

    def subscribe(self, topics: list[str], listener: Callbacks) -> None:
        self.topics, self.listener = topics, listener

    def group_metadata(self) -> SimpleNamespace:
        return SimpleNamespace(state=self.state, generation_id=-1)

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.closes += 1
        self.when_closed()


class Bed:
    """An open group on a scripted client; nothing polls until it subscribes."""

    def __init__(self, *offered: Assignor | str, protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE) -> None:
        self.listener = Listener("unusable", "answer_lost", "instance_id_unreleased")
        self.clock = ManualClock()
        self.group = KafkaPythonGroup(OPTIONS, offered or (WeightedAssignor(),), protocol, MemberSettings(), self.clock)
        self.group.open(self.listener)
        assert self.group._internals is not None
        self.client: FakeConsumer = self.group._internals.consumer
        self.coordinator = self.client._coordinator

    def happens(self, kind: Kind, *partitions: Any, error: BaseException | None = None) -> Future:
        """The client's threads hand an event over; return the answer that a callback awaits."""
        answer = Future()
        self.group._events.put(Happened(kind, partitions, answer, error))
        return answer


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test connect."""
    monkeypatch.setattr(kafkapython, "KafkaConsumer", FakeConsumer)


@pytest.fixture(autouse=True)
def client_log() -> Iterator[logging.Logger]:
    """The client's logger as it is before anybody uses it, and afterwards as it was."""
    log = logging.getLogger("kafka")
    before = (log.handlers[:], log.propagate, log.level)
    log.handlers, log.propagate = [], True
    log.setLevel(logging.NOTSET)
    yield log
    log.handlers, log.propagate = before[0], before[1]
    log.setLevel(before[2])


def item(number: int, offset: int = 5, topic: str = "orders", epoch: int | None = None) -> CommitItem:
    return CommitItem(tp(number, topic), offset, "m", epoch)


# --- opening


def test_the_client_offers_the_strategies_in_order_of_preference() -> None:
    settings = Bed(RedundantAssignor(), "cooperative-sticky").client.settings
    assert [each.name for each in settings["partition_assignment_strategy"]] == ["redundant", "cooperative-sticky"]
    assert (settings["group_id"], settings["enable_auto_commit"]) == ("shop", False)


def test_topics_are_not_made_by_asking_for_them() -> None:
    """The consumer takes the setting, and does not hand it on."""
    assert Bed().client._manager.cluster.config == {"allow_auto_create_topics": False}


@pytest.mark.parametrize("protocol", RebalanceProtocol)
def test_the_protocol_of_the_whole_list(protocol: RebalanceProtocol) -> None:
    bed = Bed(protocol=protocol)
    assert bed.group.incremental is (protocol is RebalanceProtocol.COOPERATIVE)
    assert (bed.coordinator._rebalance_protocol == ClientProtocol.COOPERATIVE) is bed.group.incremental


def test_a_client_that_would_go_through_rebalances_in_another_way() -> None:
    with pytest.raises(RuntimeError, match="EAGER"):
        Bed("cooperative-sticky", protocol=RebalanceProtocol.EAGER)


@pytest.mark.parametrize(
    ("raised", "kind", "condition"),
    [
        (client_errors.KafkaConfigurationError("Heartbeat interval"), OptionError, "CLIENT_REFUSED_OPTION"),
        (ValueError("client_dns_lookup must be one of"), OptionError, "CLIENT_REFUSED_OPTION"),
        (client_errors.KafkaTimeoutError("Unable to bootstrap"), GroupKafkaError, "BROKER_UNREACHABLE"),
        (FileNotFoundError("/ca.pem"), GroupKafkaError, "BROKER_UNREACHABLE"),
        (ImportError("version 3.1.0 has no KafkaConsumer._manager"), OptionError, "ASSIGNORS_NOT_INSTALLED"),
        (client_errors.SaslAuthenticationFailedError("no"), GroupKafkaError, "AUTHENTICATION_FAILED"),
    ],
)
def test_a_client_that_cannot_be_made(
    raised: Exception, kind: type[GroupKafkaError], condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise raised

    monkeypatch.setattr(kafkapython, "KafkaConsumer", refuse)
    group = KafkaPythonGroup(OPTIONS, ["sticky"], RebalanceProtocol.EAGER, MemberSettings())
    with pytest.raises(kind) as error:
        group.open(Listener())
    assert error.value.condition.id == f"GROUPKAFKA.{condition}"
    group.close()


# --- events


def test_events_are_reported_in_order_and_answered() -> None:
    bed = Bed()
    result = CommitResult(acknowledged=(item(0),))
    answers = [bed.happens(Kind.ASSIGNED, tp(0), tp(1)), bed.happens(Kind.REVOKED, tp(1))]
    bed.group._events.put(result)
    answers.append(bed.happens(Kind.LOST, tp(0)))
    assert not any(answer.is_done for answer in answers)
    bed.group.poll()
    assert bed.listener.calls == [
        ("assigned", (tp(0), tp(1))), ("revoked", (tp(1),)), ("commit", result), ("lost", (tp(0),)),
    ]  # fmt: skip
    assert all(answer.succeeded() for answer in answers)
    bed.group.poll()
    assert len(bed.listener.calls) == 4


def test_a_callback_is_answered_after_the_listener_has_dealt_with_it() -> None:
    bed = Bed()
    answer = bed.happens(Kind.REVOKED, tp(0))
    seen: list[bool] = []
    bed.listener.on_revoke = lambda _: seen.append(answer.is_done)
    bed.group.poll()
    assert (seen, answer.is_done) == ([False], True)


def test_a_callback_is_answered_also_when_the_listener_raises() -> None:
    """Or the client's I/O thread would wait for ever, and with it the poll that called back."""
    bed = Bed()
    answer, left = bed.happens(Kind.REVOKED, tp(0)), bed.happens(Kind.LOST, tp(0))
    bed.listener.raises = ValueError("odd")
    with pytest.raises(ValueError, match="odd"):
        bed.group.poll()
    assert answer.succeeded()
    bed.group.poll()
    assert left.succeeded()


def test_a_commit_inside_of_a_revoke_is_answered_there() -> None:
    bed = Bed()
    bed.happens(Kind.REVOKED, tp(0))
    found: list[CommitResult] = []
    bed.listener.on_revoke = lambda _: found.append(bed.group.commit_now([item(0)]))
    bed.group.poll()
    assert found == [CommitResult(acknowledged=(item(0),))]


def test_whether_the_coordinator_is_known() -> None:
    bed = Bed()
    bed.group.poll()
    assert bed.listener.known is False
    bed.coordinator.coordinator_id = "group-1"
    bed.group.poll()
    assert bed.listener.known is True


# --- what the leader says


@pytest.mark.parametrize(
    ("active", "error", "fails"),
    [
        ({tp(0)}, "", False),
        (set(), "", False),
        # It keeps what it has, and reads on.
        ({tp(0)}, "the counts differ", False),
        # It would wait for partitions for ever.
        (set(), "the counts differ", True),
    ],
)
def test_a_refusal_ends_only_who_gets_nothing(active: set[Any], error: str, fails: bool) -> None:
    bed = Bed()
    note = LeaderNote(frozenset({tp(2), tp(1)}), error)
    bed.group._events.put(Part(frozenset(active), note))
    bed.group.poll()
    assert bed.listener.calls == [("note", ((tp(1), tp(2)), error))]
    assert bed.listener.errors == []
    bed.clock.advance(16)
    bed.group.poll()
    assert [each.condition for each in bed.listener.errors] == ([errors.ASSIGNMENT_REFUSED] if fails else [])
    assert all("the counts differ" in str(each) for each in bed.listener.errors)


def test_a_refusal_that_passes_ends_nobody() -> None:
    """Two topics that must be alike are given partitions, one after the other, while a query joins."""
    bed = Bed()
    bed.group._events.put(Part(frozenset(), LeaderNote(error="the counts differ")))
    bed.group.poll()
    bed.clock.advance(10)
    bed.group._events.put(Part(frozenset({tp(0)}), LeaderNote()))
    bed.group.poll()
    bed.clock.advance(100)
    bed.group._events.put(Part(frozenset(), LeaderNote(error="the counts differ")))
    bed.group.poll()
    bed.clock.advance(100)
    bed.group.poll()
    assert bed.listener.errors == [], "a member that was served once waits for as long as it takes"


def test_a_first_round_of_a_leader_that_knows_no_topic_yet_serves_nobody() -> None:
    bed = Bed()
    for error in ("", "the counts differ"):
        bed.group._events.put(Part(frozenset(), LeaderNote(error=error)))
        bed.group.poll()
    bed.clock.advance(16)
    bed.group.poll()
    assert [each.condition for each in bed.listener.errors] == [errors.ASSIGNMENT_REFUSED]


def test_what_a_strategy_was_given_is_reported_by_the_next_poll() -> None:
    bed = Bed()
    (assignor,) = bed.client.settings["partition_assignment_strategy"]
    note = LeaderNote(frozenset({tp(1)}))
    assignor.on_assignment(SimpleNamespace(partitions=list, user_data=note.encode()), 3)
    assert bed.listener.calls == []
    bed.group.poll()
    assert bed.listener.calls == [("note", ((tp(1),), ""))]


# --- errors


def test_an_error_that_only_a_person_can_heal() -> None:
    bed = Bed()
    bed.happens(Kind.FAILED, error=client_errors.GroupAuthorizationFailedError("shop"))
    bed.group.poll()
    assert [error.condition for error in bed.listener.errors] == [errors.GROUP_ACCESS_DENIED]


def test_an_error_that_heals_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    with caplog.at_level(logging.INFO, "spark_groupsource.membership"):
        for text in ("one", "one", "other"):
            bed.happens(Kind.FAILED, error=client_errors.NodeNotReadyError(text))
        bed.group.poll()
    assert bed.listener.errors == []
    assert [record.getMessage().rpartition("error=")[2] for record in caplog.records] == [
        "NodeNotReadyError: one", "NodeNotReadyError: other",
    ]  # fmt: skip


def test_members_without_a_common_strategy_are_shown_both_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafkapython, "others", lambda _: "the group runs 'range', with 1 members: b")
    bed = Bed(WeightedAssignor(), "cooperative-sticky")
    bed.happens(Kind.FAILED, error=client_errors.InconsistentGroupProtocolError())
    bed.group.poll()
    (error,) = bed.listener.errors
    assert error.condition is errors.NO_COMMON_STRATEGY
    assert "offers weighted, cooperative-sticky; the group runs 'range'" in str(error)


# --- commits and offsets


def test_a_commit_is_one_request_of_all_items() -> None:
    bed = Bed()
    items = (item(0, 7, epoch=3), item(1, 9, "refunds"))
    assert bed.group.commit_now(items) == CommitResult(acknowledged=items)
    assert bed.coordinator.requests == [
        {
            ClientPartition("orders", 0): OffsetAndMetadata(7, "m\0", 3),
            ClientPartition("refunds", 1): OffsetAndMetadata(9, "m\0", -1),
        }
    ]


def test_a_later_commit_is_answered_by_the_next_poll() -> None:
    bed = Bed()
    bed.group.commit_later([item(0)])
    assert bed.listener.calls == []
    bed.group.poll()
    assert bed.listener.calls == [("commit", CommitResult(acknowledged=(item(0),)))]


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (client_errors.CommitFailedError(client_errors.UnknownMemberIdError()), Refusal.LOST),
        (client_errors.RebalanceInProgressError(), Refusal.REBALANCE),
        (client_errors.RequestTimedOutError("late"), Refusal.UNCERTAIN),
        (client_errors.NotCoordinatorError(), Refusal.UNCERTAIN),
        (ValueError("odd"), Refusal.UNCERTAIN),
    ],
)
@pytest.mark.rule("R21")
def test_a_refused_commit_is_not_repeated_here(error: Exception, refusal: Refusal) -> None:
    bed = Bed()
    bed.coordinator.answer = lambda _: error
    items = (item(0), item(1, topic="refunds"))
    result = bed.group.commit_now(items)
    assert result == CommitResult(refused=tuple((each, refusal) for each in items), reason=str(error))
    assert len(bed.coordinator.requests) == 1


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_that_is_refused_for_good_says_what_ends_the_member(later: bool) -> None:
    bed = Bed()
    bed.coordinator.answer = lambda _: client_errors.GroupAuthorizationFailedError("shop")
    if later:
        bed.group.commit_later([item(0)])
        bed.group.poll()
        (_, result), *_ = bed.listener.calls
        assert isinstance(result, CommitResult)
    else:
        result = bed.group.commit_now([item(0)])
    assert result.refused == ((item(0), Refusal.DENIED),)
    assert "GROUP_ACCESS_DENIED" in str(result.error)


def test_a_deleted_topic_does_not_keep_the_others_from_being_committed() -> None:
    """The client tells the first error of a request, and not of which topic it is."""
    bed = Bed()
    gone = client_errors.UnknownTopicOrPartitionError()
    bed.coordinator.answer = lambda topics: gone if "refunds" in topics else None
    items = (item(1, topic="refunds"), item(0), item(1), item(0, topic="returns"))
    result = bed.group.commit_now(items)
    assert result == CommitResult((items[1], items[2], items[3]), ((items[0], Refusal.NO_TOPIC),), str(gone))
    asked = [sorted({partition.topic for partition in request}) for request in bed.coordinator.requests]
    assert asked == [["orders", "refunds", "returns"], ["orders"], ["refunds"], ["returns"]]


def test_the_only_topic_of_a_commit_is_the_deleted_one() -> None:
    bed = Bed()
    bed.coordinator.answer = lambda _: client_errors.UnknownTopicOrPartitionError()
    result = bed.group.commit_now([item(0), item(1)])
    assert [refusal for _, refusal in result.refused] == [Refusal.NO_TOPIC] * 2
    assert len(bed.coordinator.requests) == 1


def test_the_groups_offsets() -> None:
    bed = Bed()
    bed.coordinator.committed = {
        ClientPartition("orders", 0): OffsetAndMetadata(7, "m", 1),
        ClientPartition("orders", 1): OffsetAndMetadata(8, None, -1),
        # As a member on librdkafka commits it.
        ClientPartition("orders", 3): OffsetAndMetadata(9, "m\0", 1),
    }
    assert bed.group.fetch_offsets([tp(0), tp(1), tp(2), tp(3)], 1.0) == {
        tp(0): GroupOffset(7, "m"), tp(1): GroupOffset(8, ""), tp(2): GroupOffset(None, ""), tp(3): GroupOffset(9, "m"),
    }  # fmt: skip


def test_offsets_that_could_not_be_asked_are_left_out() -> None:
    bed = Bed()
    bed.coordinator.committed = client_errors.KafkaTimeoutError("late")
    assert bed.group.fetch_offsets([tp(0)], 1.0) == {}


def test_nothing_is_asked_behind_a_join() -> None:
    """A broker answers a connection's requests in order, and a JoinGroup when all members have joined."""
    bed = Bed()
    bed.coordinator.committed = {ClientPartition("orders", 0): OffsetAndMetadata(7, "m", 1)}
    bed.client.state = MemberState.REBALANCING
    assert bed.group.fetch_offsets([tp(0)], 1.0) == {}
    bed.client.state = MemberState.STABLE
    assert bed.group.fetch_offsets([tp(0)], 1.0) == {tp(0): GroupOffset(7, "m")}


@pytest.mark.rule("R3")
def test_an_answer_that_came_too_late_is_not_handed_out_later() -> None:
    """The client keeps it for the next question about the same partitions, whoever has read on meanwhile."""
    bed = Bed()
    partition = ClientPartition("orders", 0)
    late = Future().success({partition: OffsetAndMetadata(7, "m", 1)})
    bed.coordinator._offset_fetch_futures[frozenset({partition})] = late
    bed.coordinator.committed = {partition: OffsetAndMetadata(90, "m", 1)}
    assert bed.group.fetch_offsets([tp(0)], 1.0) == {tp(0): GroupOffset(90, "m")}


# --- closing


class Goodbye:
    """What the client does when it closes, on the polling thread: its callbacks, each after the other's answer."""

    def __init__(self, bed: Bed, *partitions: Sequence[tuple[str, int]]) -> None:
        self._bed, self._partitions = bed, partitions
        self.answered: list[bool] = []

    def __call__(self) -> None:
        callbacks = self._bed.client.listener
        assert callbacks is not None
        callbacks._joined = True
        for each in self._partitions:
            coroutine = callbacks.on_partitions_revoked(each)
            arrived = threading.Event()
            coroutine.send(None).add_both(lambda _, arrived=arrived: arrived.set())
            self.answered.append(arrived.wait(WAIT_S))
            coroutine.close()


def test_the_client_gives_its_partitions_up_before_it_leaves() -> None:
    bed = Bed()
    bed.group.subscribe(["refunds", "orders"])
    assert bed.client.topics == ["orders", "refunds"]
    bed.client.when_closed = goodbye = Goodbye(bed, [("orders", 0)], [("orders", 1)])
    found: list[CommitResult] = []
    bed.listener.on_revoke = lambda _: found.append(bed.group.commit_now([item(0)]))
    bed.group.close()
    assert goodbye.answered == [True, True]
    assert bed.listener.calls == [("revoked", (tp(0),)), ("revoked", (tp(1),))]
    assert found == [CommitResult(acknowledged=(item(0),))] * 2
    bed.group.close()
    assert bed.client.closes == 1


def test_closing_goes_on_where_the_listener_has_raised() -> None:
    """The member closes once more then; without it the second callback would wait for ever."""
    bed = Bed()
    bed.group.subscribe(["orders"])
    bed.client.when_closed = goodbye = Goodbye(bed, [("orders", 0)], [("orders", 1)])
    bed.listener.raises = ValueError("odd")
    with pytest.raises(ValueError, match="odd"):
        bed.group.close()
    bed.group.close()
    assert goodbye.answered == [True, True]
    assert bed.client.closes == 1


def test_what_comes_while_it_closes_is_reported() -> None:
    bed = Bed()
    result = CommitResult(acknowledged=(item(0),))
    bed.client.when_closed = lambda: bed.group._events.put(result)
    bed.group.close()
    assert bed.listener.calls == [("commit", result)]


@pytest.mark.rule("R111")
def test_a_client_that_stays_out_answers_until_it_is_closed() -> None:
    """A stop was requested, so the loss is no error; the member asks the group for its offsets before it closes."""
    bed = Bed()
    joins: list[BaseException] = []
    refused = threading.Event()

    def join(timeout_ms: int) -> bool:
        try:
            bed.coordinator._do_join_and_sync_async().send(None)
        except client_errors.KafkaError as error:
            joins.append(error)
            refused.set()
            raise
        except StopIteration:
            return False
        raise AssertionError("it has nothing to wait for")

    bed.coordinator.poll = join  # type: ignore[method-assign]
    bed.coordinator.committed = {ClientPartition("orders", 0): OffsetAndMetadata(7, "m", -1)}
    bed.group.subscribe(["orders"])
    bed.group.stay_out()
    assert refused.wait(WAIT_S)
    bed.coordinator.idle.wait(0.05)
    bed.group.poll()
    assert bed.client.closes == 0
    assert bed.group.fetch_offsets([tp(0)], 1.0) == {tp(0): GroupOffset(7, "m")}
    bed.group.close()
    assert bed.client.closes == 1
    assert len(joins) == 1
    assert bed.listener.errors == []


def test_a_closed_client_takes_nothing() -> None:
    bed = Bed()
    bed.group.close()
    bed.group.close()
    bed.group.poll()
    assert bed.client.closes == 1
    for ask in (
        lambda: bed.group.subscribe(["orders"]),
        lambda: bed.group.commit_now([item(0)]),
        lambda: bed.group.fetch_offsets([tp(0)], 1.0),
    ):
        with pytest.raises(MembershipError, match="its client is closed"):
            ask()


def test_a_group_that_was_never_opened() -> None:
    group = KafkaPythonGroup(OPTIONS, ["sticky"], RebalanceProtocol.EAGER, MemberSettings())
    group.close()
    group.poll()


def test_a_closed_group_opens_again() -> None:
    """A static member makes its client anew."""
    bed = Bed()
    first = bed.group._internals
    bed.group.close()
    bed.group.open(bed.listener)
    assert bed.group._internals not in (first, None)
    assert bed.group.commit_now([item(0)]) == CommitResult(acknowledged=(item(0),))
    bed.group.close()


# --- what the others offer


def described(*members: tuple[str, bytes], runs: str = "weighted") -> dict[str, Any]:
    """Return a group as the client's admin describes it, from the broker's bytes."""
    group = DescribeGroupsResponse.DescribedGroup
    response = DescribeGroupsResponse(
        version=5,
        throttle_time_ms=0,
        groups=[
            group(
                error_code=0, group_id="shop", group_state="Stable", protocol_type="consumer", protocol_data=runs,
                authorized_operations=set(),
                members=[
                    group.DescribedGroupMember(
                        member_id=f"{name}-1", group_instance_id=None, client_id=name, client_host="/127.0.0.1",
                        member_metadata=metadata, member_assignment=b"",
                    )
                    for name, metadata in members
                ],
            )
        ],
    )  # fmt: skip
    read = DescribeGroupsResponse.decode(response.encode(version=5), version=5)
    admin = KafkaAdminClient.__new__(KafkaAdminClient)
    groups: dict[str, Any] = admin._describe_groups_process_response(read)
    return groups


def subscription(user_data: bytes | None, version: int = 3) -> bytes:
    raw: bytes = ConsumerProtocolSubscription(version=version, topics=["orders"], user_data=user_data).encode()
    return raw


class FakeAdmin:
    """The client's admin, which knows one group."""

    groups: dict[str, Any] | BaseException
    closes = 0

    def __init__(self, **settings: Any) -> None:
        assert settings.keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()

    def describe_groups(self, names: list[str]) -> dict[str, Any]:
        assert names == ["shop"]
        if isinstance(FakeAdmin.groups, BaseException):
            raise FakeAdmin.groups
        return FakeAdmin.groups

    def close(self) -> None:
        FakeAdmin.closes += 1


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (
            described(
                ("b", subscription(MemberNote(True, b"x", ("weighted", "range")).encode())),
                ("a", subscription(b"")),
                ("c", subscription(b"\xff")),
                ("d", b""),
            ),
            "the group runs 'weighted', with 4 members: a; b offers weighted, range; c; d",
        ),
        (described(runs=""), "the group runs 'none yet', with 0 members: "),
        (client_errors.GroupAuthorizationFailedError("shop"), "the brokers did not describe what the others offer"),
        (OSError("no route"), "the brokers did not describe what the others offer (no route)"),
        ({}, "the brokers did not describe what the others offer"),
    ],
)
def test_what_the_others_offer(
    groups: dict[str, Any] | BaseException, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafkapeers, "KafkaAdminClient", FakeAdmin)
    FakeAdmin.groups, FakeAdmin.closes = groups, 0
    assert kafkapeers.others(OPTIONS).startswith(said)
    assert FakeAdmin.closes == 1


# --- the client's log


def test_the_clients_log_is_led_through_this_packages(
    client_log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    quiet()
    quiet()
    assert (len(client_log.handlers), client_log.propagate, client_log.level) == (1, False, logging.WARNING)
    quiet_logger("member")
    with caplog.at_level(logging.WARNING, "spark_groupsource.client"):
        logging.getLogger("kafka.coordinator").warning("Marking the coordinator dead (node %s)", "unit-test-1")
        logging.getLogger("kafka.coordinator").info("Discovered coordinator")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("spark_groupsource.client.member", "kafka-python: Marking the coordinator dead (node unit-test-1)")
    ]


def test_a_log_that_somebody_has_set_up_is_left_alone(client_log: logging.Logger) -> None:
    mine = logging.StreamHandler()
    client_log.addHandler(mine)
    quiet()
    assert (client_log.handlers, client_log.propagate, client_log.level) == ([mine], True, logging.NOTSET)
