"""Reading a Spark task: rows, deadlines, lost records."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.clock import Clock
from spark_groupsource.cluster.port import CONFIRM_S, TopicInfo
from spark_groupsource.errors import AccessError, DataLossError, KafkaUnavailableError, ReadError
from spark_groupsource.executor import broker_requests
from spark_groupsource.executor.clients.port import EndOfPartition, Misfit
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.executor.clients.rows import SmallBatches, arrow_schema, record_batch
from spark_groupsource.executor.data_loss import LostRecords
from spark_groupsource.executor.gc_control import freeze_imported
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.reader import read_task
from spark_groupsource.executor.topic_proof import TopicProof
from spark_groupsource.model.offsets import NO_TOPIC_ID, OffsetRange
from spark_groupsource.options.model import SourceOptions
from tests.unit.fakes import (
    TOPIC_ID,
    FakeClient,
    FakeCluster,
    FakeMessage,
    ManualClock,
    eof,
    make_options,
    out_of_range,
    range_consumer,
    records,
    tp,
    unknown,
)

P0, P1 = tp(0), tp(1)
R0, R1 = OffsetRange(P0, 10, 13), OffsetRange(P1, 0, 2)


class IdsOf(Mapping[str, str]):
    """The ids of a cluster's topics, as they are when they are asked for."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    def __getitem__(self, topic: str) -> str:
        return self.cluster.describe([topic])[topic].topic_id

    def __contains__(self, topic: object) -> bool:
        return topic in self.cluster.topics

    def __iter__(self) -> Iterator[str]:
        return iter(self.cluster.topics)

    def __len__(self) -> int:
        return len(self.cluster.topics)


class Bed:
    """A pool whose consumers stand on scripted clients, and a cluster to be asked about topics."""

    def __init__(self, *batches: list[FakeMessage], **options: str) -> None:
        self.clock = ManualClock()
        self.client = FakeClient(self.clock, *batches)
        self.made: list[FakeClient] = []
        self.options = make_options(**options)
        self.pool = ConsumerPool(self._make, self.clock, pause=None)
        self.cluster = FakeCluster(orders=2)
        self.described = 0

    def _lost(self, options: SourceOptions, topic_ids: Mapping[str, str], clock: Clock) -> LostRecords:
        return LostRecords(options, topic_ids, clock, self._connect, self.clock.advance)

    def _connect(self, _: SourceOptions) -> FakeCluster:
        self.described += 1
        return self.cluster

    def _make(self, options: SourceOptions, _partitions: int, bulk: bool) -> RangeConsumer:
        client = self.client if not self.made else FakeClient(self.clock)
        client.topic_ids = IdsOf(self.cluster)  # type: ignore[assignment]
        self.made.append(client)
        return range_consumer(client, options, bulk=bulk)

    def rows(self, *task: OffsetRange, **topic_ids: str) -> list[dict[str, Any]]:
        """Return all rows of a task whose topics were planned with these ids."""
        found = read_task(self.options, task, self.pool, self.clock, topic_ids=topic_ids, make_lost=self._lost)
        return pa.Table.from_batches(list(found), arrow_schema(self.options.include_headers)).to_pylist()

    def read(self, *task: OffsetRange) -> list[tuple[int, int]]:
        """Return (partition, offset) of all rows."""
        return [(row["partition"], row["offset"]) for row in self.rows(*task, orders=TOPIC_ID)]

    def read_topics(self, *task: OffsetRange, **topic_ids: str) -> list[tuple[str, int]]:
        """Return (topic, offset) of all rows."""
        return [(row["topic"], row["offset"]) for row in self.rows(*task, **topic_ids)]


# --- ranges


@pytest.mark.rule("R56")
def test_p1_a_task_gives_its_ranges_one_after_the_other_whatever_arrives_first() -> None:
    bed = Bed([*records(1, 0), *records(0, 10, 11)], [*records(0, 12), *records(1, 1)])
    assert bed.read(R0, R1) == [(0, 10), (0, 11), (0, 12), (1, 0), (1, 1)]
    assert repr(bed.pool) == "ConsumerPool(idle=1, resting=0)"


def test_a_range_that_waits_does_not_hold_up_the_others() -> None:
    """A leader that is away, a fetch that is answered later."""
    bed = Bed(records(1, 0), [], records(1, 1), [], records(0, 10, 11, 12))
    assert bed.read(R0, R1) == [(0, 10), (0, 11), (0, 12), (1, 0), (1, 1)]
    assert len(bed.client.assigned) == 1, "nothing that came was fetched twice"


def test_a_range_that_makes_no_progress_fails_at_the_deadline() -> None:
    bed = Bed([eof(0, 11)], records(0, 10), kafkaConsumer__pollTimeoutMs="5000")
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 5 s at offset 11.*\[10, 13\)"):
        bed.read(R0)
    assert 5.0 <= bed.clock.now_s - 1000.0 < 5.5
    assert bed.client.closed == 1
    assert repr(bed.pool) == "ConsumerPool(idle=0, resting=0)"


