"""The command `exporter`: metrics of groups from lag inputs, rounds that fail, and the port that is scraped."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from spark_groupsource import errors
from spark_groupsource.cli.arguments import ExporterCommand, parse_arguments
from spark_groupsource.cli.exporter.command import serve_metrics
from spark_groupsource.cli.exporter.rounds import GROUP_S, Exporter
from spark_groupsource.cli.exporter.samples import (
    GROUP_METRICS,
    GroupReading,
    group_samples,
    log_samples,
    status_samples,
)
from spark_groupsource.cli.group.view import DescribedMember, GroupDescription
from spark_groupsource.errors import AccessError, CommandError, KafkaUnavailableError, OptionError
from spark_groupsource.lag.model import LagInput, Retention
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.prometheus.families import Family, Histogram, Sample
from spark_groupsource.prometheus.server import MetricsServer
from spark_groupsource.redaction import MASK, remember
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.fakes import ManualClock, tp

P0, P1, P2 = tp(0), tp(1), tp(2)
NOW_S = 1_700_000_100.0
NOW_MS = int(NOW_S * 1000)
HOUR = Retention(after_ms=3_600_000)
MEMBER = DescribedMember("lake-a-5f2a", "lake-a", "10.0.0.4", partitions=frozenset({P0, P1}))
GROUP = GroupDescription("shop", "Stable", "classic", members=(MEMBER,))


def values(samples: Iterator[Sample]) -> dict[str, dict[tuple[str, ...], Any]]:
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for sample in samples:
        name = sample.family.name.removeprefix("kafka_consumergroup_group_")
        assert sample.labels not in found.setdefault(name, {}), f"{name}{sample.labels} twice"
        found[name][sample.labels] = sample.value
    return found


def test_the_metrics_of_a_group() -> None:
    """0 is behind and has lost records, 1 is done, 2 has no owner, no offset, and a record of unknown age."""
    inputs = (
        LagInput(P0, 4, 10, 100, NOW_MS - 60_000, HOUR),
        LagInput(P1, 50, 0, 50, None, HOUR),
        LagInput(P2, None, 0, 7),
    )
    found = values(group_samples("prod", GroupReading("shop", NOW_S, inputs, GROUP)))
    zero, one = (("prod", "shop", "orders", n, "10.0.0.4", "lake-a-5f2a", "lake-a") for n in "01")
    two = ("prod", "shop", "orders", "2", "", "", "")
    of_group = ("prod", "shop")
    assert found["offset"] == {zero: 4, one: 50}
    assert found["lag"] == {zero: 90, one: 0, two: 7}
    assert found["lag_seconds"] == {zero: 60.0, one: 0.0}
    assert found["time_to_data_loss_seconds"] == {zero: 3540.0}
    assert found["lost_offsets"] == {zero: 6}
    assert found["max_lag"] == {of_group: 90}
    assert found["max_lag_seconds"] == {of_group: 60.0}
    assert found["sum_lag"] == {of_group: 97}
    assert found["topic_sum_lag"] == {(*of_group, "orders"): 97}
    assert found["min_time_to_data_loss_seconds"] == {of_group: 3540.0}
    assert found["age_unknown_partitions"] == {of_group: 1}
    assert found["members"] == {of_group: 1}
    assert {labels[-1] for labels, value in found["state"].items() if value} == {"Stable"}
    assert len(found["state"]) == 8
    assert found["measured_timestamp_seconds"] == {of_group: NOW_S}


def test_a_group_without_members_and_one_that_cannot_be_described() -> None:
    inputs = (LagInput(P0, 4, 0, 4),)
    empty = values(group_samples("c", GroupReading("g", NOW_S, inputs, GroupDescription("g", "Empty"))))
    assert empty["members"] == {("c", "g"): 0}
    assert empty["state"]["c", "g", "Empty"] == 1
    unknown = values(group_samples("c", GroupReading("g", NOW_S, inputs)))
    assert "members" not in unknown
    assert "state" not in unknown
    assert unknown["lag"] == empty["lag"] == {("c", "g", "orders", "0", "", "", ""): 0}


@pytest.mark.parametrize("ahead_ms", [600_000, NOW_MS * 999])
def test_of_a_record_from_the_future_no_age_is_shown(ahead_ms: int) -> None:
    """0 would keep every alert on age silent."""
    inputs = (LagInput(P0, 4, 10, 100, NOW_MS + ahead_ms, HOUR),)
    found = values(group_samples("c", GroupReading("g", NOW_S, inputs)))
    assert found["age_unknown_partitions"] == {("c", "g"): 1}
    assert found["max_lag"] == {("c", "g"): 90}
    ages = ("lag_seconds", "max_lag_seconds", "time_to_data_loss_seconds", "min_time_to_data_loss_seconds")
    assert not found.keys() & set(ages)


def test_a_state_of_a_later_broker_is_shown_too() -> None:
    found = values(group_samples("c", GroupReading("g", NOW_S, (), GroupDescription("g", "Dreaming"))))
    assert {labels[-1] for labels, value in found["state"].items() if value} == {"Dreaming"}


def test_a_log_that_two_groups_read_is_shown_once_as_measured_last() -> None:
    older = GroupReading("a", NOW_S - 10, (LagInput(P0, 4, 0, 90), LagInput(P1, 4, 0, 5)))
    newer = GroupReading("b", NOW_S, (LagInput(P0, 4, 10, 100),))
    found = values(log_samples("prod", [newer, older]))
    assert found["kafka_partition_latest_offset"] == {("prod", "orders", "0"): 100, ("prod", "orders", "1"): 5}
    assert found["kafka_partition_earliest_offset"] == {("prod", "orders", "0"): 10, ("prod", "orders", "1"): 0}


def test_a_log_without_a_leader_was_not_measured() -> None:
    """1. Group a is measured. 2. The leader goes away. 3. Group b is measured: the log's end is that of a."""
    older = GroupReading("a", NOW_S - 10, (LagInput(P0, 4, 10, 90),))
    newer = GroupReading("b", NOW_S, (LagInput(P0, 4),))
    found = values(log_samples("prod", [newer, older]))
    assert found["kafka_partition_latest_offset"] == {("prod", "orders", "0"): 90}


