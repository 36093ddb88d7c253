"""Rows that go with the plan: what PySpark's runner asks of a reader, in its order."""

from __future__ import annotations

import pickle

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from spark_groupsource.spark import row_handover as prefetch
from spark_groupsource.spark.source import GroupKafkaStreamReader
from tests.unit.fakes import make_options

ROWS = (pa.RecordBatch.from_pydict({"a": [1]}),)


def reader() -> GroupKafkaStreamReader:
    return GroupKafkaStreamReader(make_options())


def test_a_reader_without_rows_is_an_ordinary_one() -> None:
    one = reader()
    assert isinstance(one, DataSourceStreamReader)
    assert not isinstance(one, _SimpleStreamReaderWrapper)
    assert type(pickle.loads(pickle.dumps(one))) is GroupKafkaStreamReader


def test_a_reader_with_rows_is_a_simple_one_until_they_are_taken() -> None:
    one = reader()
    one.hand_over(ROWS)
    assert isinstance(one, _SimpleStreamReaderWrapper)
    assert isinstance(one, GroupKafkaStreamReader)
    assert list(one.getCache({}, {}) or ()) == list(ROWS)
    assert not isinstance(one, _SimpleStreamReaderWrapper)
    assert one.getCache({}, {}) is None


def test_no_rows_are_rows_too() -> None:
    one = reader()
    one.hand_over(())
    assert isinstance(one, _SimpleStreamReaderWrapper)
    assert list(one.getCache({}, {}) or (1,)) == []


def test_a_pyspark_that_asks_for_other_things_has_no_hook(monkeypatch) -> None:
    def get_cache(self: object, start: dict, end: dict, limit: int) -> None: ...

    prefetch.spark_hook.cache_clear()
    monkeypatch.setattr(_SimpleStreamReaderWrapper, "getCache", get_cache)
    try:
        assert prefetch.spark_hook() is None
    finally:
        prefetch.spark_hook.cache_clear()
