"""from_confluent_avro on Spark, with a registry on loopback and records of confluent-kafka's own serializer."""

from __future__ import annotations

import datetime
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from spark_groupsource import errors
from spark_groupsource.functions import from_confluent_avro
from tests.realkafka.oidc import CLIENT_ID, TokenServer

from .registry import USER_INFO, SchemaRegistry, schema_registry

pytestmark = pytest.mark.spark

LOGIN = {"basic.auth.user.info": USER_INFO}
SUBJECT = "orders-value"
ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "ratio", "type": ["float", "double"]},
    ],
}  # fmt: skip


def order(number: int) -> dict[str, Any]:
    """Return a record."""
    return {
        "id": number, "who": None if number % 2 else f"w{number}",
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=datetime.timezone.utc),
        "local": datetime.datetime(2026, 1, 2, 3, 4, 5, 6), "day": datetime.date(2026, 1, 2),
        "price": Decimal("12.34"), "tags": ["a", "b"], "counts": {"x": number}, "kind": "NEW",
        "uuid": "3b241101-e2bb-4255-8caf-4136c566a962", "hash": b"\x00\x01\x02\x03", "ratio": 0.5,
    }  # fmt: skip


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Return a registry of this test's own: decoders are kept by URL."""
    with schema_registry() as found:
        yield found


def serialized(registry: SchemaRegistry, schema: object, records: list[Any]) -> list[bytes]:
    """Return records as confluent-kafka's serializer writes them, which registers their schema."""
    with SchemaRegistryClient({"url": registry.url, **LOGIN}) as client:
        serializer = AvroSerializer(client, json.dumps(schema))
        context = SerializationContext("orders", MessageField.VALUE)
        return [serializer(record, context) for record in records]


def by_hand(number: int, schema: Any, record: Any) -> bytes:
    """Return a record in the wire format under any schema id."""
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, record)
    return b"\0" + number.to_bytes(4, "big") + data.getvalue()


def decoded(spark: SparkSession, values: list[bytes | None], url: str, **arguments: Any) -> DataFrame:
    """Return the values' decoded column `o`."""
    frame = spark.createDataFrame([(value,) for value in values], "value binary")
    arguments["options"] = LOGIN | arguments.get("options", {})
    return frame.select(from_confluent_avro("value", url, **arguments).alias("o"))


def test_records_of_confluents_serializer(spark: SparkSession, registry: SchemaRegistry) -> None:
    frame = decoded(
        spark, [*serialized(registry, ORDER, [order(n) for n in range(4)]), None], registry.url, subject=SUBJECT
    )
    fields = {field.name: field.dataType.simpleString() for field in frame.schema["o"].dataType.fields}
    assert fields == {
        "id": "bigint", "who": "string", "at": "timestamp", "local": "timestamp_ntz", "day": "date",
        "price": "decimal(10,2)", "tags": "array<string>", "counts": "map<string,bigint>", "kind": "string",
        "uuid": "string", "hash": "binary", "ratio": "double",
    }  # fmt: skip
    rows = frame.selectExpr("o.*", "date_format(o.at, 'yyyy-MM-dd HH:mm:ss.SSS') as at_text", "o is null").collect()
    assert [row["(o IS NULL)"] for row in rows] == [False] * 4 + [True]
    for number, row in enumerate(rows[:4]):
        expected = order(number)
        assert row.at_text == "2026-01-02 03:04:05.006"
        assert {name: row[name] for name in expected if name != "at"} == {
            name: value for name, value in expected.items() if name != "at"
        }


def test_each_schema_is_requested_once_per_worker(spark: SparkSession, registry: SchemaRegistry) -> None:
    values = serialized(registry, ORDER, [order(n) for n in range(50)])
    registry.requests.clear()
    frame = decoded(spark, [*values], registry.url, subject=SUBJECT).repartition(4)
    for _ in range(3):
        assert frame.where("o.id is not null").count() == 50
    assert registry.requests[0] == f"GET /subjects/{SUBJECT}/versions/latest"
    assert 1 <= registry.requests.count("GET /schemas/ids/1") <= 2, "local[2] has two workers at most"
    assert len(registry.requests) <= 3


def test_a_schema_that_evolves(spark: SparkSession, registry: SchemaRegistry) -> None:
    """A field is added with a default, one is removed, one is widened: old and new records have the reader's schema."""
    old = {"type": "record", "name": "E", "fields": [{"name": "a", "type": "int"}, {"name": "gone", "type": "string"}]}
    added = {"name": "b", "type": "string", "default": "none"}
    new = {"type": "record", "name": "E", "fields": [{"name": "a", "type": "long"}, added]}
    first, second = registry.register("e", old), registry.register("e", new)
    values = [by_hand(first, old, {"a": 1, "gone": "x"}), by_hand(second, new, {"a": 2**40, "b": "y"})]
    rows = decoded(spark, [*values], registry.url, subject="e").select("o.*").collect()
    assert [(row.a, row.b) for row in rows] == [(1, "none"), (2**40, "y")]
    given = decoded(
        spark,
        [*values],
        registry.url,
        reader_schema='{"type":"record","name":"E","fields":[{"name":"a","type":"long"}]}',
    )
    assert [tuple(row.o) for row in given.collect()] == [(1,), (2**40,)]


