"""What the command line asks of a group, on a scripted coordinator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.cli.admin import LibrdkafkaGroupAdmin
from spark_groupsource.errors import CommandError
from spark_groupsource.model.commit_metadata import CommitItem
from tests.unit.fakes import ManualClock, make_options, tp

# More than fits into one request of 500 KB.
ITEMS = [CommitItem(tp(number), 5, "m" * 400) for number in range(3_000)]


def admin_that_takes(requests: int, monkeypatch: pytest.MonkeyPatch) -> LibrdkafkaGroupAdmin:
    """Return an admin whose coordinator takes so many requests; then the group has members."""
    admin = LibrdkafkaGroupAdmin(make_options(), ManualClock(), lambda _: None)
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