@pytest.mark.rule("R89")
def test_ranges_that_miss_nothing_and_do_not_end_fail_at_the_deadline() -> None:
    """Whatever leads to it: without an end, the batch and every handover would wait for ever."""
    bed = Bed(records(0, 10), kafkaConsumer__pollTimeoutMs="5000")

    class Stuck(RangeConsumer):
        def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
            return []

    made = bed.pool.borrow(bed.options, [R0], {"orders": TOPIC_ID})
    made.__class__ = Stuck
    bed.pool.give_back(made)
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 5 s at offset 11"):
        bed.read(R0)


def test_a_silence_is_reported_before_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(records(0, 10), kafkaConsumer__pollTimeoutMs="60000")
    with pytest.raises(ReadError, match="READ_STALLED"):
        bed.read(R0)
    (said,) = [line for line in caplog.messages if line.startswith("no records")]
    assert said.startswith("no records for 5 s, waiting up to 60 s: range=orders-0 [10, 13) position=11 last_error=")


def test_a_topic_that_may_not_be_known_is_reported_before_the_deadline() -> None:
    """The client says nothing at all of it: it is asked after a silence."""
    bed = Bed(kafkaConsumer__pollTimeoutMs="60000")
    bed.client.denied = {"orders"}
    with pytest.raises(AccessError, match=r"TOPIC_ACCESS_DENIED.*'orders'"):
        bed.read(R0)
    assert 5.0 <= bed.clock.now_s - 1000.0 < 6.0


def test_silent_brokers_are_not_asked_for_topic_after_topic() -> None:
    """Each of them would be waited for: 300 topics took five minutes, whatever the deadline was."""
    bed = Bed(subscribePattern=".*", **{"kafkaConsumer.pollTimeoutMs": "10000"})
    bed.client.answers = False
    before_s = bed.clock.now_s
    with pytest.raises(ReadError, match="READ_STALLED"):
        bed.read(*(OffsetRange(tp(0, f"topic-{number}"), 0, 3) for number in range(300)))
    assert bed.clock.now_s - before_s < 20


def test_what_silent_brokers_did_not_answer_is_asked_again() -> None:
    bed = Bed(subscribePattern=".*")
    bed.client.answers = False
    bed.client.denied = {"topic-7"}

    def back() -> None:
        bed.client.answers = True

    bed.client.before.extend([lambda: None] * 70 + [back])
    with pytest.raises(AccessError, match="topic-7"):
        bed.read(*(OffsetRange(tp(0, f"topic-{number}"), 0, 3) for number in range(10)))


def test_the_deadline_starts_anew_with_every_record() -> None:
    silence: list[FakeMessage] = []
    batches = [batch for offset in (10, 11, 12) for batch in (*[silence] * 3, records(0, offset))]
    bed = Bed(*batches, kafkaConsumer__pollTimeoutMs="500")
    bed.client.slow_s = 0.15
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


@pytest.mark.rule("R24")
@pytest.mark.parametrize("gap", [records(1, 0), []])
def test_what_spark_does_with_rows_is_no_silence_of_the_brokers(gap: list[FakeMessage]) -> None:
    """1. a task gives what has arrived, 2. Spark's sink takes 200 s for it, 3. the next record is not there at once.

    The range that waits, or the next one, has to be fetched first.
    """
    first = OffsetRange(P0, 0, 20_000)
    bed = Bed(records(0, *range(20_000)), [], [], gap, [], records(1, 0, 1), kafkaConsumer__pollTimeoutMs="120000")
    rows = read_task(bed.options, (first, R1), bed.pool, bed.clock)
    count = 0
    while count < len(first):
        count += next(rows).num_rows
    bed.clock.advance(200)
    assert count + sum(batch.num_rows for batch in rows) == 20_002


@pytest.mark.rule("R24")
def test_a_process_that_stood_still_while_it_waited_for_a_proof_asks_once_more() -> None:
    """All rows have arrived, and only the topic's id is not known yet."""
    bed = Bed(records(0, 10, 11, 12), kafkaConsumer__pollTimeoutMs="120000")
    answers = iter((200.0, 0.0))
    read_answer = TopicProof.read_answer

    def late(proof: TopicProof, timeout_s: float) -> list[str]:
        pause_s = next(answers, 0.0)
        bed.clock.advance(pause_s)
        return [] if pause_s else read_answer(proof, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicProof, "read_answer", late)
        assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


@pytest.mark.rule("R24")
def test_a_process_that_stood_still_while_it_waited_asks_once_more() -> None:
    """SIGSTOP, or a virtual machine that is paused, for longer than the deadline."""
    bed = Bed([], [], records(0, 10, 11, 12), kafkaConsumer__pollTimeoutMs="120000")
    bed.client.before.extend([lambda: None, lambda: bed.clock.advance(200)])
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


def test_a_task_that_is_cut_short_gives_its_consumer_up() -> None:
    bed = Bed(records(0, *range(1_000)), records(0, 1_000))
    rows = read_task(bed.options, (OffsetRange(P0, 0, 1_001),), bed.pool, bed.clock)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert (bed.client.closed, repr(bed.pool)) == (1, "ConsumerPool(idle=0, resting=0)")


