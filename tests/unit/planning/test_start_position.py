"""Where a partition starts: one literal table per decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, KnownTopics, Pin
from spark_groupsource.model.offsets import OffsetRange, Reset, SourceOffset, TopicPartition
from spark_groupsource.options.offset_spec import AtEdge, AtOffset, AtTime, Starting
from spark_groupsource.planning.start_position import (
    Basis,
    Memory,
    StartDecision,
    Takeover,
    basis_without_offset,
    decide_start,
    must_pin,
    open_start,
    void_ends,
)
from tests.unit.fakes import LINEAGE, OTHER_LINEAGE, TOPIC_ID, offset_of, tp

P0 = tp(0)
MINE, THEIRS, NOBODYS = LINEAGE, OTHER_LINEAGE, None


def takeover(group: int | None, writer: str | None, own: int | None, *, written_for: str = TOPIC_ID) -> Takeover:
    metadata = None
    if writer is not None and group is not None:
        metadata = CommitMetadata(writer, written_for, 0, group, Pin(0, 4))
    return Takeover(P0, TOPIC_ID, group, metadata, own, LINEAGE)


@pytest.mark.parametrize(
    ("group", "writer", "own", "basis", "offset"),
    [
        # nothing committed
        (None, NOBODYS, None, Basis.STARTING_POSITION, None),
        (None, NOBODYS, 40, Basis.LINEAGE, 40),
        (None, NOBODYS, 0, Basis.LINEAGE, 0),
        # nothing of our own: a takeover, or a new checkpoint
        (70, THEIRS, None, Basis.GROUP, 70),
        (70, NOBODYS, None, Basis.GROUP, 70),
        (70, MINE, None, Basis.GROUP, 70),
        (0, THEIRS, None, Basis.GROUP, 0),
        # both agree
        (70, MINE, 70, Basis.GROUP, 70),
        (70, NOBODYS, 70, Basis.GROUP, 70),
        (0, THEIRS, 0, Basis.GROUP, 0),
        # another lineage went further, and the partition came back
        (70, THEIRS, 40, Basis.GROUP, 70),
        # our last commit did not arrive (lost with the partition, or killed before it)
        (40, THEIRS, 70, Basis.LINEAGE, 70),
        (40, MINE, 70, Basis.LINEAGE, 70),
        (0, MINE, 70, Basis.LINEAGE, 70),
    ],
)
def test_start_without_conflict(
    group: int | None, writer: str | None, own: int | None, basis: Basis, offset: int | None
) -> None:
    assert decide_start(takeover(group, writer, own), Basis.STARTING_POSITION) == StartDecision(P0, basis, offset)


@pytest.mark.parametrize(
    ("group", "writer", "own", "reason", "is_behind"),
    [
        # moved by a program that writes no metadata: back and forth
        (30, NOBODYS, 70, "another program", False),
        (90, NOBODYS, 70, "another program", False),
        (0, NOBODYS, 70, "another program", False),
        # an old checkpoint was restored
        (90, MINE, 70, "an older checkpoint restored", True),
        (90, MINE, 0, "an older checkpoint restored", True),
    ],
)
def test_conflict(group: int, writer: str | None, own: int, reason: str, is_behind: bool) -> None:
    decision = decide_start(takeover(group, writer, own), Basis.STARTING_POSITION)
    assert (decision.basis, decision.offset) == (Basis.GROUP, group)
    assert decision.conflict is not None
    assert decision.conflict.is_behind is is_behind
    assert reason in str(decision.conflict)
    assert str(decision.conflict).startswith(f"orders-0 group={group} checkpoint={own} ")


@pytest.mark.parametrize(
    ("group", "writer", "instead_of", "own", "offset", "reason"),
    [
        # the checkpoint had lost, ahead or behind, and no batch of that was logged
        (40, THEIRS, MINE, 100, 40, "an older version"),
        (150, THEIRS, MINE, 100, 150, "an older version"),
        # the checkpoint had won, and has not reached the group's offset
        (1000, MINE, THEIRS, 120, 1000, "this query has committed"),
        (1000, MINE, THEIRS, 1020, 1020, None),
        # the checkpoint had lost, and a batch of that was logged
        (150, THEIRS, MINE, 150, 150, None),
        # another checkpoint: a takeover
        (1000, THEIRS, "a third one", 120, 1000, None),
    ],
)
def test_a_decision_of_an_older_version_is_not_followed_in_silence(
    group: int, writer: str, instead_of: str, own: int, offset: int, reason: str | None
) -> None:
    old = takeover(group, writer, own)
    assert old.group_metadata is not None
    decision = decide_start(
        replace(old, group_metadata=replace(old.group_metadata, instead_of=instead_of)), Basis.STARTING_POSITION
    )
    assert decision.offset == offset
    assert (decision.conflict is not None) is (reason is not None)
    assert decision.conflict is None or (decision.conflict.is_behind and str(reason) in str(decision.conflict))


@pytest.mark.parametrize(
    ("group", "writer", "own", "pins"),
    [
        (None, NOBODYS, None, True),
        (40, MINE, 70, True),
        (70, THEIRS, 70, False),
        (70, THEIRS, None, False),
        # so that an offset without metadata is one that was moved since
        (70, NOBODYS, 70, True),
        (30, NOBODYS, 70, True),
        # a decision is committed although the group has the offset
        (90, MINE, 70, True),
    ],
)
@pytest.mark.rule("R46")
def test_what_is_committed_of_a_start_position(
    group: int | None, writer: str | None, own: int | None, pins: bool
) -> None:
    taken_over = takeover(group, writer, own)
    decision = decide_start(taken_over, Basis.STARTING_POSITION)
    text = "" if taken_over.group_metadata is None else taken_over.group_metadata.to_text()
    assert must_pin(decision, decision.offset or 0, GroupOffset(group, text)) is pins


@pytest.mark.parametrize("writer", [MINE, THEIRS])
@pytest.mark.rule("R35")
def test_a_recreated_topic_starts_at_its_beginning(writer: str) -> None:
    """By name alone the offset of the deleted topic would skip the records of its successor."""
    old = takeover(70, writer, None, written_for="the deleted topic's id")
    assert decide_start(old, Basis.STARTING_POSITION) == StartDecision(P0, Basis.FIRST_OFFSET, None, recreated=True)


@pytest.mark.parametrize("own", [40, 500])
@pytest.mark.parametrize("writer", [MINE, THEIRS])
@pytest.mark.rule("R83")
def test_a_recreated_topic_goes_on_where_the_checkpoint_has_read_it(own: int, writer: str) -> None:
    """A late commit for the deleted topic has replaced the group's offset. It is committed again."""
    old = takeover(70, writer, own, written_for="the deleted topic's id")
    decision = StartDecision(P0, Basis.LINEAGE, own, recreated=True)
    assert decide_start(old, Basis.STARTING_POSITION) == decision
    assert must_pin(decision, own, GroupOffset(70, ""))


