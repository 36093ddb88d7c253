"""The user data between members and leader: any other format is a WireError."""

from __future__ import annotations

import json

import pytest

from spark_groupsource.assignors.notes import MemberNote, WireError


@pytest.mark.parametrize("data", ["\u00e9", "a", "====", "a b="])
def test_data_that_is_not_base64_is_refused(data: str) -> None:
    raw = json.dumps({"v": 1, "held": True, "data": data, "offers": []}).encode()
    with pytest.raises(WireError, match="data is not base64"):
        MemberNote.decode(raw)


@pytest.mark.parametrize(
    "raw", [b"text", b"\xff", b"[" * 100_000, b"[1]", b'{"v":2,"held":true,"data":"","offers":[]}']
)
def test_user_data_of_another_format_is_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        MemberNote.decode(raw)


def test_what_was_encoded_is_decoded() -> None:
    note = MemberNote(True, b"\x00\xff", ("fair", "sticky"))
    assert MemberNote.decode(note.encode()) == note