def test_what_a_worker_has_imported_is_not_collected_after_every_task() -> None:
    freeze_imported.cache_clear()
    gc.unfreeze()
    try:
        Bed(records(0, 10, 11, 12)).read(R0)
        frozen = gc.get_freeze_count()
        assert frozen > 1_000
        Bed(records(0, 10, 11, 12)).read(R0)
        assert gc.get_freeze_count() <= frozen, "once per process"
    finally:
        gc.unfreeze()


# --- lost records


def test_lost_records_fail_the_task() -> None:
    bed = Bed([out_of_range(0)])
    bed.client.bounds[P0] = (12, 50)
    with pytest.raises(DataLossError, match=r"DATA_LOST.*orders-0 \[10, 12\): the log is \[12, 50\)"):
        bed.read(R0)


def test_lost_records_are_skipped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed([out_of_range(0)], records(0, 12), failOnDataLoss="false")
    bed.client.bounds[P0] = (12, 50)
    with caplog.at_level(logging.WARNING):
        assert bed.read(R0) == [(0, 12)]
    assert "orders-0 [10, 12)" in caplog.text
    assert bed.client.assigned[-1] == [(P0, 12)]


def test_a_range_that_is_lost_as_a_whole_leaves_the_client_at_its_end() -> None:
    """Else the next batch, which starts there, would wait for a client that has stopped."""
    bed = Bed([out_of_range(0)], failOnDataLoss="false")
    bed.client.bounds[P0] = (40, 50)
    assert bed.read(R0) == []
    assert bed.client.assigned[-1] == [(P0, 13)]


@pytest.mark.rule("R63")
def test_a_leader_that_lags_behind_the_position_is_waited_for() -> None:
    bed = Bed([out_of_range(0)], records(0, 10, 11, 12))
    bed.client.bounds[P0] = (0, 5)
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


@pytest.mark.parametrize("end", [5, 10])
@pytest.mark.rule("R63")
def test_a_log_that_stays_at_or_behind_the_position_until_the_deadline_has_lost_the_rest(end: int) -> None:
    """The plan has seen more of it: it was truncated. A leader does not lag for that long."""
    bed = Bed(*[[out_of_range(0)]] * 50)
    bed.client.bounds[P0] = (0, end)
    bed.client.slow_s = 10.0
    with pytest.raises(DataLossError, match=rf"DATA_LOST.*orders-0 \[10, 13\): the log is \[0, {end}\)"):
        bed.read(R0)
    assert bed.clock.now_s - 1000.0 >= 120.0


def test_what_a_log_has_lost_at_its_end_is_skipped_at_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """Of all ranges at once: nothing has come of any of them."""
    bed = Bed([*records(0, 10), *records(1, 0)], failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="60000")
    bed.client.bounds |= {P0: (0, 11), P1: (0, 1)}
    assert bed.read(R0, R1) == [(0, 10), (1, 0)]
    assert 60.0 <= bed.clock.now_s - 1000.0 < 65.0
    assert "orders-0 [11, 13): the log is [0, 11); orders-1 [1, 2): the log is [0, 1)" in caplog.text
    assert bed.client.unassigned == [[P0], [P1]], "nothing more is fetched of them"


def test_what_has_arrived_of_later_ranges_is_no_loss_when_the_first_one_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is kept of them goes out, and only what is missing is reported."""
    bed = Bed([*records(1, 0, 1), *records(2, 0, 1)], failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="60000")
    bed.cluster = FakeCluster(orders=3)
    bed.client.bounds |= {P0: (0, 10), P1: (0, 2), tp(2): (0, 2)}
    assert bed.read(R0, R1, OffsetRange(tp(2), 0, 5)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert "orders-0 [10, 13): the log is [0, 10); orders-2 [2, 5): the log is [0, 2)" in caplog.text


def test_p8_a_deleted_topic_is_noticed_although_the_queue_of_another_partition_grows_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Producers go on writing beyond the range that waits for its turn. (All topics are deleted here.)"""
    bed = Bed(*(records(1, number) for number in range(10_000)), failOnDataLoss="false")
    bed.client.slow_s = 0.1
    bed.cluster = FakeCluster()
    assert bed.read(R0, R1) == []
    assert bed.clock.now_s - 1000.0 < 20.0
    assert "orders-0 [10, 13), orders-1 [0, 2): the topic was deleted" in caplog.text


def test_a_task_ends_although_the_queue_of_another_partition_grows_for_ever() -> None:
    """The records beyond its range are no progress of the task."""
    bed = Bed(*(records(1, number) for number in range(10_000)), kafkaConsumer__pollTimeoutMs="60000")
    bed.client.slow_s = 0.1
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 60 s at offset 10"):
        bed.read(R0, R1)
    assert bed.clock.now_s - 1000.0 < 80.0


