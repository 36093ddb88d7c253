"""What a micro-batch reads."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from spark_groupsource.model.commit_metadata import Anchor, CommitMetadata, Pin
from spark_groupsource.model.offsets import NextRecords, OffsetRange, Reset, SourceOffset, TopicPartition
from spark_groupsource.planning.batch import (
    Backlog,
    Replay,
    divide_limit,
    last_read,
    next_offset,
    plan_ranges,
    plan_replay,
    within_bytes,
)
from spark_groupsource.planning.shared_state import ReadByOthers
from spark_groupsource.planning.start_position import Lineage
from tests.unit.fakes import LINEAGE, OTHER_LINEAGE, TOPIC_ID, offset_of, tp

P0, P1, P2 = tp(0), tp(1), tp(2)
PIN = Pin(0, 3)
ANCHOR = Anchor(TOPIC_ID, PIN)


# --- divide_limit


@pytest.mark.parametrize(
    ("sizes", "limit", "shares"),
    [
        ([10, 20], None, [10, 20]),
        ([10, 20], 30, [10, 20]),
        ([10, 20], 31, [10, 20]),
        ([], 5, []),
        ([0, 0], 5, [0, 0]),
        ([0, 100], 5, [0, 5]),
        ([100, 100], 10, [5, 5]),
        ([1, 1_000_000], 10, [1, 9]),
        ([1, 1, 1], 2, [1, 1, 0]),
        ([5, 5, 5], 0, [0, 0, 0]),
        ([300, 100], 40, [30, 10]),
        # rounded down, and not below 1, as in Spark's KafkaMicroBatchSourceSuite: "maxOffsetsPerTrigger", twice, and
        # "compositeReadLimit"
        ([101, 11, 1], 10, [8, 1, 1]),
        ([93, 10, 0], 10, [9, 1, 0]),
        ([21, 11, 1], 20, [12, 6, 1]),
        # there it would be 2 + 1 + 1
        ([1000, 1, 1], 3, [1, 1, 1]),
    ],
)
def test_share_out(sizes: list[int], limit: int | None, shares: list[int]) -> None:
    assert list(divide_limit({tp(n): size for n, size in enumerate(sizes)}, limit).values()) == shares


def _random_sizes(source: random.Random) -> dict[TopicPartition, int]:
    scale = source.choice([3, 50, 10_000, 2**40])
    return {tp(n): source.choice([0, source.randint(0, scale)]) for n in range(source.randint(1, 12))}


def test_shares_of_random_backlogs() -> None:
    source = random.Random(20)
    for _ in range(2000):
        sizes = _random_sizes(source)
        total = sum(sizes.values())
        limit = source.randint(1, max(1, total + 3))
        shares = divide_limit(sizes, limit)
        case = f"{sizes} limit {limit}: {shares}"
        assert sum(shares.values()) <= min(limit, total), case
        assert all(0 <= shares[p] <= sizes[p] for p in sizes), case
        waiting = [p for p in sizes if sizes[p] > 0]
        if limit >= total:
            assert shares == sizes, case
        elif sum(max(1, limit * sizes[p] // total) for p in waiting) <= limit:
            assert all(shares[p] == max(1, limit * sizes[p] // total) for p in waiting), case
        else:
            assert sum(shares.values()) == limit, case
        if limit >= len(waiting):
            assert all(shares[p] > 0 for p in waiting), f"starved: {case}"


def test_shares_do_not_depend_on_the_order_of_partitions() -> None:
    source = random.Random(21)
    for _ in range(200):
        sizes = _random_sizes(source)
        shuffled = list(sizes.items())
        source.shuffle(shuffled)
        limit = source.randint(1, 100)
        assert divide_limit(dict(shuffled), limit) == divide_limit(sizes, limit)


# --- plan_ranges


@pytest.mark.parametrize("limit", [1, 7, 10, 48, 49, 50])
def test_a_partition_that_grows_faster_than_the_limit_starves_no_other(limit: int) -> None:
    """A limit below the number of partitions: those of one record each are read, in turns."""
    partitions = [tp(n) for n in range(50)]
    backlogs, last = {partition: Backlog(1000, 1001) for partition in partitions}, None
    for _ in range(-(-50 // limit)):
        hot = backlogs[P0]
        backlogs[P0] = Backlog(hot.position, hot.end + 10 * limit)
        plan = plan_ranges(backlogs, limit, last)
        last = last_read(plan, last)
        assert 0 < sum(map(len, plan)) <= limit
        backlogs = {item.partition: Backlog(item.end, backlogs[item.partition].end) for item in plan}
    assert [p for p, backlog in backlogs.items() if backlog.size and p != P0] == []


def test_partitions_that_have_records_by_turns_starve_no_other() -> None:
    """Two get a record in every second batch: as many partitions as before have records, but not the same ones."""
    every = [tp(n) for n in range(5)]
    logs = {partition: Backlog(1, 1000) for partition in every} | {P0: Backlog(0, 0), P2: Backlog(0, 0)}
    last, plans = None, []
    for number in range(40):
        grows = (P0, P2)[number % 2]
        logs[grows] = replace(logs[grows], end=logs[grows].end + 1)
        plans.append(plan_ranges(logs, 2, last))
        last = last_read(plans[-1], last)
        logs = {item.partition: replace(logs[item.partition], position=item.end) for item in plans[-1]}
    read = [number for number, plan in enumerate(plans) if len(plan[1])]
    assert max(after - before for before, after in pairwise([0, *read, 40])) <= 3


def test_a_plan_has_one_range_per_partition_even_an_empty_one() -> None:
    plan = plan_ranges({P1: Backlog(7, 7, 2), P0: Backlog(100, 200, 3)}, None)
    assert plan == (OffsetRange(P0, 100, 200, 3), OffsetRange(P1, 7, 7, 2))


def test_what_the_log_held_up_to_its_end_it_held_up_to_every_offset_before() -> None:
    assert plan_ranges({P0: Backlog(0, 100, 3)}, 10) == (OffsetRange(P0, 0, 10, 3),)


def test_bytes_are_shared_out_by_the_size_of_each_partitions_records() -> None:
    """Records of 100 and 10 bytes: of 1,100 bytes each partition gets its share, in whole offsets."""
    backlogs = {P0: Backlog(0, 10, 3), P1: Backlog(5, 15, 3)}
    found = {P0: NextRecords(0, 100.0), P1: NextRecords(5, 10.0)}
    shortened = within_bytes(backlogs, found, 550, 1.0)
    assert shortened == {P0: Backlog(0, 5, 3), P1: Backlog(5, 10, 3)}
    assert within_bytes(backlogs, found, 10_000, 1.0) == backlogs


def test_a_record_larger_than_all_bytes_is_read_all_the_same() -> None:
    assert within_bytes({P0: Backlog(7, 9)}, {P0: NextRecords(7, 5_000.0)}, 100, 1.0) == {P0: Backlog(7, 8)}


def test_offsets_before_the_next_record_take_no_bytes() -> None:
    """P0 has a hole up to 100, P1 has one up to the end; P2 has no record at all."""
    found = {P0: NextRecords(100, 10.0), P1: NextRecords(70, 10.0), P2: NextRecords(80, None)}
    shortened = within_bytes({P0: Backlog(0, 200), P1: Backlog(0, 60), P2: Backlog(0, 80)}, found, 500, 1.0)
    assert shortened == {P0: Backlog(0, 150), P1: Backlog(0, 60), P2: Backlog(0, 80)}
    # P2 has grown since it was asked, or its new leader lags.
    assert within_bytes({P2: Backlog(0, 90)}, found, 50, 1.0) == {P2: Backlog(0, 85)}


def test_an_unknown_size_is_the_average_of_the_known_ones_or_the_usual_one() -> None:
    backlogs = {P0: Backlog(0, 10), P1: Backlog(0, 10)}
    assert within_bytes(backlogs, {P0: NextRecords(0, 10.0)}, 100, 1.0) == {P0: Backlog(0, 5), P1: Backlog(0, 5)}
    assert within_bytes(backlogs, {}, 100, 25.0) == {P0: Backlog(0, 2), P1: Backlog(0, 2)}


def test_an_end_before_the_position_gives_an_empty_range() -> None:
    """A leader that lags: the position stays."""
    assert Backlog(50, 40).size == 0
    assert plan_ranges({P0: Backlog(50, 40, 3)}, None) == (OffsetRange(P0, 50, 50, None),)


def test_a_plan_keeps_to_the_limit() -> None:
    source = random.Random(22)
    for _ in range(300):
        backlogs = {tp(n): Backlog(start := source.randint(0, 50), start + source.randint(0, 99)) for n in range(5)}
        limit = source.randint(1, 400)
        plan = plan_ranges(backlogs, limit)
        unread = min(limit, sum(b.size for b in backlogs.values()))
        # What rounding down leaves is less than one for each partition.
        assert unread - len(backlogs) < sum(map(len, plan)) <= unread
        assert all(item.start == backlogs[item.partition].position for item in plan)
        assert all(item.end <= backlogs[item.partition].end for item in plan)


# --- next_offset


def test_what_the_lineage_has_done_elsewhere_is_kept() -> None:
    start = offset_of(OffsetRange(P0, 0, 10), done={P2: 5})
    end = next_offset(start, Lineage(LINEAGE), {"orders": TOPIC_ID}, [OffsetRange(P1, 3, 4)])
    assert end == offset_of(OffsetRange(P1, 3, 4), done={P0: 10, P2: 5})


def test_a_partition_that_came_back_is_no_longer_done() -> None:
    start = offset_of(OffsetRange(P0, 0, 10), done={P1: 5})
    end = next_offset(start, Lineage(LINEAGE), {"orders": TOPIC_ID}, [OffsetRange(P0, 10, 12), OffsetRange(P1, 9, 11)])
    assert end == offset_of(OffsetRange(P0, 10, 12), OffsetRange(P1, 9, 11))


def test_ends_of_a_recreated_topic_are_forgotten() -> None:
    start = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))
    end = next_offset(start, Lineage(LINEAGE), {"orders": "new-id"}, [OffsetRange(P0, 0, 3)])
    assert end == SourceOffset.of(LINEAGE, {"orders": "new-id"}, [OffsetRange(P0, 0, 3)], {})


def test_ends_of_a_topic_that_is_not_planned_keep_its_id() -> None:
    refund = TopicPartition("refunds", 0)
    start = SourceOffset.of(LINEAGE, {"refunds": "r-id"}, [OffsetRange(refund, 0, 9)], {})
    end = next_offset(start, Lineage(LINEAGE), {"orders": TOPIC_ID}, [OffsetRange(P0, 0, 1)])
    assert dict(end.topic_ids) == {"orders": TOPIC_ID, "refunds": "r-id"}
    assert dict(end.done) == {refund: 9}


def test_a_new_lineage_takes_the_ends_along() -> None:
    end = next_offset(offset_of(done={P1: 5}), Lineage(OTHER_LINEAGE), {"orders": TOPIC_ID}, [OffsetRange(P0, 0, 1)])
    assert (end.lineage, dict(end.done)) == (OTHER_LINEAGE, {P1: 5})


# --- plan_replay

NOBODY = None
RESET, OLDER_RESET = Reset(2000, "second"), Reset(1000, "first")


def committed(
    offset: int | None, writer: str | None, reset: Reset | None = None, topic_id: str = TOPIC_ID
) -> tuple[int | None, CommitMetadata | None]:
    """What the group holds; a pin when the writer has completed nothing."""
    if writer is NOBODY or offset is None:
        return offset, None
    return offset, CommitMetadata(writer, topic_id, offset, offset, PIN, reset=reset)


@pytest.mark.parametrize(
    ("offset", "writer", "start"),
    [
        # nothing committed
        (None, NOBODY, 10),
        # ours: the last commit, a pin, or a proof; or the last commit did not arrive
        (10, LINEAGE, 10),
        (5, LINEAGE, 10),
        (0, LINEAGE, 10),
        # nobody's, but where this batch began: a group that another program has used before
        (10, NOBODY, 10),
        # another lineage: less what it has committed
        (5, OTHER_LINEAGE, 10),
        (10, OTHER_LINEAGE, 10),
        (15, OTHER_LINEAGE, 15),
        (20, OTHER_LINEAGE, 20),
        (99, OTHER_LINEAGE, 20),
        # this very batch was committed, and its entry of the commit log lost
        (20, LINEAGE, 10),
    ],
)
@pytest.mark.rule("R11")
def test_replay_without_conflict(offset: int | None, writer: str | None, start: int) -> None:
    logged = OffsetRange(P0, 10, 20, 3)
    replay = plan_replay(offset_of(logged), [logged], {P0: committed(offset, writer)})
    others = (ReadByOthers(P0, 10, start, OTHER_LINEAGE, has_state=False),) if start > 10 else ()
    followed = replay.ranges if (offset, writer) == (10, NOBODY) else ()
    assert replay == Replay((OffsetRange(P0, start, 20, 3),), others=others, followed=followed)


@pytest.mark.parametrize(
    ("offset", "writer", "start", "reason"),
    [
        # an old copy of the checkpoint: this lineage commits only what Spark does not run again
        (11, LINEAGE, 11, "an older checkpoint restored"),
        (99, LINEAGE, 20, "an older checkpoint restored"),
        # moved by a program that leaves no metadata: forth, and back
        (15, NOBODY, 15, "another program"),
        (99, NOBODY, 20, "another program"),
        (9, NOBODY, 10, "another program"),
        (0, NOBODY, 10, "another program"),
    ],
)
@pytest.mark.rule("R50")
def test_replay_conflict(offset: int, writer: str | None, start: int, reason: str) -> None:
    logged = OffsetRange(P0, 10, 20, 3)
    replay = plan_replay(offset_of(logged), [logged], {P0: committed(offset, writer)})
    assert replay.ranges == (OffsetRange(P0, start, 20, 3),)
    (conflict,) = replay.conflicts
    assert conflict.is_behind is (writer == LINEAGE)
    assert replay.followed == (replay.ranges if (offset, writer) == (15, NOBODY) else ())
    assert str(conflict).startswith(f"orders-0 [10, 20) group={offset} ")
    assert reason in str(conflict)


@pytest.mark.parametrize(
    ("writer", "instead_of", "conflicts"),
    [(LINEAGE, OTHER_LINEAGE, 1), (OTHER_LINEAGE, LINEAGE, 1), (OTHER_LINEAGE, "a third one", 0)],
)
def test_a_decision_of_an_older_version_is_not_followed_in_silence(
    writer: str, instead_of: str, conflicts: int
) -> None:
    logged = OffsetRange(P0, 10, 20)
    text = CommitMetadata(writer, TOPIC_ID, 1000, 1000, PIN, instead_of=instead_of)
    replay = plan_replay(offset_of(logged), [logged], {P0: (1000, text)})
    assert [conflict.is_behind for conflict in replay.conflicts] == [True] * conflicts


def test_a_range_without_records_is_no_conflict() -> None:
    """There is nothing to decide here; where the partition goes on is decided when it is assigned."""
    empty = OffsetRange(P0, 10, 10)
    for writer in (LINEAGE, NOBODY):
        replay = plan_replay(offset_of(empty), [empty], {P0: committed(15, writer)})
        assert replay == Replay((empty,))


def test_each_conflict_of_a_replay_is_named() -> None:
    ranges = [OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9), OffsetRange(P2, 1, 2)]
    group = {P0: committed(15, LINEAGE), P1: committed(5, LINEAGE), P2: committed(0, NOBODY)}
    replay = plan_replay(offset_of(*ranges), ranges, group)
    assert [str(each)[:19] for each in replay.conflicts] == ["orders-0 [10, 20) g", "orders-2 [1, 2) gro"]
    assert replay.ranges == (OffsetRange(P0, 15, 20), OffsetRange(P1, 5, 9), OffsetRange(P2, 1, 2))


def test_a_replay_keeps_partitions_that_the_group_knows_nothing_of() -> None:
    logged = OffsetRange(P0, 10, 20)
    assert plan_replay(offset_of(logged), [logged], {}) == Replay((logged,))


def test_the_offset_of_a_deleted_topic_means_nothing_to_a_replay() -> None:
    logged = OffsetRange(P0, 10, 20)
    old = committed(15, OTHER_LINEAGE, topic_id="the deleted topic's id")
    assert plan_replay(offset_of(logged), [logged], {P0: old}) == Replay((logged,))


@pytest.mark.parametrize(
    ("known", "writer", "found", "void"),
    [
        (None, "the reset command", RESET, True),
        # another query has taken the partition over since, and carries the reset on
        (None, OTHER_LINEAGE, RESET, True),
        (OLDER_RESET, OTHER_LINEAGE, RESET, True),
        (RESET, OTHER_LINEAGE, RESET, False),
        (RESET, OTHER_LINEAGE, OLDER_RESET, False),
        (RESET, OTHER_LINEAGE, None, False),
    ],
)
@pytest.mark.rule("R47")
def test_a_replay_reads_nothing_after_a_reset(
    known: Reset | None, writer: str, found: Reset | None, void: bool
) -> None:
    ranges = [OffsetRange(P0, 10, 20, 3), OffsetRange(P1, 5, 9)]
    end = replace(offset_of(*ranges), reset=known)
    # The second partition was left alone: whoever owns only it hears of no reset.
    group = {P0: committed(0, writer, found), P1: committed(0, LINEAGE)}
    replay = plan_replay(end, ranges, group)
    if void:
        assert replay == Replay((OffsetRange(P0, 20, 20, 3), OffsetRange(P1, 5, 9)), reset=found)
    else:
        assert replay == Replay(tuple(ranges))


@pytest.mark.rule("R46")
def test_ends_that_a_reset_or_a_decision_makes_void_are_forgotten() -> None:
    start = offset_of(OffsetRange(P0, 10, 20), done={P1: 900, P2: 7})
    planned, ids = [OffsetRange(P0, 0, 50)], {"orders": TOPIC_ID}
    assert dict(next_offset(start, Lineage(LINEAGE, void=frozenset({P1})), ids, planned).done) == {P1: 900, P2: 7}
    own = Lineage(OTHER_LINEAGE, RESET, frozenset({P0, P1}))
    after = next_offset(start, own, ids, planned)
    assert (dict(after.done), after.reset) == ({P2: 7}, RESET)
    following = next_offset(after, own, ids, [OffsetRange(P1, 0, 1)])
    assert dict(following.done) == {P0: 50, P2: 7}