def test_a_recreated_topic_is_noticed_by_what_the_lineage_has_read() -> None:
    """The broker forgets the offsets of a deleted topic, so the group may know nothing of it."""
    anew = Takeover(P0, TOPIC_ID, None, None, None, LINEAGE, recreated=True)
    assert decide_start(anew, Basis.STARTING_POSITION) == StartDecision(P0, Basis.FIRST_OFFSET, None, recreated=True)


def test_offsets_of_the_new_topic_count_although_the_lineage_has_read_the_old_one() -> None:
    metadata = CommitMetadata(THEIRS, TOPIC_ID, 0, 7, Pin(0, 4))
    taken_over = Takeover(P0, TOPIC_ID, 7, metadata, None, LINEAGE, recreated=True)
    assert decide_start(taken_over, Basis.STARTING_POSITION) == StartDecision(P0, Basis.GROUP, 7)


@pytest.mark.rule("R4")
def test_a_partition_that_was_made_later_starts_at_its_first_offset() -> None:
    """Also when retention has removed its first records meanwhile: these are lost."""
    decision = decide_start(takeover(None, NOBODYS, None), Basis.FIRST_OFFSET)
    assert decision == StartDecision(P0, Basis.FIRST_OFFSET, None)


def test_a_partition_of_a_topic_that_is_new_to_the_group_starts_where_its_log_begins() -> None:
    """The topic may be old: added to the subscription, or to what the client may see."""
    decision = decide_start(takeover(None, NOBODYS, None), Basis.BEGINNING)
    assert decision == StartDecision(P0, Basis.BEGINNING, None)


