"""Shared state, with a store of the checkpoint that answers late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.data_loss import LossReporter
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.shared_state import SharedState
from spark_groupsource.errors import MembershipError
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.planning.shared_state import ReadByOthers
from spark_groupsource.planning.start_position import Basis, StartDecision
from tests.unit.driver.session_bed import P0, P1, Bed
from tests.unit.fakes import LINEAGE, OTHER_LINEAGE, make_options, offset_of, quiet_metrics

START = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))


def _with_answers(*answers: bool | None) -> SharedState:
    given: Iterator[bool | None] = iter(answers)
    options, bed, metrics = make_options(), Bed(), quiet_metrics()
    state = QueryState(bed.clock)
    losses = LossReporter(options, metrics, state)
    query = QueryContext(options, bed.clock, bed.cluster, bed.member, metrics, bed.clock.advance, state, losses)
    return SharedState(query, lambda: next(given))


@pytest.mark.rule("R115")
def test_a_gap_counts_also_if_the_store_answers_with_the_next_partition() -> None:
    """1. The store does not answer when orders-0 arrives, which others have read on. 2. It does when orders-1 does."""
    shared = _with_answers(None, True)
    gap = ReadByOthers(P0, 10, 15, OTHER_LINEAGE, has_state=False)
    shared.check_starts([StartDecision(P0, Basis.GROUP, 15, others=gap)], START, {}, lambda _: {})
    none = ReadByOthers(P1, 10, 10, LINEAGE, has_state=True)
    with pytest.raises(MembershipError, match=r"SHARED_STATE.*orders-0 \[10, 15\)"):
        shared.check_starts([StartDecision(P1, Basis.GROUP, 10, others=none)], START, {}, lambda _: {})
