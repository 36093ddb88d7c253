"""Change a schema that fastavro has parsed, so that bytes are refused that fastavro alone would misread. Pure.

- A union becomes a dict of its branches by number. fastavro indexes it, and a list accepts negative numbers.
- The name of a type becomes a copy of the type for each level, which ends at `MAX_DEPTH`. fastavro's recursion in C has
  no other end than the process's stack.
- Items of arrays that have no bytes are counted, up to `MAX_EMPTY_ITEMS`. Otherwise five bytes take any memory. So do
  none if 40 records each have two fields of the next one, and the last one is empty: such a type is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_groupsource.functions.avro_schema import UnsupportedSchema

MAX_DEPTH = 250
MAX_EMPTY_ITEMS = 1000
_TOO_DEEP = {"type": f"records are nested deeper than {MAX_DEPTH}"}  # fastavro has no such type: its error has the text


class BadBytes(ValueError):
    """The bytes are not a record of the schema."""


@dataclass(slots=True)
class ItemCount:
    """How many items without bytes were read."""

    found: int = 0


class _EmptyItem(dict[Any, Any]):
    """The type of items without bytes. fastavro reads its key `type` once for each item."""

    def __init__(self, schema: dict[Any, Any], count: ItemCount) -> None:
        super().__init__(schema)
        self._count = count

    def __getitem__(self, key: Any) -> Any:
        """Return a value, and count the item."""
        if key == "type":
            self._count.found += 1
            if self._count.found > MAX_EMPTY_ITEMS:
                raise BadBytes(f"more than {MAX_EMPTY_ITEMS} items of an array have no bytes")
        return super().__getitem__(key)


def with_guards(schema: dict[str, Any], names: dict[str, Any]) -> tuple[dict[str, Any], ItemCount]:
    """Return a parsed record's schema without names of types. `names` are the types that it names.

    Raises `UnsupportedSchema` for a type of too many values without bytes.
    """
    guards = _Guards(names)
    if any(guards.without_bytes(name)[1] > MAX_EMPTY_ITEMS for name in names):
        raise UnsupportedSchema(f"a record has more than {MAX_EMPTY_ITEMS} values without bytes")
    return guards.of(schema, 0), guards.count


class _Level(dict[Any, Any]):
    """The copy of a type for one level, which is made when fastavro reads the type there: it reads its key `type`.

    Guards against:
    1. A schema has 100 records that refer to each other.
    2. Copies of all of them for all levels take minutes, and gigabytes in each Python worker.
    """

    def __init__(self, fill: Callable[[], dict[Any, Any]]) -> None:
        super().__init__()
        self._fill: Callable[[], dict[Any, Any]] | None = fill

    def __missing__(self, key: Any) -> Any:
        """Make the copy, once."""
        if self._fill is None:
            raise KeyError(key)
        fill, self._fill = self._fill, None
        self.update(fill())
        return self[key]


class _Guards:
    """The copies of one schema's types."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.count = ItemCount()
        self._names = names
        self._copies: dict[tuple[str, int], dict[Any, Any]] = {}
        self._without_bytes: dict[str, tuple[bool, int]] = {}

    def without_bytes(self, schema: Any) -> tuple[bool, int]:
        """Return whether values of a type have no bytes, and how many values without bytes (nulls ...) are in each."""
        if isinstance(schema, str):
            if schema in self._names:
                return self.without_bytes(self._names[schema])
            return schema == "null", int(schema == "null")
        if isinstance(schema, list) or schema["type"] not in ("record", "fixed"):
            return False, 0
        if schema["type"] == "fixed":
            return schema["size"] == 0, int(schema["size"] == 0)
        name = schema["name"]
        if name not in self._without_bytes:
            self._without_bytes[name] = False, 0  # inside itself: such a value has no end
            found = [self.without_bytes(item["type"]) for item in schema["fields"]] or [(True, 1)]
            self._without_bytes[name] = all(is_empty for is_empty, _ in found), sum(count for _, count in found)
        return self._without_bytes[name]

    def of(self, schema: Any, level: int) -> Any:
        """Return the copy of a schema."""
        if isinstance(schema, list):
            return {"type": "union", **{number: self.of(branch, level) for number, branch in enumerate(schema)}}
        if isinstance(schema, str):
            return self._copy(schema, level + 1) if schema in self._names else schema
        match schema["type"]:
            case "array":
                return {"type": "array", "items": self._items(schema["items"], level)}
            case "map":
                return {"type": "map", "values": self.of(schema["values"], level)}
            case "record":
                return {**schema, "fields": [self._field(item, level) for item in schema["fields"]]}
        return schema

    def _field(self, item: dict[str, Any], level: int) -> dict[str, Any]:
        found = self.of(item["type"], level)
        return item if found is item["type"] else {**item, "type": found}

    def _copy(self, name: str, level: int) -> dict[Any, Any]:
        if level > MAX_DEPTH:
            return _TOO_DEEP
        if (name, level) not in self._copies:
            self._copies[name, level] = _Level(partial(self.of, self._names[name], level))
        return self._copies[name, level]

    def _items(self, schema: Any, level: int) -> Any:
        if not self.without_bytes(schema)[0]:
            return self.of(schema, level)
        found = self.of(self._names.get(schema, schema) if isinstance(schema, str) else schema, level)
        return _EmptyItem({"type": found} if isinstance(found, str) else found, self.count)
