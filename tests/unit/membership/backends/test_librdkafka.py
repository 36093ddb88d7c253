"""The group client on librdkafka, with a scripted client: what is told to the member, and when."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.membership.backends.assigned import AssignedPartitions
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.port import Refusal
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, Pin
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import ManualClock, make_options, tp
from tests.unit.membership.backends.listener import Listener


class Client:
    """A `confluent_kafka.Consumer` that does what a test says; `happens` is carried out by the next poll."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self.subscriptions: list[list[str]] = []
        self.happens: list[Callable[[], object]] = []
        # The partitions that a commit is refused for, with the code, and an error of the whole request.
        self.refused: dict[tuple[str, int], int] = {}
        self.refused_whole: int | None = None
        # What it has, and under which member id; what it does when it is closed.
        self.held: list[ClientPartition] = []
        self.member_id: str | None = "m1"
        self.callbacks: dict[str, Any] = {}
        self.when_closed: Callable[[], object] = lambda: None
        self.when_unsubscribed: Callable[[], object] = self.leave
        self._closing = False
        # What the group holds, with its text; None: nobody answers.
        self.offsets: dict[TopicPartition, tuple[int, str]] | None = {}

    def committed(self, partitions: list[ClientPartition], timeout: float) -> list[ClientPartition]:
        if self.offsets is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found = [
            (part, self.offsets.get(TopicPartition(part.topic, part.partition), (-1001, ""))) for part in partitions
        ]
        return [ClientPartition(part.topic, part.partition, at, metadata=text) for part, (at, text) in found]

    def poll(self, timeout_s: float) -> None:
        for action in self.happens:
            action()
        self.happens = []

    def subscribe(self, topics: Sequence[str], **callbacks: Any) -> None:
        self.callbacks = callbacks
        self.subscriptions.append(list(topics))

    def unsubscribe(self) -> None:
        self.subscriptions.append([])
        self.when_unsubscribed()

    def leave(self) -> None:
        """Leave the group: the client drops its member id."""
        self.member_id = None

    def incremental_assign(self, partitions: list[ClientPartition]) -> None:
        self.held += partitions

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        self.held = [part for part in self.held if part not in partitions]

    def assignment(self) -> list[ClientPartition]:
        if self._closing:
            raise KafkaException(KafkaError(KafkaError._DESTROY, "Failed to get assignment"))
        return self.held

    def memberid(self) -> str | None:
        return None if self._closing else self.member_id

    def pause(self, partitions: list[ClientPartition]) -> None:
        pass

    def commit(self, offsets: list[ClientPartition], asynchronous: bool) -> list[ClientPartition] | None:
        if self.refused_whole is not None:
            raise KafkaException(KafkaError(self.refused_whole))
        answers = [Answer(part, self.refused.get((part.topic, part.partition))) for part in offsets]
        codes = [code for part in offsets if (code := self.refused.get((part.topic, part.partition))) is not None]
        if codes and not asynchronous:
            # As the client does, also where the coordinator has accepted the others.
            raise KafkaException(KafkaError(codes[-1]))
        if asynchronous:
            self.happens.append(lambda: self.settings["on_commit"](None, answers))
        return None if asynchronous else answers  # type: ignore[return-value]

    def close(self) -> None:
        self._closing = True
        self.when_closed()


class Answer:
    """A partition of a commit's answer: the client's own has an error that nobody else can set."""

    def __init__(self, part: ClientPartition, code: int | None) -> None:
        self.topic, self.partition, self.offset, self.metadata = part.topic, part.partition, part.offset, part.metadata
        self.error = None if code is None else KafkaError(code)