def test_the_table_of_metrics_is_complete() -> None:
    reading = GroupReading("g", NOW_S, (LagInput(P0, 4, 10, 100, NOW_MS - 60_000, HOUR),), GROUP)
    samples = [*group_samples("c", reading), *log_samples("c", [reading]), *status_samples("c", {"g": True}, 1.0)]
    assert {sample.family for sample in samples} == set(GROUP_METRICS)
    assert len({family.name for family in GROUP_METRICS}) == len(GROUP_METRICS)


# --- rounds


class FakeKafka:
    """Requests for groups and their lag, on dicts. Each log is [10, 100)."""

    def __init__(self, **offsets: dict[TopicPartition, int]) -> None:
        self.offsets = offsets
        self.leaderless: set[TopicPartition] = set()
        self.described: dict[str, GroupDescription] = {}
        self.broken: dict[str, Exception] = {}
        self.asked: list[str] = []

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.broken:
            raise self.broken[what]

    def topics(self) -> dict[str, int]:
        self._ask("topics")
        return {"orders": 3, "refunds": 1}

    def group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        self._ask(group)
        return {p: at for p, at in self.offsets.get(group, {}).items() if p in partitions}

    def log_bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (10, 100))

    def lag_inputs(self, committed: Mapping[TopicPartition, int | None]) -> list[LagInput]:
        return [
            LagInput(p, at) if p in self.leaderless else LagInput(p, at, 10, 100, NOW_MS, HOUR)
            for p, at in committed.items()
        ]

    def close(self) -> None:
        pass

    def names(self) -> list[str]:
        self._ask("names")
        return sorted({*self.offsets, *self.described})

    def describe(self, group: str) -> GroupDescription | None:
        return self.described.get(group)


def exporter(
    kafka: FakeKafka, *named: str, pattern: str | None = None, clock: ManualClock | None = None
) -> tuple[Exporter, list[str]]:
    clock, output = clock or ManualClock(), FakeOutput()
    made = Exporter(
        "c", named, pattern, requests=kafka, names=kafka.names, describe=kafka.describe, clock=clock, output=output
    )
    return made, output.warnings


def up(made: Exporter) -> dict[str, float]:
    return {
        sample.labels[1]: float(str(sample.value)) for sample in made.samples() if sample.family.name.endswith("_up")
    }


def lagging(made: Exporter) -> set[str]:
    return {sample.labels[1] for sample in made.samples() if sample.family.name.endswith("_group_lag")}


