"""Which names are used unchanged."""

from __future__ import annotations

import pytest

from spark_groupsource.model.names import group_name, is_addressable, topic_name


@pytest.mark.parametrize("name", ["orders", "the orders", "or\tders", "\u00fcber", "a" * 1_000, "-", "{}"])
def test_a_groups_name_is_unchanged(name: str) -> None:
    assert group_name(name) == name
    assert is_addressable(name)


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\n", "\u00a0a", "a\u2003", "a\0", "a\0b", "\udcff"])
def test_a_groups_name_that_may_become_another_ones(name: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        group_name(name)


def test_what_the_client_cuts() -> None:
    assert [name for name in (" a", "\ta", "\va", "a ", "\u00a0a", "a\0") if not is_addressable(name)] == [
        " a", "\ta", "\va", "a\0"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", " a", "a ", "a b", "a" * 250, "\u00fc", "a\n"])
def test_no_topics_name(name: str) -> None:
    with pytest.raises(ValueError, match="no topic name"):
        topic_name(name)