def test_brokers_are_not_asked_all_the_time_about_a_leader_that_lags() -> None:
    bed = Bed(*[[out_of_range(0)]] * 10_000, kafkaConsumer__pollTimeoutMs="10000")
    bed.client.bounds[P0] = (0, 5)
    bed.client.slow_s = 0.002
    with pytest.raises(ReadError, match="READ_STALLED"):
        bed.read(R0)
    assert len(bed.client.assigned) < 40


def test_an_open_transaction_at_the_position_is_no_loss() -> None:
    """The batch was planned without read_committed, which tells where the oldest open transaction begins."""
    bed = Bed(failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="60000", kafka__isolation__level="read_committed")
    bed.client.bounds[P0] = (0, 10)
    bed.cluster.ends[P0], bed.cluster.written[P0] = 10, 13
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 60 s at offset 10"):
        bed.read(R0)


def test_a_range_of_unknown_state_is_the_one_that_is_named() -> None:
    bed = Bed([out_of_range(0)], records(1, 0), records(1, 1), kafkaConsumer__pollTimeoutMs="5000")

    def away(_: object) -> dict[str, TopicInfo]:
        raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="DescribeTopics", reason="away")

    bed.cluster.describe = away  # type: ignore[method-assign]
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 5 s at offset 10"):
        bed.read(R0, R1)


@pytest.mark.rule("R63")
def test_a_leader_may_lag_for_longer_than_a_short_timeout() -> None:
    """What is not lost would be skipped."""
    bed = Bed(records(0, 10), failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="5000")
    bed.client.bounds[P0] = (0, 11)
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0 returned no record for 5 s at offset 11"):
        bed.read(R0)


def test_one_range_whose_records_are_there_fails_the_task_before_others_are_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bed = Bed(failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="60000")
    bed.client.bounds |= {P0: (0, 10), P1: (0, 2)}
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-1"):
        bed.read(R0, R1)
    assert "data lost" not in caplog.text
    bed = Bed(kafkaConsumer__pollTimeoutMs="60000")
    bed.client.bounds |= {P0: (0, 10), P1: (0, 2)}
    with pytest.raises(DataLossError, match=r"DATA_LOST.*orders-0 \[10, 13\)"):
        bed.read(R0, R1)


def test_brokers_that_do_not_answer_at_the_deadline_are_not_asked_what_is_lost() -> None:
    bed = Bed(failOnDataLoss="false", kafkaConsumer__pollTimeoutMs="60000")
    bed.client.answers = False
    bed.client.bounds[P0] = (0, 10)
    with pytest.raises(ReadError, match=r"READ_STALLED.*no answer"):
        bed.read(R0)
    assert bed.described == 0


def test_a_position_that_the_log_does_have_is_sought_again() -> None:
    bed = Bed([out_of_range(0)], records(0, 10, 11, 12))
    bed.client.bounds[P0] = (0, 50)
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]
    assert bed.client.assigned[-1] == [(P0, 10)]


# --- topics that are gone


def made_again(bed: Bed) -> None:
    bed.cluster.topics["orders"] = TopicInfo("topic-id-2", 2)


@pytest.mark.rule("R57")
def test_a_topic_that_is_recreated_while_it_is_read_is_lost() -> None:
    """By offset alone it looks like a leader that lags."""
    bed = Bed(records(0, 10), [out_of_range(0)])
    bed.client.bounds[P0] = (0, 5)
    made_again(bed)
    lost = r"orders-0 \[10, 13\): the topic was deleted and recreated"
    with pytest.raises(DataLossError, match=rf"DATA_LOST.*{lost}"):
        bed.read(R0)