def test_the_first_round_reports_its_steps() -> None:
    kafka, clock, output = FakeKafka(a={P0: 20}, b={P0: 30}), ManualClock(), FakeOutput()
    made = Exporter(
        "c", ("a", "b"), None, requests=kafka, names=kafka.names, describe=kafka.describe, clock=clock, output=output
    )
    made.round()
    made.round()
    assert output.steps == [
        "reading the list of topics and groups", "first measurement: group a, 1 of 2",
        "first measurement: group b, 2 of 2", "",
    ]  # fmt: skip


def test_named_groups_and_those_of_a_pattern() -> None:
    kafka = FakeKafka(**{"a-lake": {P0: 20}, "b-lake": {P0: 30}, "lake-c": {P0: 30}, "named": {P1: 20}})
    made, said = exporter(kafka, "named", pattern=".*-lake")
    made.round()
    assert up(made) == {"named": 1, "a-lake": 1, "b-lake": 1}
    assert lagging(made) == {"named", "a-lake", "b-lake"}
    assert said == []
    del kafka.offsets["a-lake"]
    kafka.offsets["new-lake"] = {P2: 10}
    made.round()
    assert lagging(made) == {"named", "b-lake", "new-lake"}
    assert up(made).keys() == lagging(made)


def test_a_group_that_fails_is_down_alone_and_has_no_old_lag() -> None:
    kafka = FakeKafka(a={P0: 20}, b={P0: 30})
    made, said = exporter(kafka, "a", "b")
    made.round()
    kafka.broken["a"] = AccessError(errors.OTHER_GROUP_ACCESS_DENIED, group="a")
    for _ in range(3):
        made.round()
    assert (up(made), lagging(made)) == ({"a": 0, "b": 1}, {"b"})
    assert len(said) == 1
    assert said[0].startswith("group a is not measured: [GROUPKAFKA.OTHER_GROUP_ACCESS_DENIED]")
    kafka.broken.clear()
    made.round()
    assert (up(made), lagging(made)) == ({"a": 1, "b": 1}, {"a", "b"})
    assert said[1:] == ["group a is measured again"]


def test_without_brokers_all_groups_are_down_after_one_wait() -> None:
    kafka = FakeKafka(a={P0: 20}, b={P0: 30})
    made, said = exporter(kafka, "a", pattern="b")
    made.round()
    kafka.broken["topics"] = KafkaUnavailableError(
        errors.BROKER_UNREACHABLE, servers="here:1", timeout_s=1.0, reason="down"
    )
    kafka.asked.clear()
    made.round()
    assert kafka.asked == ["topics"]
    assert (up(made), lagging(made)) == ({"a": 0, "b": 0}, set())
    assert [line.partition(":")[0] for line in said] == ["the cluster is not measured"]
    kafka.broken.clear()
    made.round()
    assert lagging(made) == {"a", "b"}


def test_brokers_that_go_away_in_a_round_leave_no_old_lags() -> None:
    """Guards against: 1. a round begins, 2. the brokers go away, 3. each group waits for them, while the groups that
    follow keep their old lags."""
    kafka = FakeKafka(**{name: {P0: 20} for name in "abcd"})
    made, said = exporter(kafka, pattern=".")
    made.round()
    down = KafkaUnavailableError(errors.BROKER_UNREACHABLE, servers="here:1", timeout_s=1.0, reason="down")

    def go_away(_group: str) -> None:
        kafka.broken |= dict.fromkeys(("topics", "b", "c", "d"), down)

    kafka.described["a"] = GROUP
    made._describe = go_away
    kafka.asked.clear()
    made.round()
    assert kafka.asked == ["topics", "names", "a", "b", "topics"]
    assert (up(made), lagging(made)) == ({"a": 1, "b": 0, "c": 0, "d": 0}, {"a"})
    assert [line.partition(":")[0] for line in said] == ["group b is not measured", "the cluster is not measured"]


def test_a_broker_that_goes_away_alone_takes_only_its_groups() -> None:
    """The list of groups fails, and so does each group whose coordinator is away."""
    kafka = FakeKafka(a={P0: 20}, b={P0: 30}, c={P0: 40})
    made, said = exporter(kafka, "c", pattern=".")
    made.round()
    down = KafkaUnavailableError(errors.BROKER_UNREACHABLE, servers="here:1", timeout_s=1.0, reason="down")
    kafka.broken = {"names": down, "a": down}
    made.round()
    made.round()
    assert (up(made), lagging(made)) == ({"c": 1, "a": 0, "b": 1}, {"b", "c"})
    down_now = ["the list of groups is not measured", "group a is not measured"]
    assert [line.partition(":")[0] for line in said] == down_now
    kafka.broken.clear()
    made.round()
    assert lagging(made) == {"a", "b", "c"}