def test_the_text_of_a_record_inside_itself_is_read_by_from_json(spark: SparkSession, registry: SchemaRegistry) -> None:
    fields = [
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "raw", "type": "bytes"}, {"name": "next", "type": ["null", "N"]},
    ]  # fmt: skip
    schema = {"type": "record", "name": "N", "fields": fields}
    number = registry.register("n", schema)
    value = {"price": Decimal("12.34"), "at": 1_700_000_000_000, "day": 2_932_897, "raw": b"\xff"}
    data = by_hand(number, schema, value | {"next": value | {"next": None}})
    frame = decoded(spark, [data], registry.url, subject="n").select("o.*")
    assert frame.schema["next"].dataType.simpleString() == "string"
    kinds = "price decimal(9,2), at timestamp, day date, raw binary, next string"
    (row,) = (
        frame.selectExpr(f"from_json(next, '{kinds}') AS n", "price", "at", "day", "raw")
        .selectExpr("n.price = price AND n.at = at AND n.day = day AND n.raw = raw AND n.next IS NULL")
        .collect()
    )
    assert row[0]


def bad_records(registry: SchemaRegistry) -> list[bytes]:
    """Return records that are not readable, each for another reason."""
    (good,) = serialized(registry, ORDER, [order(1)])
    proto = registry.register("p", 'syntax = "proto3";', schemaType="PROTOBUF")
    return [
        b"",
        b"\0\0",
        b'{"id": 1}',
        good[:-3],
        good + b"x",
        b"\0\0\0\0\x63" + good[5:],
        b"\0\0\0\0" + bytes([proto, 1]),
    ]


def test_bad_records_are_null_if_wanted(spark: SparkSession, registry: SchemaRegistry) -> None:
    (good,) = serialized(registry, ORDER, [order(7)])
    values = [good, *bad_records(registry), good]
    frame = decoded(spark, [*values], registry.url, subject=SUBJECT, options={"mode": "PERMISSIVE"})
    assert [row[0] for row in frame.selectExpr("o.id").collect()] == [7, *[None] * (len(values) - 2), 7]


def test_a_bad_record_is_an_error_that_says_why(spark: SparkSession, registry: SchemaRegistry) -> None:
    reasons = [
        "does not begin with a zero byte", "does not begin with a zero byte", "does not begin with a zero byte",
        "EOFError", "1 bytes follow the record", "Schema not found", "its schema is PROTOBUF, not Avro",
    ]  # fmt: skip
    for value, reason in zip(bad_records(registry), reasons, strict=True):
        with pytest.raises(Exception, match="AVRO_RECORD_INVALID") as caught:
            decoded(spark, [value], registry.url, subject=SUBJECT).collect()
        assert reason in str(caught.value)


def test_no_record_is_null_because_the_registry_is_away(spark: SparkSession, registry: SchemaRegistry) -> None:
    (good,) = serialized(registry, ORDER, [order(7)])
    frame = decoded(spark, [good], registry.url, subject=SUBJECT, options={"mode": "PERMISSIVE"})
    registry.failures = [503] * 4
    with pytest.raises(Exception, match="SCHEMA_REGISTRY_FAILED"):
        frame.collect()
    registry.failures = [503, 429]
    assert frame.select("o.id").collect()[0][0] == 7, "a failure that passes is tried again"


def test_credentials_are_in_no_plan_and_no_error(spark: SparkSession, registry: SchemaRegistry) -> None:
    values = serialized(registry, ORDER, [order(7)])
    password = USER_INFO.partition(":")[2]
    frame = decoded(spark, [*values, b"bad"], registry.url, subject=SUBJECT)
    jvm = frame._jdf.queryExecution()
    texts = [jvm.toString(), jvm.analyzed().toJSON(), jvm.optimizedPlan().prettyJson(), jvm.simpleString(), str(frame)]
    texts += [jvm.stringWithStats(), repr(from_confluent_avro("value", registry.url, subject=SUBJECT, options=LOGIN))]
    with pytest.raises(Exception, match="AVRO_RECORD_INVALID") as caught:
        frame.collect()
    texts.append(str(caught.value))
    with_password = registry.url.replace("//", f"//reader:{password}@")
    with pytest.raises(errors.OptionError) as missing:
        from_confluent_avro("value", with_password, subject="none")
    texts.append(str(missing.value))
    registry.failures = [302]
    with pytest.raises(errors.KafkaUnavailableError, match="HTTP 302") as moved:
        from_confluent_avro("value", with_password, subject=SUBJECT)
    texts.append(str(moved.value))
    assert registry.requests[-1] != "GET /schemas/ids/1", "the redirect was followed"
    assert [text for text in texts if password in text] == []
    assert "from_confluent_avro" in texts[0]


