"""Pairs of schemas for tests, as producers and time make them: a writer's, a reader's that grew from it, and values.

Drawn from a seed, because Hypothesis takes a hundred times as long for schemas of this shape.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from . import avro_rules
from .avro_rules import Schema

LOGICAL = {
    "int": ["date", "time-millis", 7],
    "long": [
        "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros", "timestamp-nanos",
        "time-micros", "date",
    ],
    "string": ["uuid"], "double": ["timestamp-millis"],
}  # fmt: skip
PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]
WRONG_DEFAULTS = [None, 5, "x", "\u0100", [], {}, "NaN", True]


class SchemaHistory:
    """Draws a writer's schema, a reader's schema and values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0
        self.writer = self.record(3)
        self.reader = self.evolved(self.writer)
        self.values = [self.value(self.writer) for _ in range(self._random.randint(1, 4))]

    def one_in(self, count: int) -> bool:
        """Return true once in so many calls."""
        return self._random.randrange(count) == 0

    def name(self) -> str:
        """Return a new name."""
        self._names += 1
        return f"T{self._names}"

    def schema(self, depth: int) -> Schema:
        """Return any type."""
        kind = self._random.choice(["scalar", "scalar", "record", "union", "array", "map"]) if depth else "scalar"
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1)}
        return {"scalar": lambda _: self.scalar(), "record": self.record, "union": self.union}[kind](depth)

    def scalar(self) -> Schema:
        """Return a type without parts."""
        kind = self._random.choice([*PRIMITIVES, "long", "bytes", "fixed", "enum"])
        if kind == "enum":
            return {"type": "enum", "name": self.name(), "symbols": self._random.choice([["A"], ["A", "B", "C"]])}
        size = {"name": self.name(), "size": self._random.randint(0, 5)} if kind == "fixed" else {}
        return self.relabelled({"type": kind} | size)

    def relabelled(self, stored: Schema) -> Schema:
        """Return a type with another logical type, valid or not, or with none."""
        plain = {key: item for key, item in stored.items() if key not in ("logicalType", "precision", "scale")}
        if stored["type"] in ("bytes", "fixed") and self.one_in(2):
            precision, scale = self._random.choice([1, 4, 9, 18, 38, "9"]), self._random.choice([0, 0, 2, 4, -1])
            return plain | {"logicalType": "decimal", "precision": precision, "scale": scale}
        name = self._random.choice([None, *LOGICAL.get(stored["type"], [])])
        return plain if name is None else plain | {"logicalType": name}

    def record(self, depth: int) -> Schema:
        """Return a record."""
        fields = [{"name": f"f{n}", "type": self.schema(depth - 1)} for n in range(self._random.randint(0, 3))]
        space = {"namespace": "old"} if self.one_in(2) else {}
        return {"type": "record", "name": self.name(), "fields": fields} | space

    def union(self, depth: int) -> Schema:
        """Return a union of types that differ, with or without null."""
        drawn = [self.schema(depth - 1) for _ in range(self._random.randint(0, 3))]
        kinds = {item.get("name", item["type"]): item for item in drawn if not isinstance(item, list)}
        found: list[Schema] = list(kinds.values())
        if not found or self.one_in(2):
            found.insert(self._random.randint(0, len(found)), "null")
        return found

    def evolved(self, schema: Schema) -> Schema:
        """Return a later version of a schema."""
        if isinstance(schema, list):
            found = [item if item == "null" else self.evolved(item) for item in schema]
            found = [item for item in found if not isinstance(item, list)]
            if "null" not in found and (not found or self.one_in(2)):
                found.append("null")
            self._random.shuffle(found)
            return found
        if self.one_in(10):
            inner = self.evolved(schema)
            return inner if isinstance(inner, list) else [inner, "null"]
        kind = schema["type"]
        if kind == "array":
            return {"type": kind, "items": self.evolved(schema["items"])}
        if kind == "map":
            return {"type": kind, "values": self.evolved(schema["values"])}
        if kind == "record":
            return self.evolved_record(schema)
        if kind == "enum":
            changes = [{}, {"symbols": ["B", "A"]}, {"symbols": ["Z", "B"], "default": "Z"}, {"symbols": ["B"]}]
            return schema | self._random.choice(changes)
        promoted = avro_rules.PROMOTED.get(kind)
        found = {"type": self._random.choice(promoted)} if promoted and self.one_in(4) else schema
        return self.relabelled(found) if self.one_in(2) else found

    def evolved_record(self, schema: Schema) -> Schema:
        """Return a later version of a record: fields are added, removed, moved and renamed."""
        fields = []
        for item in schema["fields"]:
            change = self._random.choice(["kept"] * 6 + ["removed", "renamed"])
            if change != "removed":
                kept = {"name": item["name"], "type": self.evolved(item["type"])}
                fields.append(
                    kept if change == "kept" else kept | {"name": f"{item['name']}x", "aliases": [item["name"]]}
                )
        if self.one_in(2):
            kind = self.schema(2)
            wrong = {} if self.one_in(2) else {"default": self._random.choice(WRONG_DEFAULTS)}
            fields.append(
                {"name": "added", "type": kind} | (wrong if self.one_in(10) else {"default": self.json(kind)})
            )
        self._random.shuffle(fields)
        renamed = {"name": self.name(), "aliases": [schema["name"]]} if self.one_in(5) else {}
        return {"type": "record", "name": schema["name"], "fields": fields, "namespace": "new"} | renamed

    def json(self, kind: Schema) -> Any:
        """Return a valid default."""
        if isinstance(kind, list):
            return self.json(self._random.choice(kind))
        name = avro_rules.kind(kind)
        if name == "array":
            return [self.json(kind["items"]) for _ in range(self._random.randint(0, 2))]
        if name == "map":
            return {key: self.json(kind["values"]) for key in "ab"[: self._random.randint(0, 2)]}
        if name == "record":
            return {item["name"]: self.json(item["type"]) for item in kind["fields"]}
        if name in ("float", "double"):
            return self._random.choice([0, 1.5, -3, "NaN", "Infinity", "-Infinity"])
        found = self.value(kind)
        return found.decode("latin-1") if isinstance(found, bytes) else found

    def value(self, kind: Schema) -> Any:
        """Return a value as `avro_rules` takes it."""
        if isinstance(kind, list):
            index = self._random.randrange(len(kind))
            return index, self.value(kind[index])
        name = avro_rules.kind(kind)
        if name == "array":
            return [self.value(kind["items"]) for _ in range(self._random.randint(0, 3))]
        if name == "map":
            return {key: self.value(kind["values"]) for key in ("", "k", "\u20ac")[: self._random.randint(0, 3)]}
        if name == "record":
            return {item["name"]: self.value(item["type"]) for item in kind["fields"]}
        if name == "enum":
            return self._random.choice(kind["symbols"])
        if name == "fixed":
            return self._random.randbytes(kind["size"])
        bits = self._random.choice([8, 31] if name == "int" else [8, 31, 40, 63])
        single = struct.unpack("<f", self._random.randbytes(4))[0]
        return {
            "null": None, "boolean": self.one_in(2), "int": self._random.randrange(-(2**bits), 2**bits),
            "long": self._random.randrange(-(2**bits), 2**bits), "float": self._random.choice([0.5, single, single]),
            "double": self._random.choice([1e300, -0.0, single]),
            "bytes": self._random.randbytes(self._random.choice([0, 1, 2, 3, 8, 17])),
            "string": self._random.choice(["", "text", "\u20ac\U0001f600", "0"]),
        }[name]  # fmt: skip
