"""Which client reads, and what is said about it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_groupsource.executor.clients import choose as clients
from spark_groupsource.executor.clients.native import NativeClient, NativeLibrary
from spark_groupsource.executor.clients.pure_python import PythonClient
from tests.unit.fakes import make_options


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    clients.native_library.cache_clear()
    clients.log_reading_path.cache_clear()
    yield
    clients.native_library.cache_clear()
    clients.log_reading_path.cache_clear()


def test_the_environment_may_ask_for_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPKAFKA_GATHER", "Python")
    assert clients.reading_path() == ("records are gathered in pure Python, which is slower (GROUPKAFKA_GATHER=python)")
    client = clients.make_client(make_options(), 1_000_000)
    assert isinstance(client, PythonClient)
    client.close()


def test_an_extension_that_was_not_built_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_groupsource.executor.clients._gather", None)
    # The folder shows whether a checkout's sources were imported in the place of the installed package.
    assert clients.reading_path().endswith(f"(not compiled in {Path(clients.__file__).parent})")
    client = clients.make_client(make_options(), 1_000_000)
    assert isinstance(client, PythonClient)
    client.close()


def test_a_client_library_that_is_not_found_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("spark_groupsource.executor.clients._gather")
    monkeypatch.setattr(clients, "library_path", lambda: "/nowhere/librdkafka.so.1")
    assert "OSError: /nowhere/librdkafka.so.1" in clients.reading_path()


def test_with_both_records_are_gathered_in_c(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("spark_groupsource.executor.clients._gather")
    assert isinstance(clients.native_library(), NativeLibrary)
    client = clients.make_client(make_options(), 1_000_000)
    assert isinstance(client, NativeClient)
    client.close()
    with caplog.at_level(logging.INFO):
        clients.log_reading_path()
        clients.log_reading_path()
    assert [record.getMessage() for record in caplog.records] == ["records are gathered in C"]
