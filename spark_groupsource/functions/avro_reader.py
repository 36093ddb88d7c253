"""Read records in Avro's binary encoding, many in one call. The only module that imports fastavro (extra `avro`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from spark_groupsource.functions.avro_encoding import Encoding
from spark_groupsource.functions.avro_guards import BadBytes, with_guards

# Random bytes behind each record of a call. A record that is shorter or longer than its bytes moves what is read as its
# guard: then each record is read by itself. Guards against a value that belongs to two records: bytes of a producer
# cannot hold what this process has drawn.
_GUARD = os.urandom(8)
_GUARD_FIELD = "guard!"  # no name of Avro


class RecordReader:
    """Reads the records of one schema, each from bytes of its own. `edit` is applied to each value, if there is one."""

    def __init__(self, encoding: Encoding, edit: Callable[[Any], Any] | None = None) -> None:
        self._edit = edit
        self._is_record = isinstance(encoding, dict) and encoding["type"] == "record"
        fields = encoding["fields"] if self._is_record else [{"name": "value", "type": encoding}]
        name = encoding["name"] if self._is_record else "one"
        names: dict[str, Any] = {}
        parsed: Any = fastavro.parse_schema({"type": "record", "name": name, "fields": fields}, names)
        one, self._empty_items = with_guards(parsed, names)
        guard = {"name": _GUARD_FIELD, "type": {"type": "fixed", "name": "guard", "size": len(_GUARD)}}
        items = {"type": "record", "name": "item", "fields": [*one["fields"], guard]}
        self._one = _as_parsed("one", one["fields"])
        self._many = _as_parsed("many", [{"name": "items", "type": {"type": "array", "items": items}}])

    def many(self, records: list[bytes]) -> list[Any]:
        """Return the values of records. Raises `BadBytes` if one is not of the schema, and what `edit` raises."""
        if self._empty_items.is_used:
            raise BadBytes("items without bytes are counted for each record")
        data = BytesIO()
        fastavro.schemaless_writer(data, "long", len(records))  # the number of an array's items
        data.write(b"".join((_GUARD.join(records), _GUARD, b"\0")))
        data.seek(0)
        found = _read(data, self._many)["items"]
        if {item[_GUARD_FIELD] for item in found} != {_GUARD}:
            raise BadBytes("the records are not those that were written")
        values = found if self._is_record else [item["value"] for item in found]
        return values if self._edit is None else list(map(self._edit, values))

    def one(self, record: bytes) -> Any:
        """Return the value of a record. Raises as `many` does, with the reason."""
        data = BytesIO(record)
        self._empty_items.found = 0
        found = _read(data, self._one)
        if data.tell() != len(record):
            raise BadBytes(f"{len(record) - data.tell()} bytes follow the record")
        value = found if self._is_record else found["value"]
        return value if self._edit is None else self._edit(value)


def _as_parsed(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a record's schema that fastavro reads as it is."""
    return {"type": "record", "name": name, "fields": fields, "__fastavro_parsed": True, "__named_schemas": {}}


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
