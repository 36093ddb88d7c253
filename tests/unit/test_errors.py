"""One form of a reported loss, wherever it is noticed."""

from __future__ import annotations

import pytest

from spark_groupsource.errors import DataLossError, report_loss
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.fakes import tp

LOST = [
    (OffsetRange(tp(0), 1, 3), "the topic was deleted"),
    (OffsetRange(tp(2), 5, 9), "the log is [9, 12)"),
    (OffsetRange(tp(1), 0, 4), "the topic was deleted"),
]
TEXT = "orders-0 [1, 3), orders-1 [0, 4): the topic was deleted; orders-2 [5, 9): the log is [9, 12)"


def test_a_loss_names_its_ranges_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    report_loss(LOST, fail=False, group="shop")
    assert caplog.messages == [f"data lost and skipped, failOnDataLoss=false: group=shop {TEXT}"]
    with pytest.raises(DataLossError) as failure:
        report_loss(LOST, fail=True, group="shop")
    assert failure.value.parameters["ranges"] == TEXT


def test_a_loss_without_a_reason_or_a_group(caplog: pytest.LogCaptureFixture) -> None:
    report_loss([(OffsetRange(tp(0), 1, 3), "")], fail=False, group="")
    assert caplog.messages == ["data lost and skipped, failOnDataLoss=false: group=none orders-0 [1, 3)"]


@pytest.mark.parametrize("fail", [True, False])
def test_no_loss_is_not_reported(fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    report_loss([], fail=fail, group="shop")
    assert caplog.messages == []