@pytest.mark.parametrize("low", [0, 12])
@pytest.mark.rule("R57")
def test_records_of_a_topic_that_was_recreated_are_not_read_as_the_old_ones(
    low: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The new log has grown past the position meanwhile, or its retention has come there."""
    bed = Bed(records(0, 10), [out_of_range(0)], [*records(0, 11, 12), *records(1, 0, 1)], failOnDataLoss="false")
    bed.client.bounds[P0] = (low, 50)
    made_again(bed)
    assert bed.read(R0) == [], "nobody can tell any more whose record 10 is"
    assert "data lost and skipped" in caplog.text
    assert "orders-0 [10, 13): the topic was deleted and recreated" in caplog.text
    assert bed.client.unassigned == [[P0]]


def test_all_partitions_of_a_deleted_topic_are_confirmed_once() -> None:
    bed = Bed([out_of_range(0), out_of_range(1)], failOnDataLoss="false")
    made_again(bed)
    assert bed.read(R0, R1) == []
    assert CONFIRM_S <= bed.clock.now_s - 1000.0 < 2 * CONFIRM_S
    assert bed.described == 1
    assert bed.cluster.closed


@pytest.mark.rule("R36")
def test_a_broker_that_has_not_heard_of_the_new_topic_yet_proves_nothing() -> None:
    """The plan is for the new one already."""
    bed = Bed([out_of_range(0)], records(0, 10, 11, 12))
    before, told = TopicInfo(TOPIC_ID, 2), bed.cluster.describe
    looks = [before, TopicInfo("topic-id-0", 2)]
    bed.cluster.describe = lambda topics: {"orders": looks.pop()} if looks else told(topics)  # type: ignore[method-assign]
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]
    assert bed.client.assigned == [[(P0, 10)]] * 2


@pytest.mark.rule("R36")
@pytest.mark.parametrize(
    "late",
    [
        pytest.param(3, id="the first one: to connect takes longer than the id has to stand"),
        pytest.param(2, id="the second one: it is read after that time, and was requested in it"),
    ],
)
def test_another_id_must_stand_from_when_it_was_first_reported(late: int) -> None:
    """A broker that lags behind answers twice, and one of its answers takes long."""
    bed = Bed([out_of_range(0)], records(0, 10, 11, 12))
    before, told = TopicInfo(TOPIC_ID, 2), bed.cluster.describe
    looks = [before, TopicInfo("topic-id-0", 2), TopicInfo("topic-id-0", 2)]

    def slow(topics: Iterable[str]) -> dict[str, TopicInfo]:
        if len(looks) == late:
            bed.clock.advance(CONFIRM_S + 2.0)
        return {"orders": looks.pop()} if looks else told(topics)

    bed.cluster.describe = slow  # type: ignore[method-assign]
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


def test_a_topic_that_does_not_exist_any_more_is_lost_after_a_silence() -> None:
    """The client says nothing of it: its own answer and the cluster's must agree, and stand for a while."""
    bed = Bed(records(0, 10))
    bed.client.unknown = {"orders"}
    bed.cluster.topics.clear()
    with pytest.raises(DataLossError, match=r"DATA_LOST.*orders-0 \[10, 13\): the topic was deleted\."):
        bed.read(R0)
    assert 5.0 + CONFIRM_S <= bed.clock.now_s - 1000.0 < 10.0
    bed = Bed([*records(0, 10), unknown(0)], [unknown(1)], failOnDataLoss="false")
    bed.cluster.topics.clear()
    assert bed.read(R0, R1) == []


@pytest.mark.rule("R36")
def test_a_broker_that_does_not_know_a_topic_for_a_moment_proves_nothing() -> None:
    silence: list[list[FakeMessage]] = [[]] * 60
    bed = Bed(records(0, 10), *silence, records(0, 11), [unknown(0)], records(0, 12))
    bed.client.unknown = {"orders"}
    bed.client.slow_s = 0.1
    bed.client.bounds[P0] = KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]
    assert bed.client.assigned == [[(P0, 10)], [(P0, 11)], [(P0, 12)]]


def test_a_cluster_that_cannot_report_the_id_is_asked_until_the_deadline() -> None:
    """Nothing is read on meanwhile."""
    bed = Bed([out_of_range(0)], records(0, 10, 11, 12))

    def away(_: object) -> dict[str, TopicInfo]:
        bed.clock.advance(20.0)
        raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="DescribeTopics", reason="away")

    bed.cluster.describe = away  # type: ignore[method-assign]
    with pytest.raises(
        ReadError, match=r"READ_STALLED.*orders-0 returned no record for 120 s at offset 10.*(away|transport failure)"
    ):
        bed.read(R0)
    assert len(bed.client.assigned) == 1


# --- proof that the records are of the planned topic


@pytest.mark.rule("R57")
def test_p2_p8_records_of_a_topic_that_was_recreated_are_handed_to_nobody() -> None:
    """The new topic has records at all the planned offsets: the client reports nothing at all."""
    bed = Bed(records(0, 10, 11, 12))
    made_again(bed)
    lost = r"DATA_LOST.*orders-0 \[10, 13\): the topic was deleted and recreated"
    with pytest.raises(DataLossError, match=lost):
        bed.read(R0)


def test_p8_the_planned_ranges_are_reported_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed([*records(0, 10, 11, 12), *records(1, 0, 1)], failOnDataLoss="false")
    made_again(bed)
    assert bed.read(R0, R1) == []
    assert [line for line in caplog.messages if "data lost" in line] == [
        "data lost and skipped, failOnDataLoss=false: group=shop orders-0 [10, 13), orders-1 [0, 2):"
        " the topic was deleted and recreated"
    ]


@pytest.mark.rule("R57")
def test_a_topic_that_is_recreated_when_its_last_record_has_been_taken() -> None:
    """That is before the rows are handed out: nobody knows whose they are."""
    bed = Bed(records(0, 10, 11), records(0, 12))
    bed.client.before.extend([lambda: None, lambda: made_again(bed)])
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 13\)"):
        bed.read(R0)


def test_p8_a_topic_that_is_recreated_with_less_than_was_planned_is_lost_after_a_silence() -> None:
    """The new log is empty, or lacks the partition: a broker knows the topic by its name, and nothing ever comes."""
    bed = Bed([*records(0, 10, 11, 12), eof(1, 0)])
    made_again(bed)
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 13\), orders-1 \[0, 2\): .* recreated"):
        bed.read(R0, R1)
    assert bed.clock.now_s - 1000.0 < 10.0