class Bed:
    """An open group on a scripted client."""

    def __init__(self, kind: type[LibrdkafkaGroup] = LibrdkafkaGroup, **options: str) -> None:
        self.client, self.listener = Client(), Listener("note")
        self.clock = ManualClock()
        self.group = kind(make_options(**options), self._client, self.clock)
        self.group.open(self.listener)

    def refuse_identity(self, text: str = "SASL authentication error: invalid credentials") -> None:
        """Let the client tell that the brokers refuse its identity."""
        self.client.settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION, text))
        self.group.poll()

    def tell_coordinator(self, state: str, **more: str) -> None:
        """Let the client tell how it stands with its coordinator."""
        self.client.settings["stats_cb"](json.dumps({"cgrp": {"state": state} | more}))
        self.group.poll()

    def tell_timeouts(self, coordinator: int, others: int) -> None:
        """Let the client tell how many requests it has given up."""
        brokers = {
            "GroupCoordinator": {"source": "logical", "req_timeouts": coordinator},
            "127.0.0.1:9092/1": {"source": "learned", "req_timeouts": others},
        }
        self.client.settings["stats_cb"](json.dumps({"brokers": brokers, "cgrp": {"state": "up"}}))
        self.group.poll()

    def _client(self, settings: dict[str, Any]) -> Any:
        self.client.settings = settings
        return self.client


def item(number: int, offset: int = 5, topic: str = "orders") -> CommitItem:
    return CommitItem(tp(number, topic), offset, "m")


