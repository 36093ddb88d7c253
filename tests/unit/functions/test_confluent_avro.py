"""`from_confluent_avro` before it asks a registry."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.pandas import functions

from spark_groupsource.errors import SPARK_TOO_OLD, OptionError
from spark_groupsource.functions import from_confluent_avro
from spark_groupsource.functions.avro_decoder import Decoder
from spark_groupsource.functions.confluent_avro import _reading
from tests.spark.registry import USER_INFO, SchemaRegistry
from tests.spark.registry import schema_registry as serving


def test_a_spark_without_arrow_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functions, "arrow_udf")
    with pytest.raises(OptionError, match=r"from_confluent_avro needs PySpark 4\.1 or newer") as raised:
        from_confluent_avro("value", "http://127.0.0.1:1", subject="orders-value")
    assert raised.value.condition == SPARK_TOO_OLD
    assert raised.value.parameters["version"] == pyspark.__version__


@pytest.mark.parametrize("subject", ["orders-value", "bills-value"])
def test_ids_are_those_of_the_subjects_context(subject: str) -> None:
    """Each context of a registry counts its ids anew: id 1 is another schema in the default one."""

    def record_of(name: str, kind: Any) -> dict[str, Any]:
        return {"type": "record", "name": "R" + name, "fields": [{"name": name, "type": kind}]}

    with serving() as registry:
        context = registry.contexts[":.staging:"] = SchemaRegistry()
        for default in (record_of("a", "long"), record_of("b", "long")):
            registry.register("orders-value", default)
        context.register("orders-value", record_of("a", "string"))
        reference = {"name": "Ra", "subject": "orders-value", "version": 1}
        context.register("bills-value", record_of("b", "Ra"), references=[reference])
        number = context.subjects[subject][0]
        reading, _ = _reading(registry.url, f":.staging:{subject}", None, {"basic.auth.user.info": USER_INFO})
        found = Decoder(reading).decode(pa.array([b"\0\0\0\0" + bytes([number]) + b"\2x"], pa.binary()))
    assert found.to_pylist() == [{"a": "x"} if subject == "orders-value" else {"b": {"a": "x"}}]