def test_p8_a_silence_is_asked_about_again_where_the_first_broker_had_not_heard() -> None:
    bed = Bed(records(0, 10), failOnDataLoss="false")
    bed.client.before.extend([*[lambda: None] * 70, lambda: made_again(bed)])
    assert bed.read(R0) == [(0, 10)], "proven before the topic was made again"
    assert 7.0 < bed.clock.now_s - 1000.0 < 15.0
    assert bed.client.identified == 2


def test_a_range_without_records_is_proven_too() -> None:
    """Markers of an aborted transaction in the new topic would pass for those of the old one."""
    bed = Bed([eof(0, 13)])
    made_again(bed)
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 13\)"):
        bed.read(R0)


def test_one_question_proves_a_small_task() -> None:
    bed = Bed(records(1, 0), records(0, 10, 11), records(0, 12), records(1, 1))
    assert bed.read(R0, R1) == [(0, 10), (0, 11), (0, 12), (1, 0), (1, 1)]
    assert bed.client.identified == 1


def test_the_other_topics_of_a_task_go_on(caplog: pytest.LogCaptureFixture) -> None:
    other = tp(0, "refunds")
    refunds = [FakeMessage(other, offset) for offset in range(3)]
    bed = Bed(records(0, 10, 11), [*refunds, *records(0, 12), *records(1, 0, 1)], failOnDataLoss="false",
              subscribe="orders,refunds")  # fmt: skip
    bed.cluster.topics["refunds"] = TopicInfo("topic-id-9", 1)
    made_again(bed)
    rows = bed.read_topics(R0, OffsetRange(other, 0, 3), R1, orders=TOPIC_ID, refunds="topic-id-9")
    assert rows == [("refunds", 0), ("refunds", 1), ("refunds", 2)]
    assert "orders-0 [10, 13), orders-1 [0, 2): the topic was deleted and recreated" in caplog.text
    assert "refunds" not in caplog.text


def test_what_waits_behind_a_topic_that_is_given_up_is_read_before_the_deadline_counts() -> None:
    """1. The new log is empty. 2. It is given up after 8 s, the deadline. 3. The other topic's records are there."""
    other = tp(0, "refunds")
    bed = Bed([FakeMessage(other, offset) for offset in range(3)], failOnDataLoss="false",
              subscribe="orders,refunds", kafkaConsumer__pollTimeoutMs="8000")  # fmt: skip
    bed.cluster.topics["refunds"] = TopicInfo("topic-id-9", 1)
    made_again(bed)
    rows = bed.read_topics(R0, OffsetRange(other, 0, 3), orders=TOPIC_ID, refunds="topic-id-9")
    assert rows == [("refunds", 0), ("refunds", 1), ("refunds", 2)]


class Large(FakeMessage):
    """A record of a megabyte."""

    def value(self) -> bytes:
        return bytes(1_000_000)


@pytest.mark.rule("R57")
def test_what_is_proven_of_a_large_range_is_not_lost_with_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """Rows do not wait for the range's end: a question is sent every 8 MiB."""
    bed = Bed(*[[Large(P0, offset)] for offset in range(40)], failOnDataLoss="false")
    bed.client.before.extend([*[lambda: None] * 25, lambda: made_again(bed)])
    rows = bed.read(OffsetRange(P0, 0, 40))
    assert rows == [(0, offset) for offset in range(len(rows))]
    assert 8 <= len(rows) <= 25
    assert f"orders-0 [{len(rows)}, 40): the topic was deleted and recreated" in caplog.text


def test_p1_rows_of_a_topic_without_an_id_are_not_dropped_when_the_others_are_proven() -> None:
    """1. A topic was planned before its brokers knew ids, another one later. 2. One task has both.

    3. The request after 8 MiB proves all rows of the topic with an id. 4. The rest is of the other one.
    """
    other = tp(0, "refunds")
    bed = Bed(records(0, 10, 11, 12), *[[Large(other, offset)] for offset in range(20)], subscribe="orders,refunds")
    rows = bed.read_topics(R0, OffsetRange(other, 0, 20), orders=TOPIC_ID, refunds=NO_TOPIC_ID)
    orders = [("orders", offset) for offset in (10, 11, 12)]
    assert rows == orders + [("refunds", offset) for offset in range(20)]


def test_brokers_without_topic_ids_are_not_asked() -> None:
    bed = Bed(records(0, 10, 11, 12))
    rows = list(read_task(bed.options, (R0,), bed.pool, bed.clock, topic_ids={"orders": NO_TOPIC_ID}))
    assert sum(batch.num_rows for batch in rows) == 3
    assert bed.client.identified == 0


def test_nothing_is_handed_out_while_no_broker_reports_the_ids() -> None:
    bed = Bed(records(0, 10, 11, 12), kafkaConsumer__pollTimeoutMs="10000")
    bed.client.answers = False
    with pytest.raises(ReadError, match=r"READ_STALLED.*orders-0.*transport failure"):
        bed.read(R0)
    assert bed.client.identified > 1


def test_a_broker_that_answers_late_is_asked_again() -> None:
    bed = Bed(records(0, 10, 11, 12))
    bed.client.answers = False
    told, asked = bed.client.describe_topics, []

    def back(*given: Any, **named: Any) -> Any:
        asked.append(given)
        bed.client.answers = len(asked) > 2
        return told(*given, **named)

    bed.client.describe_topics = back  # type: ignore[method-assign]
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