# --- a rebalance that the client does not finish


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_client_that_stays_in_the_middle_of_a_rebalance_is_reported_once(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in "init", in which it sends no heartbeats: without an existing topic, or without a partition (KIP-848)."""
    bed = Bed(**{"kafka.group.protocol": protocol})
    said = 0
    for state, seconds, more in (
        ("wait-metadata", 29.0, 0), ("steady", 1.0, 0), ("wait-join", 300.0, 0), ("init", 300.0, 0),
        ("wait-assign-call", 29.0, 0), ("wait-unassign-call", 1.0, 0), ("wait-assign-call", 60.0, 1),
        ("wait-metadata", 60.0, 0), ("steady", 1.0, 0), ("wait-assign-call", 31.0, 0), ("wait-assign-call", 1.0, 1),
    ):  # fmt: skip
        bed.tell_coordinator("up", join_state=state)
        said += more
        assert caplog.text.count("does not finish a rebalance") == said, (state, seconds)
        bed.clock.advance(seconds)


def test_a_full_group_is_reported_every_30_s(caplog: pytest.LogCaptureFixture) -> None:
    """group.max.size: the client asks again after a second or two, until another member leaves."""
    bed = Bed()
    full = KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED, "Consumer group has reached maximum size")
    bed.client.poll = lambda _: SimpleNamespace(error=lambda: full)  # type: ignore[assignment, return-value]
    for _ in range(60):
        bed.group.poll()
        bed.clock.advance(1.5)
    assert caplog.text.count("maximum size") == 3
    assert bed.listener.errors == []


def test_each_error_is_reported_every_30_s(caplog: pytest.LogCaptureFixture) -> None:
    """Errors of two topics have the same code, and the client reports each of them once. Others may take turns."""
    caplog.set_level(logging.INFO)
    bed = Bed()
    errors = [
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Subscribed topic not available: orders: Broker: Unknown topic"),
        KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Subscribed topic not available: refunds: Broker: Unknown topic"),
        KafkaError(KafkaError.GROUP_MAX_SIZE_REACHED, "Consumer group has reached maximum size"),
    ]
    for number in range(30):
        bed.client.poll = lambda _, at=number: SimpleNamespace(error=lambda: errors[at % 3])  # type: ignore[assignment, misc]
        bed.group.poll()
        bed.clock.advance(0.9)
    for name in ("orders", "refunds", "maximum size"):
        assert caplog.text.count(name) == 1


# --- a topic that the client may not read


@pytest.mark.parametrize(
    ("texts", "resources"),
    [
        (
            [f"Subscribed topic not available: {name}: Broker: Topic authorization failed" for name in ("r", "p")],
            "--topic 'p' --topic 'r'",
        ),
        (["Broker: Topic authorization failed"], "--topic 'o' --topic 'p' --topic 'r'"),
    ],
)
def test_the_error_names_the_topics_that_the_client_may_not_read(texts: list[str], resources: str) -> None:
    bed = Bed(subscribe="o,p,r")
    found = [KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, text) for text in texts]
    answers = [SimpleNamespace(error=lambda error=error: error) for error in found]
    bed.client.poll = lambda _: answers.pop(0) if answers else None  # type: ignore[method-assign]
    bed.group.poll()
    (error,) = bed.listener.errors
    assert f"--operation Read {resources} --bootstrap" in str(error)


# --- lost answers


@pytest.mark.rule("R84")
def test_requests_to_the_coordinator_that_are_given_up_are_reported() -> None:
    bed = Bed()
    bed.tell_timeouts(coordinator=0, others=3)
    bed.tell_coordinator("up")
    assert bed.listener.count("answer_lost") == 0
    bed.tell_timeouts(coordinator=1, others=3)
    bed.tell_timeouts(coordinator=1, others=4)
    assert bed.listener.count("answer_lost") == 1
    bed.tell_timeouts(coordinator=3, others=4)
    assert bed.listener.count("answer_lost") == 2
    bed.group.close()
    bed.group.open(bed.listener)
    bed.tell_timeouts(coordinator=1, others=0)
    assert bed.listener.count("answer_lost") == 3, "a new client counts from zero"


# --- leaving


@pytest.mark.rule("R111")
@pytest.mark.parametrize(
    ("options", "held", "unsubscribes"),
    [
        ({"kafka.partition.assignment.strategy": "cooperative-sticky"}, False, True),
        ({"kafka.partition.assignment.strategy": "cooperative-sticky"}, True, False),
        ({"kafka.partition.assignment.strategy": "cooperative-sticky", "kafka.group.instance.id": "a"}, False, False),
        ({"kafka.partition.assignment.strategy": "range"}, False, False),
        ({"kafka.group.protocol": "consumer"}, False, False),
    ],
)
def test_a_cooperative_member_without_partitions_leaves(
    options: dict[str, str], held: bool, unsubscribes: bool
) -> None:
    bed = Bed(**options)
    bed.group.subscribe(["orders"])
    if held:
        bed.group.accept((tp(0),))
    bed.group.close()
    assert bed.client.subscriptions == [["orders"], *([[]] if unsubscribes else [])]


@pytest.mark.rule("R111")
@pytest.mark.parametrize("ends", [True, False])
def test_a_client_that_joins_leaves_when_the_join_has_ended_or_closes_in_time(ends: bool) -> None:
    """1. A cooperative client has sent a JoinGroup. 2. It is closed: it puts the leave off."""
    bed = Bed(kafka__partition__assignment__strategy="cooperative-sticky")
    bed.group.subscribe(["orders"])
    polls: list[bool] = []

    def poll(_: float) -> None:
        polls.append(True)
        bed.clock.advance(1.0)
        if ends and len(polls) == 3:
            bed.client.leave()

    bed.client.when_unsubscribed = lambda: None
    bed.client.poll = poll  # type: ignore[method-assign]
    bed.group.close()
    assert len(polls) == (3 if ends else 10)


@pytest.mark.parametrize(("protocol", "instance", "unsubscribes"), [
    ("classic", "", True), ("classic", "i-1", False), ("consumer", "", True), ("consumer", "i-1", True),
])  # fmt: skip
@pytest.mark.rule("R111")
def test_a_member_that_stays_out_unsubscribes(protocol: str, instance: str, unsubscribes: bool) -> None:
    """A classic static member would leave: it has lost a deleted topic, and its other partitions wait for it."""
    given = {"kafka.group.protocol": protocol} | ({"kafka.group.instance.id": instance} if instance else {})
    bed = Bed(**given)
    bed.group.subscribe(["orders"])
    bed.group.stay_out()
    assert bed.client.subscriptions == [["orders"], *([[]] if unsubscribes else [])]


def test_a_client_that_closes_joins_nothing() -> None:
    bed = Bed()
    bed.group.subscribe(["orders"])
    bed.client.held = [ClientPartition("orders", 0)]
    bed.client.when_closed = bed.group.stay_out
    bed.group.close()
    assert bed.client.subscriptions == [["orders"]]


def test_a_client_that_refuses_everything_after_a_fatal_error_joins_nothing_either() -> None:
    bed = Bed()
    bed.client.unsubscribe = refuse_fatally  # type: ignore[method-assign]
    bed.group.stay_out()


def refuse_fatally() -> None:
    """Raise what the client raises after a fatal error."""
    raise KafkaException(KafkaError(KafkaError._FATAL))


# --- commits


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_that_is_refused_for_good_says_what_ends_the_member(later: bool) -> None:
    """Of one partition only: the others' offsets are taken."""
    bed = Bed()
    bed.client.refused = {
        ("gone", 0): KafkaError.UNKNOWN_TOPIC_OR_PART,
        ("refunds", 1): KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
    items = (item(0), item(0, topic="gone"), item(1, topic="refunds"))
    if later:
        bed.group.commit_later(items)
        bed.group.poll()
        (result,) = bed.listener.results
    else:
        result = bed.group.commit_now(items)
    assert result.acknowledged == (items[0],)
    assert result.refused == ((items[1], Refusal.NO_TOPIC), (items[2], Refusal.DENIED))
    assert "TOPIC_ACCESS_DENIED" in str(result.error)
    assert "'refunds'" in str(result.error)


def test_partitions_that_are_missing_do_not_keep_the_others_from_being_committed() -> None:
    """Of the same topic, too: it was recreated with fewer."""
    bed = Bed()
    missing = {3, 7, 8}
    bed.client.refused = {("orders", number): KafkaError.UNKNOWN_TOPIC_OR_PART for number in missing}
    result = bed.group.commit_now([item(number) for number in range(10)])
    assert result.acknowledged == tuple(item(number) for number in range(10) if number not in missing)
    assert result.refused == tuple((item(number), Refusal.NO_TOPIC) for number in sorted(missing))


def test_a_commit_that_is_refused_as_a_whole() -> None:
    bed = Bed()
    bed.client.refused_whole = KafkaError.GROUP_AUTHORIZATION_FAILED
    result = bed.group.commit_now([item(0)])
    assert result.refused == ((item(0), Refusal.DENIED),)
    assert "GROUP_ACCESS_DENIED" in str(result.error)
    bed.client.refused_whole = KafkaError._TIMED_OUT
    result = bed.group.commit_now([item(0)])
    assert (result.refused, result.error) == (((item(0), Refusal.UNCERTAIN),), None)


def test_a_group_with_members_takes_no_offsets_of_fixed_partitions() -> None:
    """No partition is lost by that: there was never a membership."""
    bed = Bed(AssignedPartitions, assign='{"orders":[0]}')
    bed.client.refused_whole = KafkaError.UNKNOWN_MEMBER_ID
    result = bed.group.commit_now([item(0)])
    assert result.refused == ((item(0), Refusal.DENIED),)
    assert "ASSIGN_GROUP_IN_USE" in str(result.error)


def fixed() -> Bed:
    """Return a group of fixed partitions that has found 40, and committed 50."""
    bed = Bed(AssignedPartitions, assign='{"orders":[0]}')
    bed.client.offsets = {tp(0): (40, "theirs")}
    bed.group.fetch_offsets([tp(0)], 1.0)
    assert bed.group.commit_now([item(0, 50)]).acknowledged
    bed.client.offsets = {tp(0): (50, "m")}
    return bed


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_of_fixed_partitions_takes_the_group_back_from_no_other_driver(later: bool) -> None:
    """Guards against: 1. a driver hangs with a batch that ends at 75; 2. another one commits 100; 3. it goes on."""
    bed = fixed()
    bed.client.offsets = {tp(0): (100, "another driver's")}
    if later:
        bed.group.commit_later([item(0, 75)])
        (result,) = bed.listener.results
        bed.group.poll()
        assert len(bed.listener.results) == 1, "nothing was sent"
    else:
        result = bed.group.commit_now([item(0, 75)])
    assert (result.acknowledged, result.refused) == ((), ((item(0, 75), Refusal.DENIED),))
    assert re.search(r"ASSIGN_OVERTAKEN.*'assign'.*offset 75 of partition orders-0.*from offset 100", str(result.error))


def test_a_commit_of_fixed_partitions_may_go_back_from_what_is_this_querys_own() -> None:
    bed = Bed(AssignedPartitions, assign='{"orders":[0]}')
    bed.client.offsets = {tp(0): (500, "set by another program before")}
    bed.group.fetch_offsets([tp(0)], 1.0)
    assert bed.group.commit_now([item(0, 100)]).acknowledged, "option onConflict has decided so"
    assert bed.group.commit_now([item(0, 120)]).error is not None, "500 is back: set once more"
    bed = fixed()
    assert bed.group.commit_now([item(0, 45)]).acknowledged
    text = CommitMetadata("lineage", "another topic of that name", 0, 90, Pin(0, 1)).to_text()
    bed.client.offsets = {tp(0): (90, text)}
    new = CommitItem(tp(0), 0, CommitMetadata("lineage", "id", 0, 0, Pin(0, 1)).to_text())
    assert bed.group.commit_now([new]).acknowledged


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_of_fixed_partitions_waits_for_the_groups_offsets(later: bool) -> None:
    bed = fixed()
    bed.client.offsets = None
    if later:
        bed.group.commit_later([item(0, 75)])
        (result,) = bed.listener.results
    else:
        result = bed.group.commit_now([item(0, 75)])
    assert (result.refused, result.error) == (((item(0, 75), Refusal.REBALANCE),), None)


# --- refused identities


def test_an_identity_that_was_never_taken_is_reported_at_once() -> None:
    bed = Bed()
    bed.refuse_identity()
    assert ["AUTHENTICATION_FAILED" in str(error) for error in bed.listener.errors] == [True]


@pytest.mark.parametrize("heard", ["assignment", "commit", "coordinator"])
def test_an_identity_that_was_taken_may_be_refused_for_a_moment(heard: str) -> None:
    """The member has joined; the provider of its tokens is away for a second, or a broker starts.

    Its client heals by itself; it would have been the end of the query, of a healthy one.
    """
    bed = Bed()
    if heard == "assignment":
        bed.group.accept((tp(0),))
    for _ in range(3):
        if heard == "commit":
            bed.group.commit_now([item(0)])
        elif heard == "coordinator":
            bed.tell_coordinator("up")
        bed.refuse_identity()
        bed.clock.advance(60.0 if heard != "assignment" else 5.0)
    assert bed.listener.errors == []


def test_an_identity_that_stays_refused_ends_the_member() -> None:
    """The user is gone. What the client says of a coordinator that it looks for is no answer of anybody."""
    bed = Bed()
    bed.group.accept((tp(0),))
    bed.refuse_identity()
    bed.clock.advance(25)
    bed.tell_coordinator("query-coord")
    bed.refuse_identity()
    assert ["AUTHENTICATION_FAILED" in str(error) for error in bed.listener.errors] == [True]


def test_fixed_partitions_are_no_sign_of_an_accepted_identity() -> None:
    bed = Bed(AssignedPartitions, assign='{"orders":[0]}')
    bed.group.accept((tp(0),))
    bed.refuse_identity()
    assert len(bed.listener.errors) == 1


# --- static members


def static() -> Bed:
    """Return a static member that was given a partition."""
    bed = Bed(kafka__group__instance__id="one")
    bed.group.subscribe(["orders"])
    bed.group.accept((tp(0),))
    return bed


@pytest.mark.parametrize("member_id", [None, "m2"])
@pytest.mark.rule("R72")
def test_p5_a_static_member_whose_membership_has_ended_has_nothing(member_id: str | None) -> None:
    """Its session times out, or its JoinGroup is refused: it has no member id, then another one, and others read on.

    What it had is lost; it commits nothing, and what the client gives it, or takes, is the next client's matter.
    """
    bed = static()
    bed.group.poll()
    assert bed.listener.count("unusable") == 0
    bed.client.member_id = member_id
    bed.group.poll()
    bed.group.poll()
    assert bed.listener.count("unusable") == 1
    assert bed.group.commit_now([item(0)]).lost
    bed.client.callbacks["on_revoke"](None, [ClientPartition("orders", 0)])
    assert bed.listener.calls == []


def test_a_static_member_hands_over_while_its_client_closes(caplog: pytest.LogCaptureFixture) -> None:
    """The client gives its partitions back when it is closed, and answers no questions any more."""
    bed = static()
    bed.listener.on_revoke = bed.group.release
    bed.client.when_closed = lambda: bed.client.callbacks["on_revoke"](None, [ClientPartition("orders", 0)])
    bed.group.close()
    assert bed.listener.calls == [("revoked", (tp(0),))]
    assert bed.client.held == []
    assert caplog.text == ""


def test_a_callback_that_fails_while_the_client_closes_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody polls any more who could raise it."""
    bed = static()

    def broken(_: Partitions) -> None:
        raise ValueError("odd")

    bed.listener.on_revoke = broken
    bed.client.when_closed = lambda: bed.client.callbacks["on_revoke"](None, [ClientPartition("orders", 0)])
    bed.group.close()
    assert "a callback failed while the client closed: group=shop" in caplog.text
    assert "odd" in caplog.text


# --- fatal errors


def fatal(text: str) -> KafkaError:
    """Return an error as the client tells it under KIP-848: its code is the general one."""
    return KafkaError(KafkaError._FATAL, f"Fatal error: Broker: {text}: ConsumerGroupHeartbeat fatal error: {text}")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("Broker: Group authorization failed", "GROUP_ACCESS_DENIED"),
        ("Broker: The group id does not exist", "GROUP_PROTOCOL_CONFLICT"),
        ("Broker: The assignor or its version range is not supported by the consumer group", "REMOTE_ASSIGNOR_UNKNOWN"),
        ("Broker: Static consumer fenced by other consumer with same group.instance.id", "INSTANCE_ID_IN_USE"),
        ("Broker: Consumer group has reached maximum size", "MEMBER_FAILED"),
    ],
)
def test_a_fatal_error_is_reported_by_its_text(text: str, condition: str) -> None:
    bed = Bed(kafka__group__protocol="consumer")
    bed.client.settings["error_cb"](fatal(text))
    bed.group.poll()
    assert [error.condition.id for error in bed.listener.errors] == [f"GROUPKAFKA.{condition}"]


@pytest.mark.rule("R73")
@pytest.mark.parametrize("text", ["Broker: The group id does not exist", "Broker: Invalid request"])
def test_a_member_whose_group_was_deleted_joins_anew(text: str) -> None:
    """KIP-848: all members are cut off for longer than a session, and somebody deletes the group, which has none.

    The member comes back: its client takes that for the end. A classic one joins again by itself.
    """
    bed = Bed(kafka__group__protocol="consumer")
    bed.group.subscribe(["orders"])
    bed.group.accept((tp(0),))
    bed.client.settings["error_cb"](fatal(text))
    bed.client.callbacks["on_lost"](None, [ClientPartition("orders", 0)])
    bed.group.poll()
    assert (bed.listener.errors, bed.listener.calls, bed.listener.count("unusable")) == ([], [], 1)
    assert bed.group.commit_now([item(0)]).lost
    # With a new client, whose group has become one of another protocol meanwhile.
    bed.group.close()
    bed.client = Client()
    bed.group.open(bed.listener)
    bed.client.settings["error_cb"](fatal(text))
    assert len(bed.listener.errors) == 1