def test_an_error_of_a_group_without_a_name_is_its_own() -> None:
    kafka = FakeKafka(**{"": {P0: 20}, "a": {P0: 30}})
    kafka.broken[""] = RuntimeError("no")
    made, said = exporter(kafka, pattern=".*")
    made.round()
    made.round()
    assert said == ["group  is not measured: no"]


def test_a_group_that_does_not_exist_is_down() -> None:
    made, said = exporter(FakeKafka(), "nobody")
    made.round()
    assert up(made) == {"nobody": 0}
    assert "GROUPKAFKA.GROUP_NOT_FOUND" in said[0]


def test_a_group_that_has_committed_nothing_lags_by_all_that_its_members_read() -> None:
    kafka = FakeKafka(shop={})
    kafka.described["shop"] = GROUP
    made, _ = exporter(kafka, "shop")
    made.round()
    found = values(made.samples())
    assert set(found["lag"].values()) == {90}
    assert len(found["lag"]) == 3
    assert "offset" not in found


def test_a_partition_without_a_leader_has_an_offset_and_no_lag() -> None:
    kafka = FakeKafka(shop={P0: 20, P1: 30})
    kafka.leaderless = {P1, P2}
    made, said = exporter(kafka, "shop")
    made.round()
    found = values(made.samples())
    assert {labels[3]: at for labels, at in found["offset"].items()} == {"0": 20, "1": 30}
    assert {labels[3] for name in ("lag", "lag_seconds") for labels in found[name]} == {"0"}
    assert {labels[2] for labels in found["kafka_partition_latest_offset"]} == {"0"}
    assert found["age_unknown_partitions"] == {("c", "shop"): 2}
    assert found["sum_lag"] == {("c", "shop"): 80}
    assert said == []


def test_the_error_of_a_group_that_was_deleted_is_forgotten() -> None:
    """Guards against an exporter that keeps a text for each group that there ever was."""
    kafka = FakeKafka(a={P0: 20}, b={P0: 30})
    made, said = exporter(kafka, pattern=".")
    kafka.broken["a"] = RuntimeError("no")
    made.round()
    deleted = kafka.offsets.pop("a")
    made.round()
    kafka.offsets["a"] = deleted
    made.round()
    assert said == ["group a is not measured: no"] * 2


def test_an_unexpected_error_ends_nothing_and_shows_no_secret() -> None:
    kafka = FakeKafka(a={P0: 20})
    made, said = exporter(kafka, "a")
    remember(["canary-of-a-password"])
    kafka.broken["a"] = RuntimeError("canary-of-a-password is wrong")
    made.round()
    assert up(made) == {"a": 0}
    assert said == [f"group a is not measured: {MASK} is wrong"]


def test_a_setting_that_the_client_refuses_ends_the_command() -> None:
    kafka = FakeKafka(a={P0: 20})
    made, _ = exporter(kafka, "a")
    kafka.broken["topics"] = OptionError(errors.CLIENT_REFUSED_OPTION, option="kafka.x", value="1", reason="no")
    with pytest.raises(OptionError):
        made.round()


def test_each_group_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, clock = FakeKafka(a={P0: 20}, b={P0: 30}), ManualClock()
    made, _ = exporter(kafka, "a", "b", clock=clock)
    late: list[bool] = []

    def describe(group: str) -> GroupDescription | None:
        late.append(made.is_late)
        clock.advance(GROUP_S + 1)
        late.append(made.is_late)
        return None

    monkeypatch.setattr(made, "_describe", describe)
    made.round()
    assert late == [False, True] * 2


# --- the port


GAUGE = Family("some_value", "gauge", "A `value` of [some](../kind.md) kind.", ("name",))
COUNTER = Family("some_total", "counter", "Things.")
HISTOGRAM = Family("some_seconds", "histogram", "Durations.", ("name",))
SAMPLES = [
    GAUGE.of(1.5, 'quote " and \\ and\nline'), COUNTER.of(3), GAUGE.of(0, "b"),
    HISTOGRAM.of(Histogram((0.5, 1.0), (1, 2, 3), 12.5), "a"),
]  # fmt: skip
TEXT = """\
# HELP some_seconds Durations.
# TYPE some_seconds histogram
some_seconds_bucket{le="0.5",name="a"} 1.0
some_seconds_bucket{le="1",name="a"} 3.0
some_seconds_bucket{le="+Inf",name="a"} 6.0
some_seconds_count{name="a"} 6.0
some_seconds_sum{name="a"} 12.5
# HELP some_total Things.
# TYPE some_total counter
some_total 3.0
# HELP some_value A value of some kind.
# TYPE some_value gauge
some_value{name="quote \\" and \\\\ and\\nline"} 1.5
some_value{name="b"} 0.0
"""


