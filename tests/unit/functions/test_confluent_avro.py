"""`from_confluent_avro` before it asks a registry."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.pandas import functions

from spark_groupsource.errors import AVRO_SCHEMA_UNUSABLE, SPARK_TOO_OLD, OptionError
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


def records(links: dict[int, list[int]], first: int = 0) -> Any:
    """Return the schema of a record with a field of each record that it is linked to, and so on."""
    defined: set[int] = set()

    def schema(number: int) -> Any:
        if number in defined:
            return f"R{number}"
        defined.add(number)
        fields = [{"name": f"f{place}", "type": schema(other)} for place, other in enumerate(links[number])]
        return {"type": "record", "name": f"R{number}", "fields": fields}

    return schema(first)


@pytest.mark.parametrize(
    "links",
    [
        pytest.param({number: list(range(11)) for number in range(11)}, id="all refer to all"),
        pytest.param({number: [number + 1] * 2 for number in range(16)} | {16: []}, id="two of the next one"),
    ],
)
def test_a_type_of_too_many_fields_is_refused(links: dict[int, list[int]]) -> None:
    """Eight records that refer to each other gave Spark a type of 110,000 columns; eleven took hours."""
    with pytest.raises(OptionError, match=r"more than 10000 fields.*it may leave fields out") as raised:
        _reading("http://127.0.0.1:1", None, json.dumps(records(links)), {})
    assert raised.value.condition == AVRO_SCHEMA_UNUSABLE


def test_records_that_refer_to_each_other_are_read() -> None:
    links = {number: list(range(6)) for number in range(6)}
    _, result = _reading("http://127.0.0.1:1", None, json.dumps(records(links)), {})
    assert len(result) == 6
