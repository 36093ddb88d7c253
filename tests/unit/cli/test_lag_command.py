"""Who tells the lag: the command `lag`, and the thread that writes it to the metrics."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from spark_groupsource.cli.arguments import Connection, LagCommand
from spark_groupsource.cli.group.view import DescribedMember
from spark_groupsource.cli.lag_command import measured_lags, report_lag
from spark_groupsource.errors import BROKER_UNREACHABLE as UNREACHABLE
from spark_groupsource.errors import CommandError, KafkaUnavailableError
from spark_groupsource.lag.measure import retention_of
from spark_groupsource.lag.model import Lag, LagInput, Retention
from spark_groupsource.membership.events import GroupEvent
from spark_groupsource.membership.machine import GroupView, MemberMachine
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.sidecars.lag_reporter import LagThread
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.fakes import ManualClock, tp

if TYPE_CHECKING:
    from spark_groupsource.membership.thread import MembershipThread

P0, P1, REFUNDS = tp(0), tp(1), TopicPartition("refunds", 0)
GIVEN = ["lag", "--bootstrap-servers", "broker:9092", "--group", "shop"]
COMMAND = LagCommand(Connection("broker:9092", "shop"))
HOUR = Retention(after_ms=3_600_000)


class FakeLagRequests:
    """`LagRequests` on dicts. Each log is [10, 100), its next unread record 90 s old."""

    def __init__(self, clock: ManualClock, **counts: int) -> None:
        self.clock = clock
        self.counts = counts
        self.groups: dict[TopicPartition, int] = {}
        self.retention = HOUR
        self.asked: list[dict[TopicPartition, int | None]] = []
        self.error: Exception | None = None
        self.leaderless: set[TopicPartition] = set()
        self.timeless: dict[TopicPartition, bool] = {}  # unread, but without a time; whether no record is left
        self.warnings: list[str] = []
        self.members: list[DescribedMember] = []
        self.asked_for_members = 0
        self.closed = 0

    def live(self) -> list[DescribedMember]:
        self.asked_for_members += 1
        return self.members

    def topics(self) -> dict[str, int]:
        return dict(self.counts)

    def group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        assert group == "shop"
        return {p: self.groups[p] for p in partitions if p in self.groups}

    def lag_inputs(self, committed: Mapping[TopicPartition, int | None]) -> list[LagInput]:
        self.asked.append(dict(committed))
        if self.error is not None:
            raise self.error
        next_ms = int(self.clock.epoch_s() * 1000) - 90_000
        return [
            LagInput(p, at) if p in self.leaderless else LagInput(
                p, at, 10, 100, None if p in self.timeless or (at is not None and at >= 100) else next_ms,
                self.retention, self.timeless.get(p, False),
            )
            for p, at in reversed(committed.items())
        ]  # fmt: skip

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def requests(clock: ManualClock) -> FakeLagRequests:
    """Return a cluster with a group that has read all of orders-0, nothing of orders-1, and has lost records."""
    found = FakeLagRequests(clock, orders=2, refunds=1, other=3)
    found.groups = {P0: 100, REFUNDS: 4}
    return found


def run(command: LagCommand, requests: FakeLagRequests, pauses: int = 0) -> tuple[int, list[str]]:
    """Return the exit code and what was printed; `pauses` of --watch, then Ctrl-C."""
    left = [None] * pauses

    def pause(seconds: float) -> None:
        requests.clock.advance(seconds)
        if not left:
            raise KeyboardInterrupt
        left.pop()

    output = FakeOutput(pause)
    output.warn = requests.warnings.append
    try:
        return report_lag(command, requests, requests.clock, requests.live, output), output.lines
    except KeyboardInterrupt:
        return -1, output.lines


def measured(command: LagCommand, requests: FakeLagRequests) -> list[Lag]:
    return measured_lags(command, requests, requests.clock, requests.live, FakeOutput())


# --- the command


def test_all_partitions_of_the_groups_topics_in_a_table(requests: FakeLagRequests) -> None:
    code, said = run(COMMAND, requests)
    assert code == 0
    assert said == [
        "topic    partition  committed  end  lag  behind  safe for",
        "orders           0        100  100    0       -         -",
        "orders           1          -  100   90   1m30s    58m30s  no committed offset: all unread",
        "refunds          0          4  100   90   1m30s    58m30s  6 lost: missing on the broker",
        "total                               180   1m30s    58m30s  6 lost",
    ]


def test_only_the_topics_that_the_user_names(requests: FakeLagRequests) -> None:
    lags = measured(replace(COMMAND, topics=("refunds", "other")), requests)
    assert [lag.partition for lag in lags] == [*(tp(n, "other") for n in range(3)), REFUNDS]
    assert [lag.committed for lag in lags] == [None, None, None, 4]


def test_other_notes(requests: FakeLagRequests) -> None:
    requests.groups = {P0: 120, P1: 50}
    requests.retention = Retention(above_bytes=1_000)
    _, said = run(COMMAND, requests)
    assert said[1].endswith("beyond the log's end: the topic was recreated, or its log truncated")
    assert said[2].endswith("1m30s         -  safe only up to 1000 bytes")
    requests.retention = Retention(known=False)
    _, said = run(COMMAND, requests)
    takes = "needs a real Kafka broker, and the right DESCRIBE_CONFIGS on the topic"
    assert said[-1] == f"retention not known ({takes}): orders"


def test_json(requests: FakeLagRequests) -> None:
    code, (line,) = run(replace(COMMAND, as_json=True), requests)
    shown = json.loads(line)
    assert (code, shown["group"], shown["at_ms"]) == (0, "shop", 1_700_001_000_000)
    assert shown["total"] == {"lag": 180, "lost": 6, "behind_s": 90.0, "safe_s": 3510.0}
    assert shown["partitions"][2] == {
        "topic": "refunds", "partition": 0, "committed": 4, "end": 100, "lag": 90, "lost": 6, "behind_s": 90.0,
        "safe_s": 3510.0, "retention_ms": 3_600_000, "retention_bytes": None,
    }  # fmt: skip
    assert shown["partitions"][1]["committed"] is None


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"max_lag": 180}, 0), ({"max_lag": 179}, 3), ({"max_behind_s": 90.0}, 0), ({"max_behind_s": 89.0}, 3),
        ({"max_lag": 1_000, "max_behind_s": 1.0}, 3),
    ],
)  # fmt: skip
def test_bounds(more: dict[str, Any], code: int, requests: FakeLagRequests) -> None:
    assert run(replace(COMMAND, **more), requests)[0] == code


@pytest.mark.parametrize(("none_left", "code"), [(False, 3), (True, 0)])
def test_an_age_that_is_not_known_may_be_any(none_left: bool, code: int, requests: FakeLagRequests) -> None:
    """A transaction marker alone has no age; a record that may not be read, or does not come, has one."""
    requests.timeless = {REFUNDS: none_left}
    command = replace(COMMAND, max_behind_s=90.0, as_json=True)
    assert run(command, requests)[0] == code
    assert [warning.rpartition(": ")[2] for warning in requests.warnings] == ([] if none_left else ["refunds-0"])
    requests.warnings.clear()
    assert run(replace(command, max_behind_s=None), requests)[0] == 0, "nobody asked for the age"
    assert requests.warnings == []


def test_a_partition_without_a_leader_is_shown_without_a_lag(requests: FakeLagRequests) -> None:
    requests.leaderless = {REFUNDS, P1}
    code, said = run(COMMAND, requests)
    note = "not known: the partition has no leader"
    assert (code, said) == (
        0,
        [
            "topic    partition  committed  end  lag  behind  safe for",
            "orders           0        100  100    0       -         -",
            f"orders           1          -    -    -       -         -  {note}",
            f"refunds          0          4    -    -       -         -  {note}",
            "total                                 0       -         -  2 partitions are not known",
        ],
    )
    _, (line,) = run(replace(COMMAND, as_json=True), requests)
    first, _, last = json.loads(line)["partitions"]
    assert first.keys() == last.keys()
    assert last | {"committed": None} == {"topic": "refunds", "partition": 0} | dict.fromkeys(list(first)[2:])
    assert last["committed"] == 4


@pytest.mark.parametrize("bound", [{"max_lag": 1_000}, {"max_behind_s": 1_000.0}])
def test_behind_an_offset_beyond_the_logs_end_may_be_any_lag(bound: dict[str, Any], requests: FakeLagRequests) -> None:
    """The topic was recreated. A monitor must not see a group without lag."""
    requests.groups = {P0: 120, P1: 100}
    assert run(replace(COMMAND, **bound, as_json=True), requests)[0] == 3
    assert [warning.rpartition(": ")[2] for warning in requests.warnings] == ["orders-0"]


@pytest.mark.parametrize("bound", [{"max_lag": 1_000}, {"max_behind_s": 1_000.0}])
def test_a_partition_without_a_leader_may_have_any_lag(bound: dict[str, Any], requests: FakeLagRequests) -> None:
    requests.leaderless = {REFUNDS}
    assert run(replace(COMMAND, **bound, as_json=True), requests)[0] == 3
    assert [warning.rpartition(": ")[2] for warning in requests.warnings] == ["refunds-0"]


def test_watch(requests: FakeLagRequests) -> None:
    code, said = run(replace(COMMAND, watch_s=30.0, topics=("refunds",)), requests, pauses=1)
    assert code == -1
    assert [line for line in said if line.startswith("2023")] == [
        "2023-11-14T22:30:00.000Z  group shop", "2023-11-14T22:30:30.000Z  group shop",
    ]  # fmt: skip


def test_an_unknown_group_and_an_unknown_topic(requests: FakeLagRequests) -> None:
    with pytest.raises(CommandError, match="these topics do not exist: nowhere, gone"):
        measured(replace(COMMAND, topics=("nowhere", "orders", "gone")), requests)
    requests.groups = {}
    with pytest.raises(CommandError, match="Group 'shop' has no committed offsets on 'broker:9092'"):
        measured(COMMAND, requests)


def member(*partitions: TopicPartition) -> DescribedMember:
    return DescribedMember("A", "a", "h", None, frozenset(partitions))


def test_members_are_only_asked_for_where_nothing_is_committed(requests: FakeLagRequests) -> None:
    requests.members = [member(tp(0, "other"))]
    run(COMMAND, requests)
    assert (requests.asked_for_members, requests.warnings) == (0, [])


def test_members_that_have_committed_nothing(requests: FakeLagRequests) -> None:
    """All partitions of the topics that they read count, but for a topic that is gone."""
    requests.groups = {}
    requests.members = [member(P1, TopicPartition("gone", 0)), member(REFUNDS)]
    code, said = run(COMMAND, requests)
    assert (code, requests.warnings) == (0, ["group shop has 2 members and has committed nothing yet"])
    assert said == [
        "topic    partition  committed  end  lag  behind  safe for",
        "orders           0          -  100   90   1m30s    58m30s  no committed offset: all unread",
        "orders           1          -  100   90   1m30s    58m30s  no committed offset: all unread",
        "refunds          0          -  100   90   1m30s    58m30s  no committed offset: all unread",
        "total                               270   1m30s    58m30s",
    ]
    assert run(replace(COMMAND, max_lag=269), requests)[0] == 3
    lags = measured(replace(COMMAND, topics=("other",)), requests)
    assert [(lag.partition.topic, lag.committed) for lag in lags] == [("other", None)] * 3
    _, (line,) = run(replace(COMMAND, as_json=True, topics=("refunds",)), requests)
    assert [one["committed"] for one in json.loads(line)["partitions"]] == [None]


def test_members_that_have_no_partitions(requests: FakeLagRequests) -> None:
    requests.groups = {}
    requests.members = [member()]
    assert run(replace(COMMAND, max_lag=0, max_behind_s=1.0), requests) == (
        0,
        [
            "topic  partition  committed  end  lag  behind  safe for",
            "total                               0       -         -",
        ],
    )
    assert requests.warnings == ["group shop has 1 member and has committed nothing yet"]


@pytest.mark.parametrize(
    ("config", "retention"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}, Retention(604_800_000)),
        ({"cleanup.policy": "compact, delete", "retention.ms": "5", "retention.bytes": "0"}, Retention(5, 0)),
        ({"cleanup.policy": "compact", "retention.ms": "5", "retention.bytes": "6"}, Retention()),
        ({"cleanup.policy": "", "retention.ms": "5"}, Retention()),
        ({"retention.ms": "-1"}, Retention()),
        ({"retention.ms": "soon"}, Retention()),
        ({}, Retention()),
    ],
)
def test_retention(config: dict[str, str], retention: Retention) -> None:
    assert retention_of(config) == retention


# --- the thread


class Bed:
    """The thread's loop on the test's own thread; it ends after so many seconds."""

    def __init__(self, clock: ManualClock, folder: Path, interval_s: float = 30.0) -> None:
        self.clock = clock
        self.machine = MemberMachine()
        self.machine.handle(GroupEvent.STARTED)
        self.member = SimpleNamespace(view=self.machine.view, stopping=False, failed=False)
        self.requests = FakeLagRequests(clock)
        self.path = folder / "metrics.jsonl"
        self.metrics = MetricsLog(str(self.path), "shop", clock)
        self.ends_s = 0.0
        self.then: dict[float, Any] = {}
        self.thread = LagThread(
            interval_s, clock=clock, member=cast("MembershipThread", self.member), requests=self.requests,
            metrics=self.metrics, pause=self._pause,
        )  # fmt: skip

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.member.stopping = self.clock.now_s >= self.ends_s

    def run(self, seconds: float) -> list[dict[str, Any]]:
        """Run for so long; return the lines written."""
        self.ends_s, self.member.stopping = self.clock.now_s + seconds, False
        self.path.unlink(missing_ok=True)
        self.thread.run()
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def own(self, *partitions: TopicPartition, offset: int | None = 40) -> None:
        """Let the group give partitions whose start is pinned there; without an offset it is not pinned yet."""
        self.machine.handle(GroupEvent.PARTITIONS_ASSIGNED, partitions)
        self.machine.offsets_fetched(dict.fromkeys(partitions, GroupOffset(offset)))
        if offset is not None:
            self.machine.positions_established(dict.fromkeys(partitions, offset), ())


def test_the_event(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path)
    bed.own(P0, P1)
    (line,) = bed.run(20)
    assert (line["event"], line["partitions"]) == ("lag", [["orders", 0], ["orders", 1]])
    assert sorted(line["details"]["lag"]) == [["orders", 0, 60, 90.0, 3510.0], ["orders", 1, 60, 90.0, 3510.0]]
    assert line["details"]["total"] == {"records": 120, "lost": 0, "behind_s": 90.0, "safe_s": 3510.0}
    assert bed.requests.asked == [{P0: 40, P1: 40}]
    assert bed.requests.closed == 1


def test_one_event_per_interval(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path, interval_s=10.0)
    bed.own(P0)
    times = [line["at"] for line in bed.run(35)]
    assert len(times) == 4
    assert all(10.0 <= later - earlier < 10.3 for earlier, later in pairwise(times))


def test_no_event_without_a_partition_or_before_its_start_is_pinned(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path)
    assert bed.run(40) == []
    bed.own(P0, offset=None)
    assert bed.run(40) == []
    assert bed.requests.asked == []


def test_what_is_assigned_later_is_reported_soon(clock: ManualClock, tmp_path: Path) -> None:
    """The interval begins with the first event, not with the query."""
    bed = Bed(clock, tmp_path, interval_s=600.0)
    started_s = clock.now_s

    def view() -> GroupView:
        if clock.now_s > started_s + 5 and not bed.machine.owned_partitions():
            bed.own(P0)
        return bed.machine.view()

    bed.member.view = view
    assert len(bed.run(8)) == 1


def test_no_event_while_a_revoke_drains(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path)
    bed.own(P0)
    bed.machine.handle(GroupEvent.REVOKE_STARTED, (P0,))
    assert bed.run(5) == []


def test_a_failure_leaves_no_old_lag_for_the_port(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path, interval_s=1.0)
    bed.own(P0)
    bed.run(2)
    assert [row[:3] for row in bed.metrics.totals.lag] == [["orders", 0, 60]]
    bed.requests.error = RuntimeError("away")
    assert bed.run(2) == []
    assert list(bed.metrics.totals.lag) == []
    bed.requests.error = None
    bed.run(2)
    assert [row[:3] for row in bed.metrics.totals.lag] == [["orders", 0, 60]]


def test_a_partition_without_a_leader_is_named_by_the_event(clock: ManualClock, tmp_path: Path) -> None:
    bed = Bed(clock, tmp_path)
    bed.own(P0, P1)
    bed.requests.leaderless = {P1}
    (line,) = bed.run(20)
    assert (line["partitions"], line["details"]["leaderless"]) == ([["orders", 0]], [["orders", 1]])
    assert line["details"]["total"]["records"] == 60


def test_no_event_says_zero_if_no_partition_has_a_leader(
    clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(clock, tmp_path)
    bed.own(P0, P1)
    bed.requests.leaderless = {P0, P1}
    assert bed.run(20) == []
    assert "the lag is not measured: " in caplog.text
    assert "orders-0, orders-1" in caplog.text


def test_the_error_of_the_member_is_no_trouble_of_the_lag(
    clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query reports it."""
    bed = Bed(clock, tmp_path)
    bed.own(P0)
    bed.requests.error, bed.member.failed = RuntimeError("partitions lost"), True
    assert bed.run(20) == []
    assert caplog.text == ""


def test_trouble_is_reported_once_until_it_is_over(
    clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(clock, tmp_path, interval_s=1.0)
    bed.own(P0)
    bed.requests.error = KafkaUnavailableError(UNREACHABLE, servers="broker:9092", timeout_s=20.0, reason="away")
    with caplog.at_level(logging.INFO):
        assert bed.run(10) == []
        assert caplog.text.count("the lag is not measured") == 1
        bed.requests.error = None
        assert bed.run(2)
        assert caplog.text.count("the lag is measured again") == 1
        bed.requests.error = RuntimeError("what nobody expected")
        assert bed.run(5) == []
    assert caplog.text.count("the lag is not measured") == 2