def test_a_quota_is_the_reason_of_a_silence() -> None:
    """Also when requests that wait behind the delayed answer time out."""
    bed = Bed(kafkaConsumer__pollTimeoutMs="30000")
    bed.client.before.append(lambda: setattr(bed.client, "answers", False))
    bed.client.before.append(lambda: bed.client.throttle_cb(SimpleNamespace(broker_id=3, throttle_time=32.1)))
    with pytest.raises(ReadError, match=r"READ_STALLED.*a quota delays this client, by 32.1 s on broker 3"):
        bed.read(R0)


# --- no thread for a broker


def lack_a_thread(bed: Bed) -> None:
    bed.client.error_cb(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "Unable to create broker thread"))
    bed.client.error_cb(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))


def test_a_client_without_a_thread_for_a_broker_reads_from_the_others() -> None:
    bed = Bed(records(0, 10), [], records(0, 11), [], records(0, 12))
    bed.client.before.extend([lambda: lack_a_thread(bed)])
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


def test_a_task_that_waits_for_a_broker_without_a_thread_ends_before_the_deadline() -> None:
    """It would get no record of this broker, however long it waits."""
    bed = Bed(records(0, 10))
    bed.client.before.extend([lambda: None, lambda: lack_a_thread(bed)])
    with pytest.raises(KafkaUnavailableError) as raised:
        bed.read(R0, R1)
    assert raised.value.condition is errors.CLIENT_LACKS_RESOURCES
    assert raised.value.condition.may_pass
    assert 5.0 <= bed.clock.now_s - 1000.0 < 7.0


# --- identity