@pytest.mark.parametrize(
    ("url", "arguments", "said"),
    [
        ("file:///etc/passwd", {"subject": "s"}, "'file:...'"),
        ("http://127.0.0.1:1", {}, "a subject, or reader_schema instead"),
        ("http://127.0.0.1:1", {"subject": "s", "options": {"mode": "DROP"}}, "FAILFAST or PERMISSIVE"),
        ("http://127.0.0.1:1", {"subject": "s", "options": {"user": "x"}}, "'user'"),
        (
            "http://127.0.0.1:1",
            {"reader_schema": '{"type": "bytes", "logicalType": "decimal", "precision": 39}'},
            "a decimal of 39 digits; Spark's have 38 at most",
        ),
        ("http://127.0.0.1:1", {"reader_schema": "[]"}, "a union without types"),
        ("http://127.0.0.1:1", {"reader_schema": "{"}, "gives no column type"),
        (
            "http://127.0.0.1:1",
            {"reader_schema": '{"type":"record","name":"N","fields":[{"name":"next","type":["null","M"]}]}'},
            "type 'M' is not defined",
        ),
    ],
)
def test_arguments_that_cannot_be(url: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.OptionError, match="What to do") as caught:
        from_confluent_avro("value", url, **arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("is_key", [False, True])
def test_ids_in_headers_of_confluents_serializer(spark: SparkSession, registry: SchemaRegistry, is_key: bool) -> None:
    """Records of the header serializer, of the default serializer, and a tombstone in one column."""
    field = MessageField.KEY if is_key else MessageField.VALUE
    rows: list[tuple[bytes | None, list[tuple[str, bytes]] | None]] = []
    with SchemaRegistryClient({"url": registry.url, **LOGIN}) as client:
        serializer = AvroSerializer(
            client, json.dumps(ORDER), conf={"schema.id.serializer": header_schema_id_serializer}
        )
        for number in range(3):
            headers: list[tuple[str, bytes]] = [("trace", b"1")]
            context = SerializationContext("orders", field, headers=headers)
            rows.append((serializer(order(number), context), headers))
        default = AvroSerializer(client, json.dumps(ORDER))
        rows.append((default(order(3), SerializationContext("orders", field)), None))
    rows.append((None, rows[0][1]))
    assert [name for name, _ in rows[0][1] or ()] == ["trace", f"__{field}_schema_id"]
    frame = spark.createDataFrame(rows, "value binary, headers array<struct<key:string,value:binary>>")
    column = from_confluent_avro(
        "value", registry.url, subject=f"orders-{field}", headers="headers", is_key=is_key, options=LOGIN
    )
    found = frame.select(column.alias("o")).selectExpr("o.id", "o.price").collect()
    assert [tuple(row) for row in found] == [(n, Decimal("12.34")) for n in range(4)] + [(None, None)]
    other = from_confluent_avro(
        "value", registry.url, subject=f"orders-{field}", headers="headers", is_key=not is_key, options=LOGIN
    )
    with pytest.raises(Exception, match=r"AVRO_RECORD_INVALID.*argument 'headers'"):
        frame.select(other).collect()


class IssuedBy:
    """The headers with any token of a server."""

    def __init__(self, server: TokenServer) -> None:
        self._server = server

    def __contains__(self, header: object) -> bool:
        return str(header).removeprefix("Bearer ") in self._server.issued


def test_tokens_are_fetched_where_requests_are_made(
    spark: SparkSession, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the driver and in a task, each with the first registry of the list dead."""
    values = serialized(registry, ORDER, [order(7)])
    urls = f"http://127.0.0.1:1,{registry.url}"
    with TokenServer() as server:
        monkeypatch.setenv("GROUPKAFKA_ONLY_TOKEN_ENDPOINTS", server.token_url)
        registry.logins = IssuedBy(server)  # type: ignore[assignment]
        options = {
            "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.client.id": CLIENT_ID,
            "bearer.auth.client.secret": server.secret, "bearer.auth.issuer.endpoint.url": server.token_url,
        }  # fmt: skip
        column = from_confluent_avro("value", urls, subject=SUBJECT, options=options)
        frame = spark.createDataFrame([(value,) for value in values], "value binary").select(column.alias("o"))
        assert frame.selectExpr("o.id").collect()[0][0] == 7
        assert len(server.issued) == 2
        plan = frame._jdf.queryExecution().toString()
        assert [text for text in (server.secret, *server.issued) if text in plan + repr(column)] == []


def test_nothing_of_an_extra_is_imported_without_use() -> None:
    """Neither the source nor the module of functions imports fastavro, kafka-python or prometheus_client."""
    modules = (
        "spark_groupsource.functions", "spark_groupsource.spark.source", "spark_groupsource.spark.assembly",
        "spark_groupsource.executor.reader", "spark_groupsource.cli.main",
    )  # fmt: skip
    extras = {"fastavro", "kafka", "prometheus_client", "spark_groupsource.functions.avro_decoder"}
    code = f"import sys, {', '.join(modules)}; print(sorted({extras} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
