"""What the command line asks of a group, on a scripted coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.exporter.rounds import Exporter
from spark_groupsource.cluster.admin import AdminRequests
from spark_groupsource.errors import AccessError, CommandError, KafkaUnavailableError
from spark_groupsource.model.commit_metadata import CommitItem
from tests.unit.cli.exporter.test_command import FakeKafka, up
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.fakes import ManualClock, make_options, tp

# More than fits into one request of 500 KB.
ITEMS = [CommitItem(tp(number), 5, "m" * 400) for number in range(3_000)]


def admin_that_takes(requests: int, monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
    """Return an admin whose coordinator takes so many requests; then the group has members."""
    admin = GroupAdmin(make_options(), ManualClock(), lambda _: None)
    sent: list[object] = []

    def ask(send: object) -> SimpleNamespace:
        sent.append(send)
        if len(sent) > requests:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        return SimpleNamespace(topic_partitions=[])

    monkeypatch.setattr(admin, "_ask", ask)
    return admin


def test_a_commit_that_members_keep_out_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError) as caught:
        admin_that_takes(0, monkeypatch).commit(ITEMS)
    assert caught.value.condition is errors.GROUP_HAS_MEMBERS


def test_a_commit_that_was_taken_in_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large commit is two requests; a member joins between them, and what the first one brought stays."""
    with pytest.raises(CommandError) as caught:
        admin_that_takes(1, monkeypatch).commit(ITEMS)
    assert caught.value.condition is errors.COMMIT_REFUSED
    text = str(caught.value)
    assert "members have joined the group since the first of 3 requests was accepted" in text
    assert "more. " in text
    assert len(text) < 2_000
    admin_that_takes(3, monkeypatch).commit(ITEMS)


class FakeClient:
    """An AdminClient that knows the brokers of its last metadata request; each broker lists its own groups."""

    def __init__(self, brokers: dict[str, Sequence[str]]) -> None:
        self.brokers = brokers
        self.known = set(brokers)
        self.errors: list[KafkaError] = []
        self.away: KafkaError | None = None
        self.is_destroyed = False

    def list_topics(self, timeout: float) -> None:
        assert timeout > 0, "without a limit it waits for ever"
        if self.away is not None:
            raise KafkaException(self.away)
        self.known = set(self.brokers)

    def list_consumer_groups(self, request_timeout: float) -> Future[Any]:
        assert request_timeout > 0
        groups = [SimpleNamespace(group_id=group) for broker in self.known for group in self.brokers.get(broker, ())]
        found: Future[Any] = Future()
        found.set_result(SimpleNamespace(valid=groups, errors=self.errors))
        return found

    def poll(self, _timeout: float) -> None:
        """Have nothing to report."""

    def __exit__(self, *_: object) -> None:
        self.is_destroyed = True


def admin_on(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
    return admin_that_makes(lambda *_: client, monkeypatch)


def admin_that_makes(make_client: Callable[..., FakeClient], monkeypatch: pytest.MonkeyPatch) -> GroupAdmin:
    requests = partial(AdminRequests, make_client=make_client)  # type: ignore[arg-type]
    monkeypatch.setattr("spark_groupsource.cli.admin.AdminRequests", requests)
    return GroupAdmin(make_options(), ManualClock(), lambda _: None)


def test_the_list_of_groups_is_not_complete_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reports it beside the groups of the other brokers, and by a `KafkaError`, which is no exception."""
    client = FakeClient({"one": ["a"], "two": ["b"]})
    client.errors = [KafkaError(KafkaError._TRANSPORT)]
    with pytest.raises(KafkaUnavailableError) as caught:
        admin_on(client, monkeypatch).group_names()
    assert caught.value.condition is errors.BROKER_UNREACHABLE


def test_the_list_of_groups_has_those_of_a_broker_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against: 1. the client connects, 2. a broker is added, and becomes the coordinator of some groups, 3. the
    client asks the brokers that it knows, and these groups are missing without an error."""
    client = FakeClient({"one": ["a", "b"]})
    admin = admin_on(client, monkeypatch)
    assert admin.group_names() == ["a", "b"]
    client.brokers = {"one": ["a"], "two": ["b", "c"]}
    assert admin.group_names() == ["a", "b", "c"]


def test_the_list_of_groups_without_any_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient({"one": ["a"]})
    client.away = KafkaError(KafkaError._TRANSPORT)
    with pytest.raises(KafkaUnavailableError):
        admin_on(client, monkeypatch).group_names()


def test_the_exporter_goes_on_without_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    client, kafka, output = FakeClient({"one": ["a"]}), FakeKafka(a={tp(0): 20}, b={tp(0): 30}), FakeOutput()
    exporter = Exporter(
        "c", ["b"], "a", requests=kafka, names=admin_on(client, monkeypatch).group_names, describe=kafka.describe,
        clock=ManualClock(), output=output,
    )  # fmt: skip
    exporter.round()
    client.errors = [KafkaError(KafkaError._TRANSPORT)]
    exporter.round()
    assert [line.partition(":")[0] for line in output.warnings] == ["the list of groups is not measured"]
    assert up(exporter) == {"a": 1, "b": 1}


def test_a_client_whose_request_timed_out_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would abort the process when the coordinator is back: that of the exporter, or of `group --watch`."""
    clients = [FakeClient({}), FakeClient({"one": ["orders"]})]
    made = iter(clients)

    def timed_out(_timeout: float) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return answer

    clients[0].describe_consumer_groups = lambda *_, request_timeout, **__: {"orders": timed_out(request_timeout)}  # type: ignore[attr-defined]
    admin = admin_that_makes(lambda *_: next(made), monkeypatch)
    with pytest.raises(KafkaUnavailableError):
        admin.described("orders")
    assert admin.group_names() == ["orders"]
    assert [client.is_destroyed for client in clients] == [True, False]


def test_a_refused_identity_is_asked_again_by_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token had expired. The next answer takes longer than a moment: its client connects first."""
    refusing, accepting = FakeClient({}), FakeClient({})
    answer: Future[Any] = Future()
    group = SimpleNamespace(state=ConsumerGroupState.STABLE, members=())
    refusing.describe_consumer_groups = lambda *_, **__: {"orders": Future()}  # type: ignore[attr-defined]
    accepting.describe_consumer_groups = lambda *_, **__: {"orders": answer}  # type: ignore[attr-defined]
    refusal = KafkaError(KafkaError._AUTHENTICATION, "token expired")
    refusing.poll = lambda _timeout: admin._requests.transport(refusal)  # type: ignore[method-assign]
    accepting.poll = lambda _timeout: answer.done() or answer.set_result(group)  # type: ignore[assignment, method-assign]
    made = iter([refusing, accepting])
    admin = admin_that_makes(lambda *_: next(made), monkeypatch)
    with pytest.raises(AccessError, match="token expired"):
        admin.described("orders")
    assert refusing.is_destroyed
    assert admin.described("orders") is group
