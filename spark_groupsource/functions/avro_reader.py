"""Read records in Avro's binary encoding. The only module that imports fastavro (extra `avro`)."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from spark_groupsource.functions.avro_encoding import Encoding
from spark_groupsource.functions.avro_guards import BadBytes, with_guards


class RecordReader:
    """Reads the records of one schema. `edit` is applied to each value, if there is one."""

    def __init__(self, encoding: Encoding, edit: Callable[[Any], Any] | None = None) -> None:
        self._edit = edit
        self._is_record = isinstance(encoding, dict) and encoding["type"] == "record"
        fields = encoding["fields"] if self._is_record else [{"name": "value", "type": encoding}]
        name = encoding["name"] if self._is_record else "one"
        names: dict[str, Any] = {}
        parsed: Any = fastavro.parse_schema({"type": "record", "name": name, "fields": fields}, names)
        guarded, self._empty_items = with_guards(parsed, names)
        # fastavro reads a schema with these two keys as it is.
        self._schema = {**guarded, "__fastavro_parsed": True, "__named_schemas": {}}

    def read(self, record: bytes) -> Any:
        """Return the value of a record. Raises `BadBytes` if it is not of the schema, and what `edit` raises."""
        data = BytesIO(record)
        self._empty_items.found = 0
        found = _read(data, self._schema)
        if data.tell() != len(record):
            raise BadBytes(f"{len(record) - data.tell()} bytes follow the record")
        value = found if self._is_record else found["value"]
        return value if self._edit is None else self._edit(value)


class RawReader:
    """Reads records of the schema `bytes`, which Confluent's serializers write as they are, without a length."""

    def __init__(self, encoding: Encoding) -> None:
        self._is_text = encoding == "string"

    def read(self, record: bytes) -> bytes | str:
        """Return the value of a record. Raises `BadBytes` if the reader wants a text that it is not."""
        try:
            return record.decode() if self._is_text else record
        except UnicodeDecodeError as error:
            raise BadBytes(str(error)) from None


def _read(data: BytesIO, schema: Any) -> Any:
    try:
        return fastavro.schemaless_reader(data, schema, None)
    except BadBytes:
        raise
    except KeyError as error:
        # Of `avro_guards`: a branch's number, or a type that does not exist.
        (key,) = error.args
        raise BadBytes(f"a union has no branch {key}" if isinstance(key, int) else str(key)) from None
    except Exception as error:  # noqa: BLE001
        # fastavro raises whatever its reading of arbitrary bytes leads to.
        raise BadBytes(f"{type(error).__name__}: {error}"[:300]) from None