@pytest.mark.parametrize("basis", [b for b in Basis if b not in (Basis.GROUP, Basis.LINEAGE)])
def test_the_basis_without_offset_matters_only_where_nothing_is_known(basis: Basis) -> None:
    assert decide_start(takeover(7, THEIRS, None), basis).basis is Basis.GROUP
    assert decide_start(takeover(None, NOBODYS, 7), basis).basis is Basis.LINEAGE


TOO_MANY = KnownTopics(0, "")


def pins(*counts: tuple[TopicPartition, int], known: tuple[str, ...] | None = ("orders",)) -> dict[TopicPartition, Pin]:
    digest = None if known is None else KnownTopics.of(dict.fromkeys(known, TOPIC_ID))
    return {partition: Pin(0, count, digest) for partition, count in counts}


@pytest.mark.parametrize(
    ("partition", "pinned", "basis"),
    [
        # nothing is pinned: the group is new
        (tp(0), {}, Basis.STARTING_POSITION),
        (tp(9), {}, Basis.STARTING_POSITION),
        # the topic had 4 partitions when the group began
        (tp(3), pins((tp(0), 4)), Basis.STARTING_POSITION),
        (tp(4), pins((tp(0), 4)), Basis.FIRST_OFFSET),
        (tp(5), pins((tp(0), 4)), Basis.FIRST_OFFSET),
        # it grew twice; the partition of the first growth carries a larger count
        (tp(6), pins((tp(0), 4), (tp(4), 6)), Basis.FIRST_OFFSET),
        (tp(5), pins((tp(0), 4), (tp(4), 6)), Basis.FIRST_OFFSET),
        (tp(3), pins((tp(0), 4), (tp(4), 6)), Basis.STARTING_POSITION),
        (tp(5), pins((tp(4), 6)), Basis.STARTING_POSITION),
        # another topic: known then, unknown then, and too many topics to tell
        (tp(0, "refunds"), pins((tp(0), 4), known=("orders", "refunds")), Basis.STARTING_POSITION),
        (tp(0, "refunds"), pins((tp(0), 4)), Basis.BEGINNING),
        (tp(0, "refunds"), {tp(0): Pin(7, 4, TOO_MANY)}, Basis.BEGINNING),
        (tp(1), {tp(0): Pin(7, 4, TOO_MANY)}, Basis.BEGINNING),
        # a group that began with "earliest"
        (tp(0, "refunds"), pins((tp(0), 4), known=None), Basis.BEGINNING),
        (tp(3), pins((tp(0), 4), known=None), Basis.BEGINNING),
        (tp(4), pins((tp(0), 4), known=None), Basis.FIRST_OFFSET),
        # found after partitions that were added to the first topic: their pins know it
        (tp(0, "refunds"), pins((tp(0), 4)) | pins((tp(4), 5), known=("orders", "refunds")), Basis.BEGINNING),
        # a topic that appeared later, one of its partitions is pinned already; and one that it grew by
        (
            tp(0, "refunds"),
            pins((tp(0), 4)) | pins((tp(1, "refunds"), 2), known=("orders", "refunds")),
            Basis.BEGINNING,
        ),
        (tp(2, "refunds"), pins((tp(0), 4)) | pins((tp(1, "refunds"), 2)), Basis.FIRST_OFFSET),
    ],
)
@pytest.mark.rule("R4")
def test_basis_without_offset(partition: TopicPartition, pinned: dict[TopicPartition, Pin], basis: Basis) -> None:
    assert basis_without_offset(partition, TOPIC_ID, pinned) is basis


NOTHING_KNOWN = KnownTopics.of({})
LOST_PIN = Pin(100, 2, NOTHING_KNOWN)
READ = Memory(TOPIC_ID, has_read=True)


