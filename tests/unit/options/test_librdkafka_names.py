"""The names of librdkafka's settings: the list is that of the installed library, and a newer one is asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.options import librdkafka_names
from spark_groupsource.options.librdkafka_names import SETTING_NAMES, is_known, similar
from tests.unit.fakes import make_options
from tests.unit.options.librdkafka_settings import settings_table

# Callbacks and values that are no text.
_NO_TEXT = re.compile(
    r".*_cb|opaque|default_topic_conf|interceptors|msg_order_cmp|ssl_.*|enabled_events|test\.mock\..*"
)


def test_the_list_is_that_of_the_library(tmp_path: Path) -> None:
    names = set(re.findall(r"^([a-z][a-z_.]+?) +\|", settings_table(tmp_path), re.MULTILINE))
    names = {name for name in names if not _NO_TEXT.fullmatch(name)}
    assert len(names) > 150
    assert names - SETTING_NAMES <= {"offset.store.sync.interval.ms"}
    assert SETTING_NAMES - names == set()


def test_a_name_of_a_newer_library_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka_names, "SETTING_NAMES", SETTING_NAMES - {"fetch.min.bytes"})
    assert is_known("fetch.min.bytes")
    assert not is_known("fetch.mn.bytes")

    def missing() -> str:
        raise OSError

    monkeypatch.setattr(librdkafka_names, "library_path", missing)
    assert is_known("fetch.mn.bytes"), "the client refuses it when it is created"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("kafka.fetch.mn.bytes", "Did you mean 'kafka.fetch.min.bytes'?"),
        ("executor.kafka.sasl.mechanim", "Did you mean 'executor.kafka.sasl.mechanism'?"),
        ("kafka.metrics.num.samples", "It is no setting of librdkafka's."),
    ],
)
def test_a_name_that_the_client_does_not_have(option: str, text: str) -> None:
    with pytest.raises(OptionError, match=r"OPTION_UNKNOWN.*CONFIGURATION\.md") as raised:
        make_options(**{option: "1"})
    assert text in str(raised.value)
    assert similar("xyz") == ""
