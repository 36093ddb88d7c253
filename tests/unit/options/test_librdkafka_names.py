"""The names of librdkafka's settings: the library itself is asked."""

from __future__ import annotations

import tempfile

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.options import librdkafka_names
from spark_groupsource.options.librdkafka_names import is_known, similar
from tests.unit.fakes import make_options


@pytest.mark.parametrize(
    "name",
    [
        "fetch.min.bytes", "log_level", "debug",
        # without a default
        "sasl.username", "group.id", "ssl.key.location", "plugin.library.paths",
        # another name of a setting; one of topics; one that the library's table does not have
        "metadata.broker.list", "acks", "client.software.name",
    ],
)  # fmt: skip
def test_a_name_that_the_library_has(name: str) -> None:
    assert is_known(name)


def test_a_name_that_it_does_not_have() -> None:
    assert not is_known("fetch.mn.bytes")
    assert not is_known("metrics.num.samples")


def test_a_library_that_cannot_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise OSError

    monkeypatch.setattr(librdkafka_names, "library_path", missing)
    assert is_known("fetch.mn.bytes"), "the client refuses it when it is created"


def test_a_misspelt_name_is_refused_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(OptionError, match="OPTION_UNKNOWN"):
        make_options(**{"kafka.fetch.mn.bytes": "1"})


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("kafka.fetch.mn.bytes", "Did you mean 'kafka.fetch.min.bytes'?"),
        ("executor.kafka.sasl.mechanim", "Did you mean 'executor.kafka.sasl.mechanism'?"),
        ("kafka.metrics.num.samples", "It is no setting of librdkafka's."),
        # By its name it may run code. No permission would make it work.
        ("kafka.security.providers", "It is no setting of librdkafka's."),
    ],
)
def test_what_was_meant(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"OPTION_UNKNOWN.*CONFIGURATION\.md") as raised:
        make_options(**{option: "1"})
    assert text in str(raised.value)
    assert similar("xyz") == ""
