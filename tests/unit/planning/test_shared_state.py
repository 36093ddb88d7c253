"""Decisions about state in a group, without I/O."""

from __future__ import annotations

import pytest

from spark_groupsource.model.commit_metadata import CommitMetadata, Pin
from spark_groupsource.model.offsets import Reset
from spark_groupsource.planning.conflicts import details_of
from spark_groupsource.planning.shared_state import broken, lacking, read_by_others
from tests.unit.fakes import OTHER_LINEAGE, TOPIC_ID, tp

P0 = tp(0)
RESET = Reset(1_700_000_000_000, "one")


def _text(start: int, end: int, *, reset: Reset | None = None, has_state: bool = False) -> CommitMetadata:
    return CommitMetadata(OTHER_LINEAGE, TOPIC_ID, start, end, Pin(40, 2), reset=reset, has_state=has_state)


@pytest.mark.parametrize(
    ("own", "group", "metadata", "lacks"),
    [
        # restart, SIGKILL, a moved checkpoint, a handover and back: the group is at the checkpoint's end
        (100, 100, _text(50, 100), None),
        # a batch of the checkpoint was not committed
        (100, 90, _text(50, 90), None),
        # others have completed a batch since, or several
        (100, 150, _text(100, 150), (100, 150)),
        (100, 150, _text(140, 150), (100, 150)),
        # a start that another lineage has committed again, beyond the checkpoint: its batch was completed before
        (100, 150, _text(150, 150), (100, 150)),
        # not read by this query yet: nobody has read it (growth, a new group), or others have
        (None, 40, _text(40, 40), None),
        (None, 90, _text(60, 90), (40, 90)),
        # a reset made the end void, and nothing was read since; or something was
        (None, 90, _text(90, 90, reset=RESET), None),
        (None, 90, _text(60, 90, reset=RESET), (60, 90)),
        # another program has moved the offset since
        (None, 95, _text(60, 90, reset=RESET), None),
        # offsets of another program
        (None, 90, None, None),
        (100, 150, None, None),
    ],
)
def test_what_the_state_lacks(
    own: int | None, group: int, metadata: CommitMetadata | None, lacks: tuple[int, int] | None
) -> None:
    found = lacking([read_by_others(P0, own, group, metadata)])
    assert [(item.start, item.end, item.lineage) for item in found] == ([(*lacks, OTHER_LINEAGE)] if lacks else [])


def test_a_mark_shows_whose_state_would_be_broken() -> None:
    marked, plain = (read_by_others(P0, None, 100, _text(60, 100, has_state=mark)) for mark in (True, False))
    assert broken([marked, plain, None]) == [marked]
    assert "orders-0 [" in str(marked)
    assert f"is complete in a query with state, lineage={OTHER_LINEAGE}" in str(marked)
    idle = read_by_others(P0, None, 40, _text(40, 40, has_state=True))
    assert "orders-0 is at 40 in a query with state" in str(idle)


def test_an_error_shows_a_few_partitions() -> None:
    found = [read_by_others(tp(number), None, 100, _text(60, 100)) for number in range(8)]
    assert details_of(found).count("orders-") == 8
    assert details_of(found, 5).count("orders-") == 5
    assert details_of(found, 5).endswith("; and 3 more")
