"""`from_confluent_avro` before it asks a registry."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql.pandas import functions

from spark_groupsource.errors import SPARK_TOO_OLD, OptionError
from spark_groupsource.functions import from_confluent_avro


def test_a_spark_without_arrow_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functions, "arrow_udf")
    with pytest.raises(OptionError, match=r"from_confluent_avro needs PySpark 4\.1 or newer") as raised:
        from_confluent_avro("value", "http://127.0.0.1:1", subject="orders-value")
    assert raised.value.condition == SPARK_TOO_OLD
    assert raised.value.parameters["version"] == pyspark.__version__