def get(port: int, path: str = "/metrics") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_scrape() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: SAMPLES)
    try:
        assert get(server.port) == (200, "text/plain; version=0.0.4; charset=utf-8", TEXT)
        assert get(server.port, "/other")[0] == 404
    finally:
        server.close()
    server.close()
    with pytest.raises(OSError, match="refused"):
        get(server.port)


def test_a_scrape_that_fails_is_not_the_last() -> None:
    answers = iter([RuntimeError("secret"), None])

    def samples() -> list[Sample]:
        error = next(answers)
        if error is not None:
            raise error
        return SAMPLES

    server = MetricsServer("127.0.0.1", 0, samples)
    try:
        status, _, text = get(server.port)
        assert (status, "secret" in text) == (500, False)
        assert get(server.port)[0] == 200
    finally:
        server.close()


def test_silent_connections_are_limited_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_groupsource.prometheus.server._Handler.timeout", 0.5)
    server = MetricsServer("127.0.0.1", 0, lambda: SAMPLES)
    silent = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(20)]
    try:
        # The first 16 wait for their time limit, the others are closed at once.
        for connection in silent:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert get(server.port)[0] == 200
    finally:
        for connection in silent:
            connection.close()
        server.close()


def test_connections_that_get_no_thread_are_not_counted() -> None:
    """Guards against: 1. the process has no thread left for some connections, 2. each of them takes a place for ever,
    3. after 16 of them the metrics cannot be read any more."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    server = MetricsServer("127.0.0.1", 0, lambda: SAMPLES)
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(socketserver.ThreadingMixIn, "process_request", refuse)
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
                    assert connection.recv(1) == b""
        assert get(server.port)[0] == 200
    finally:
        server.close()


def test_a_sample_has_as_many_labels_as_its_family() -> None:
    with pytest.raises(ValueError, match="has the labels"):
        GAUGE.of(1.0)


# --- the command


class Ended(Exception):
    """Ends the command's rounds."""


def command(*words: str) -> ExporterCommand:
    found = parse_arguments(["exporter", "--bootstrap-servers", "here:9092", *words])
    assert isinstance(found, ExporterCommand)
    return found


def test_the_command_prints_its_port_and_closes_it() -> None:
    made, _ = exporter(FakeKafka(a={P0: 20}), "a")
    output = FakeOutput()

    def pause(seconds: float) -> None:
        assert seconds == 15.0
        assert 'kafka_consumergroup_group_up{cluster_name="c",group="a"} 1.0' in get(port())[2]
        raise Ended

    def port() -> int:
        return int(output.lines[0].removeprefix("metrics at http://127.0.0.1:").removesuffix("/metrics"))

    with pytest.raises(Ended):
        serve_metrics(command("--group", "a", "--port", "0"), made, output, pause)
    with pytest.raises(OSError, match="refused"):
        get(port())


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(CommandError, match=rf"LISTENING_FAILED.*'--port'.*port {port}: Address already in use"):
            serve_metrics(command("--group", "a", "--port", str(port)), exporter(FakeKafka())[0], FakeOutput(), print)


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_named(address: str) -> None:
    with pytest.raises(CommandError, match=rf"LISTENING_FAILED.*'--address'.*'{address}'"):
        serve_metrics(command("--group", "a", "--address", address), exporter(FakeKafka())[0], FakeOutput(), print)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "spark_groupsource.prometheus.server")
    with pytest.raises(CommandError, match=r"Command 'exporter' needs .*'prometheus_client'.*'\.\[metrics\]'"):
        serve_metrics(command("--group", "a"), exporter(FakeKafka())[0], FakeOutput(), print)


def test_no_other_command_imports_it() -> None:
    code = (
        "import sys, spark_groupsource.cli.main, spark_groupsource.spark.assembly, spark_groupsource.spark.source;"
        "print('prometheus_client' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "False\n"