def refuse(bed: Bed) -> None:
    bed.client.error_cb(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: invalid token"))


@pytest.mark.rule("R66")
def test_an_identity_that_was_refused_for_a_moment_fails_nothing() -> None:
    """A provider of tokens was away for a second; the connection works."""
    silence: list[list[FakeMessage]] = [[]] * 20
    bed = Bed(records(0, 10), *silence, records(0, 11), *silence, records(0, 12))
    bed.client.slow_s = 0.1
    bed.client.before.extend([lambda: refuse(bed)])
    assert bed.read(R0) == [(0, 10), (0, 11), (0, 12)]


def test_a_refused_identity_is_forgotten_when_rows_come() -> None:
    """As by the client that gathers in C (`clients/test_gather.py`)."""
    fake = FakeClient(ManualClock(), [], records(0, 10), [], [eof(0, 11)], [])

    def make(settings: dict[str, Any]) -> Any:
        fake.error_cb = settings["error_cb"]
        return fake

    client = PythonClient(make_options(), {}, make)
    client.assign({P0: 10})
    told: list[list[Any]] = []
    for refused in (True, False, False, True, False):
        if refused:
            fake.error_cb(KafkaError(KafkaError._AUTHENTICATION, "invalid token"))
        told.append([getattr(item, "refused", type(item)) for item in client.receive(P0, 10, 2**20, 0.1)])
    assert told == [[True], [pa.RecordBatch], [False], [EndOfPartition], [False]]


@pytest.mark.rule("R66")
def test_an_identity_that_stays_refused_is_reported_before_the_deadline() -> None:
    bed = Bed(records(0, 10))
    bed.client.answers = False
    bed.client.before.extend([lambda: None, lambda: refuse(bed)])
    with pytest.raises(AccessError, match=r"AUTHENTICATION_FAILED.*invalid token"):
        bed.read(R0, R1)
    assert 5.0 <= bed.clock.now_s - 1000.0 < 7.0


@pytest.mark.rule("R66")
def test_an_identity_that_is_refused_because_a_token_is_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider is down for longer than 5 s while a broker ends the connections with the expired token."""
    bed = Bed()
    bed.client.answers = False
    bed.client.before.extend([lambda: refuse(bed)])
    monkeypatch.setattr(broker_requests, "provider_recovers", lambda login: bed.clock.now_s < 1015.0)
    with pytest.raises(AccessError, match="AUTHENTICATION_FAILED"):
        bed.read(R0)
    assert 15.0 <= bed.clock.now_s - 1000.0 < 18.0


def test_an_old_refusal_is_no_reason_for_a_later_silence() -> None:
    """Nothing has come since, but a broker answers by now."""
    bed = Bed(kafkaConsumer__pollTimeoutMs="20000")
    bed.client.before.extend([lambda: refuse(bed)])
    with pytest.raises(ReadError, match="READ_STALLED"):
        bed.read(R0)


def test_one_broker_that_refuses_while_another_answers_is_reported() -> None:
    bed = Bed()
    bed.client.before.extend([*[lambda: None] * 80, lambda: refuse(bed)])
    with pytest.raises(AccessError, match="AUTHENTICATION_FAILED"):
        bed.read(R0)
    assert 8.0 <= bed.clock.now_s - 1000.0 < 9.0


# --- rows


def test_rows_have_the_columns_of_sparks_own_source() -> None:
    message = FakeMessage(P0, 7)
    message.extra = [("a", b"1"), ("b", None)]
    batch = record_batch(P0, [message], include_headers=True)
    assert batch.schema == arrow_schema(True)
    (row,) = batch.to_pylist()
    stamp = row.pop("timestamp")
    assert (stamp.timestamp(), str(stamp.tzinfo)) == (1_700_000_000.007, "UTC")
    assert row == {
        "key": b"k7",
        "value": b"v7",
        "topic": "orders",
        "partition": 0,
        "offset": 7,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    }
    assert record_batch(P0, records(0, 1), include_headers=True).to_pylist()[0]["headers"] is None


@pytest.mark.parametrize(("kind", "shown"), [(0, -1), (1, 0), (2, 1)])
def test_timestamp_types_are_kafkas(kind: int, shown: int) -> None:
    message = FakeMessage(P0, 7)
    message.stamp = (kind, 5)
    row = record_batch(P0, [message], include_headers=False)
    assert row.column("timestampType").to_pylist() == [shown]
    assert row.column("timestamp").cast(pa.int64()).to_pylist() == [-1000 if kind == 0 else 5000]


@pytest.mark.parametrize("stamp", [2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1])
def test_a_timestamp_that_spark_cannot_hold(stamp: int) -> None:
    bed = Bed(records(0, 10, 11, 12))
    bed.client.batches[0][1].stamp = (1, stamp)
    with pytest.raises(ReadError, match=rf"TIMESTAMP_IMPOSSIBLE.*orders-0 offset 11 has the timestamp {stamp} ms"):
        bed.read(R0)


def test_thousands_of_impossible_timestamps() -> None:
    """In pure Python they are found one by one."""
    sent = records(0, *range(2_000))
    for message in sent[1:-1]:
        message.stamp = (1, 2**62)
    fake = FakeClient(ManualClock(), sent)
    client = PythonClient(make_options(), {}, lambda _: fake)  # type: ignore[arg-type,return-value]
    client.assign({P0: 0})
    items = client.receive(P0, 10_000, 2**20, 0.1)
    assert [type(item) for item in items] == [pa.RecordBatch, *[Misfit] * 1_998, pa.RecordBatch]
    assert [item.offset for item in items if isinstance(item, Misfit)] == list(range(1, 1_999))


def test_in_pure_python_no_record_that_is_held_counts_as_passed() -> None:
    """Guards against: 1. a task takes a part of the records that came, 2. the client's position is after all of them,
    3. the others would be passed like transaction markers: they are lost."""
    fake = FakeClient(ManualClock(), records(0, 10, 11))
    fake.passed[P0] = 12
    client = PythonClient(make_options(), {}, lambda _: fake)  # type: ignore[arg-type,return-value]
    client.assign({P0: 10})
    for passed in (-1, 12):
        assert len(client.receive(P0, 1, 2**20, 0.1)) == 1
        assert client.passed(P0) == passed


def test_no_message_makes_an_empty_batch() -> None:
    assert record_batch(P0, [], include_headers=True).num_rows == 0


# --- small batches


def batch_of(first: int, count: int, number: int = 0) -> pa.RecordBatch:
    return record_batch(tp(number), records(number, *range(first, first + count)), include_headers=True)


def test_small_batches_are_joined_in_order() -> None:
    small = SmallBatches()
    parts = [batch_of(0, 3), batch_of(7, 1, 1), batch_of(9, 400), batch_of(409, 700)]
    handed = [batch for part in parts for batch in small.add(part, part.nbytes)]
    assert [batch.num_rows for batch in handed] == [1_104]
    assert handed[0].schema == arrow_schema(True)
    assert handed[0].to_pylist() == [row for part in parts for row in part.to_pylist()]
    assert small.flush() == []


def test_few_rows_are_many_bytes() -> None:
    message = FakeMessage(P0, 7)
    message.value = lambda: b"x" * 200_000  # type: ignore[method-assign]
    medium, small = record_batch(P0, [message], include_headers=False), SmallBatches()
    sizes = [batch.nbytes for _ in range(990) for batch in small.add(medium, medium.nbytes)]
    assert 150 < len(sizes) < 200
    assert max(sizes) < 2 * 1024 * 1024
    assert sum(batch.num_rows for batch in small.flush()) < 10


def test_a_large_batch_goes_after_the_small_ones_before_it() -> None:
    small = SmallBatches()
    assert small.add(batch_of(0, 1), 100) == []
    large = batch_of(1, 1_000)
    assert [batch.num_rows for batch in small.add(large, large.nbytes)] == [1, 1_000]
    assert small.add(batch_of(2_000, 2), 100) == []
    assert [batch.num_rows for batch in small.flush()] == [2]


def test_few_large_records_are_not_copied() -> None:
    message = FakeMessage(P0, 7)
    message.value = lambda: b"x" * 300_000  # type: ignore[method-assign]
    large = record_batch(P0, [message], include_headers=False)
    assert SmallBatches().add(large, large.nbytes) == [large]