@pytest.mark.parametrize("by_pattern", [False, True])
@pytest.mark.parametrize(
    ("pinned", "memory", "basis"),
    [
        # the checkpoint has read the topic, and the group has no pin of it: it had one, before anything was planned
        ({}, READ, Basis.FORGOTTEN),
        (pins((tp(0, "refunds"), 1), known=("refunds", "orders")), READ, Basis.FORGOTTEN),
        (pins((tp(0, "refunds"), 1), known=("refunds",)), READ, Basis.FORGOTTEN),
        # another partition was pinned anew where a checkpoint was: also for a query that has read nothing
        ({tp(0): LOST_PIN}, READ, Basis.FORGOTTEN),
        ({tp(0): LOST_PIN}, Memory(), Basis.FORGOTTEN),
        ({tp(0): LOST_PIN, tp(2): Pin(0, 3, NOTHING_KNOWN)}, Memory(), Basis.FORGOTTEN),
        # what was added after that is new
        ({tp(0): replace(LOST_PIN, partition_count=1)}, READ, Basis.FIRST_OFFSET),
        # a new group, and one that remembers
        ({}, Memory(), Basis.STARTING_POSITION),
        (pins((tp(0), 2)), READ, Basis.STARTING_POSITION),
        (pins((tp(0), 2), known=None), READ, Basis.BEGINNING),
        # the topic was made again since it was read, or since the query started
        ({}, replace(READ, topic_id="other"), Basis.STARTING_POSITION),
        ({}, replace(READ, appeared=True), Basis.FIRST_OFFSET),
    ],
)
def test_what_the_group_has_forgotten_is_not_new(
    by_pattern: bool, pinned: dict[TopicPartition, Pin], memory: Memory, basis: Basis
) -> None:
    """Its beginning may be long gone, read by another query: no loss, also where a pattern matches the topic."""
    assert basis_without_offset(tp(1), TOPIC_ID, pinned, replace(memory, by_pattern=by_pattern)) is basis


@pytest.mark.parametrize(
    ("pinned", "memory", "basis"),
    [
        # no pin tells which topics there were: one that is new to a checkpoint that has read others
        ({}, Memory(has_read=True), Basis.BEGINNING),
        (pins((tp(0, "refunds"), 1), known=None), Memory(has_read=True), Basis.BEGINNING),
        (pins((tp(0, "refunds"), 1), known=None), Memory(), Basis.BEGINNING),
        # nobody has named it
        ({}, Memory(has_read=True, by_pattern=True), Basis.FIRST_OFFSET),
        (pins((tp(0, "refunds"), 1), known=("refunds",)), Memory(by_pattern=True), Basis.FIRST_OFFSET),
        ({}, Memory(by_pattern=True), Basis.STARTING_POSITION),
        # made again: its first partition was pinned at 0
        ({tp(0): Pin(0, 2, NOTHING_KNOWN)}, Memory(by_pattern=True), Basis.FIRST_OFFSET),
        ({tp(0): Pin(0, 2, NOTHING_KNOWN)}, Memory(TOPIC_ID, has_read=True), Basis.BEGINNING),
    ],
)
def test_basis_without_offset_by_what_the_query_knows(
    pinned: dict[TopicPartition, Pin], memory: Memory, basis: Basis
) -> None:
    assert basis_without_offset(tp(1), TOPIC_ID, pinned, memory) is basis


def test_an_open_start_is_what_the_options_say() -> None:
    open_one = StartDecision(P0, Basis.STARTING_POSITION, None)
    assert open_start(open_one, Starting(AtTime(5))) == AtTime(5)
    assert open_start(open_one, Starting(None, {P0: AtOffset(7)})) == AtOffset(7)
    assert open_start(open_one, Starting(None, {tp(1): AtOffset(7)})) is None


def test_the_options_do_not_count_for_a_partition_that_appeared_later() -> None:
    later = StartDecision(P0, Basis.BEGINNING, None)
    for starting in (Starting(), Starting(AtTime(5)), Starting(None, {tp(1): AtOffset(7)})):
        assert open_start(later, starting) == AtEdge()


# --- resets

FIRST, SECOND = Reset(1000, "first"), Reset(2000, "second")


def was_reset(group: int | None, writer: str | None, own: int | None, *, written_for: str = TOPIC_ID) -> Takeover:
    """The first reset is in the group's text, if that has one, and not in the checkpoint."""
    before = takeover(group, writer, own, written_for=written_for)
    metadata = None if before.group_metadata is None else replace(before.group_metadata, reset=FIRST)
    return replace(before, group_metadata=metadata)


@pytest.mark.parametrize(
    ("group", "writer", "own", "basis", "offset"),
    [
        # back, forth, and where the checkpoint is by chance
        (0, THEIRS, 900, Basis.GROUP, 0),
        (1000, THEIRS, 900, Basis.GROUP, 1000),
        (900, THEIRS, 900, Basis.GROUP, 900),
        # another query has read on since: the sequence in the module's head
        (50, THEIRS, 900, Basis.GROUP, 50),
        # a decision that was committed in the name of a lineage of this query, which has logged no batch of that
        (40, MINE, 100, Basis.GROUP, 40),
        (150, MINE, 100, Basis.GROUP, 150),
        # nothing of our own
        (0, THEIRS, None, Basis.GROUP, 0),
        # no offset in the group: it was no part of the reset, and nobody else has read it
        (None, NOBODYS, 900, Basis.LINEAGE, 900),
        (None, NOBODYS, None, Basis.STARTING_POSITION, None),
    ],
)
@pytest.mark.rule("R46")
@pytest.mark.rule("R46")
def test_after_a_reset_the_group_wins_without_a_conflict(
    group: int | None, writer: str | None, own: int | None, basis: Basis, offset: int | None
) -> None:
    assert decide_start(was_reset(group, writer, own), Basis.STARTING_POSITION) == StartDecision(P0, basis, offset)


def test_a_reset_that_the_checkpoint_knows_changes_nothing() -> None:
    known = replace(was_reset(50, THEIRS, 900), known_reset=FIRST)
    assert decide_start(known, Basis.STARTING_POSITION) == StartDecision(P0, Basis.LINEAGE, 900)


@pytest.mark.parametrize(("own", "basis"), [(None, Basis.FIRST_OFFSET), (900, Basis.LINEAGE)])
@pytest.mark.rule("R83")
def test_the_reset_of_a_deleted_topic_does_not_count_for_the_recreated_one(own: int | None, basis: Basis) -> None:
    """The late commit of a batch of the deleted topic carries it."""
    after = was_reset(0, THEIRS, own, written_for="the deleted topic's id")
    assert decide_start(after, Basis.STARTING_POSITION) == StartDecision(P0, basis, own, recreated=True)


CHECKPOINT = offset_of(OffsetRange(P0, 800, 900), done={tp(1): 70})


def held(offset: int, reset: Reset | None, written_for: str = TOPIC_ID) -> GroupOffset:
    return GroupOffset(offset, CommitMetadata(LINEAGE, written_for, offset, offset, Pin(0, 2), reset=reset).to_text())


@pytest.mark.parametrize(
    ("start", "group", "void"),
    [
        (CHECKPOINT, {}, set()),
        (CHECKPOINT, {P0: held(0, FIRST)}, {P0}),
        (CHECKPOINT, {P0: held(0, FIRST), tp(1): held(0, SECOND), tp(2): held(0, FIRST)}, {P0, tp(1)}),
        (replace(CHECKPOINT, reset=FIRST), {P0: held(0, SECOND)}, {P0}),
        # a late commit for a deleted topic
        (CHECKPOINT, {P0: held(0, FIRST, "the deleted topic's id"), tp(1): held(0, FIRST)}, {tp(1)}),
        # left alone
        (CHECKPOINT, {P0: held(850, None)}, set()),
        (replace(CHECKPOINT, reset=FIRST), {P0: held(850, FIRST)}, set()),
        (CHECKPOINT, {P0: GroupOffset(None, "")}, set()),
        # another program has moved it: its owner decides that, perhaps as an older reset
        (CHECKPOINT, {P0: GroupOffset(0, ""), tp(1): GroupOffset(70, "")}, {P0}),
        # a standby, or a new checkpoint
        (SourceOffset(LINEAGE), {P0: held(0, FIRST)}, set()),
    ],
)
@pytest.mark.rule("R47")
def test_what_a_reset_makes_void(
    start: SourceOffset, group: dict[TopicPartition, GroupOffset], void: set[TopicPartition]
) -> None:
    assert void_ends(start, group) == void
