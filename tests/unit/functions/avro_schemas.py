"""Pairs of schemas for tests, as producers and time make them: a writer's, a reader's that grew out of it, and values."""

from __future__ import annotations

import copy
import itertools
from typing import Any

from hypothesis import strategies as st

from . import avro_rules
from .avro_rules import Schema

LOGICAL = {
    "int": ["date", "time-millis", 7],
    "long": ["timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros",
             "timestamp-nanos", "time-micros", "date"],
    "string": ["uuid"], "double": ["timestamp-millis"],
}  # fmt: skip
PRIMITIVES = ["boolean", "int", "long", "float", "double", "bytes", "string"]
_numbers = itertools.count()


@st.composite
def decimals(draw: st.DrawFn, stored: dict[str, Any]) -> Schema:
    """Return bytes or fixed as a decimal, which is not always valid."""
    numbers = {
        "precision": draw(st.sampled_from([1, 4, 9, 18, 38, "9"])),
        "scale": draw(st.sampled_from([0, 2, 4, -1])),
    }
    return stored | {"logicalType": "decimal"} | numbers


@st.composite
def scalars(draw: st.DrawFn) -> Schema:
    """Return a type without parts."""
    name = draw(st.sampled_from([*PRIMITIVES, "long", "bytes", "fixed", "enum"]))
    if name == "enum":
        return {
            "type": "enum",
            "name": f"E{next(_numbers)}",
            "symbols": draw(st.sampled_from([["A"], ["A", "B", "C"]])),
        }
    stored = {"type": name} | (
        {"name": f"F{next(_numbers)}", "size": draw(st.integers(0, 5))} if name == "fixed" else {}
    )
    return draw(relabelled(stored))


@st.composite
def relabelled(draw: st.DrawFn, stored: Schema) -> Schema:
    """Return a type with another logical type, or none."""
    plain = {key: item for key, item in stored.items() if key not in ("logicalType", "precision", "scale")}
    name = draw(st.sampled_from([None, *LOGICAL.get(stored["type"], [])]))
    if stored["type"] in ("bytes", "fixed") and draw(st.booleans()):
        return draw(decimals(plain))
    return plain if name is None else plain | {"logicalType": name}


@st.composite
def records(draw: st.DrawFn, parts: st.SearchStrategy[Schema]) -> Schema:
    """Return a record."""
    fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(draw(st.lists(parts, max_size=3)))]
    space = draw(st.sampled_from([{}, {"namespace": "old"}]))
    return {"type": "record", "name": f"R{next(_numbers)}", "fields": fields} | space


@st.composite
def unions(draw: st.DrawFn, parts: st.SearchStrategy[Schema]) -> Schema:
    """Return a union of types that differ, with or without null."""
    drawn = draw(st.lists(parts.filter(lambda kind: not isinstance(kind, list)), max_size=3))
    named = ("record", "enum", "fixed")
    kinds = {kind["name"] if kind["type"] in named else kind["type"]: kind for kind in drawn}
    found = list(kinds.values())
    for index in [draw(st.integers(0, len(found)))] if not found or draw(st.booleans()) else []:
        found.insert(index, "null")
    return found


SCHEMAS: st.SearchStrategy[Schema] = st.recursive(
    scalars(),
    lambda parts: st.one_of(
        records(parts),
        unions(parts),
        parts.map(lambda kind: {"type": "array", "items": kind}),
        parts.map(lambda kind: {"type": "map", "values": kind}),
    ),
    max_leaves=6,
)


@st.composite
def evolved(draw: st.DrawFn, schema: Schema) -> Schema:
    """Return a later version of a schema."""
    if isinstance(schema, list):
        found = [item if item == "null" else draw(evolved(item)) for item in schema]
        found = [item for item in found if not isinstance(item, list)]
        if "null" not in found and (not found or draw(st.booleans())):
            found.insert(0, "null")
        return draw(st.permutations(found))
    if draw(st.integers(0, 9)) == 0:
        return [draw(evolved(schema)), "null"] if schema["type"] != "null" else schema
    name = schema["type"]
    if name == "array":
        return {"type": name, "items": draw(evolved(schema["items"]))}
    if name == "map":
        return {"type": name, "values": draw(evolved(schema["values"]))}
    if name == "record":
        return draw(evolved_record(schema))
    if name == "enum":
        changes = [{}, {"symbols": ["B", "A"]}, {"symbols": ["Z", "B"], "default": "Z"}, {"symbols": ["B"]}]
        return schema | draw(st.sampled_from(changes))
    found = schema
    if draw(st.integers(0, 3)) == 0 and name in avro_rules.PROMOTED:
        found = {"type": draw(st.sampled_from(avro_rules.PROMOTED[name]))}
    return draw(relabelled(found)) if draw(st.booleans()) else found


@st.composite
def evolved_record(draw: st.DrawFn, schema: Schema) -> Schema:
    """Return a later version of a record: fields are added, removed, moved and renamed."""
    fields = []
    for item in schema["fields"]:
        change = draw(st.sampled_from(["kept", "kept", "kept", "removed", "renamed"]))
        if change != "removed":
            kept = {"name": item["name"], "type": draw(evolved(item["type"]))}
            fields.append(kept if change == "kept" else kept | {"name": f"{item['name']}x", "aliases": [item["name"]]})
    if draw(st.booleans()):
        kind = draw(SCHEMAS)
        fields.append({"name": "added", "type": kind} | draw(defaults(kind)))
    renamed = {"name": f"{schema['name']}x", "aliases": [schema["name"]]} if draw(st.integers(0, 4)) == 0 else {}
    return {
        "type": "record",
        "name": schema["name"],
        "fields": draw(st.permutations(fields)),
        "namespace": "new",
    } | renamed


@st.composite
def defaults(draw: st.DrawFn, kind: Schema) -> dict[str, Any]:
    """Return a default for a field, now and then none or a wrong one."""
    choice = draw(st.integers(0, 9))
    if choice == 0:
        return {}
    return {
        "default": draw(st.sampled_from([None, 5, "x", "\u0100", [], {}, "NaN"]))
        if choice == 1
        else draw(json_of(kind))
    }


@st.composite
def json_of(draw: st.DrawFn, kind: Schema) -> Any:
    """Return a valid default."""
    if isinstance(kind, list):
        return draw(json_of(draw(st.sampled_from(kind))))
    name = avro_rules.kind(kind)
    if name == "array":
        return draw(st.lists(json_of(kind["items"]), max_size=2))
    if name == "map":
        return draw(st.dictionaries(st.text(max_size=2), json_of(kind["values"]), max_size=2))
    if name == "record":
        return {item["name"]: draw(json_of(item["type"])) for item in kind["fields"]}
    if name == "enum":
        return draw(st.sampled_from(kind["symbols"]))
    if name in ("float", "double"):
        return draw(st.sampled_from([0, 1.5, -3, "NaN", "Infinity", "-Infinity"]))
    found = draw(values(kind))
    return found.decode("latin-1") if isinstance(found, bytes) else found


@st.composite
def values(draw: st.DrawFn, kind: Schema) -> Any:
    """Return a value as `avro_rules` takes it."""
    if isinstance(kind, list):
        index = draw(st.integers(0, len(kind) - 1))
        return index, draw(values(kind[index]))
    name = avro_rules.kind(kind)
    if name == "array":
        return draw(st.lists(values(kind["items"]), max_size=3))
    if name == "map":
        return draw(st.dictionaries(st.text(max_size=3), values(kind["values"]), max_size=3))
    if name == "record":
        return {item["name"]: draw(values(item["type"])) for item in kind["fields"]}
    if name == "enum":
        return draw(st.sampled_from(kind["symbols"]))
    if name == "fixed":
        return draw(st.binary(min_size=kind["size"], max_size=kind["size"]))
    return draw(
        {
            "null": st.none(), "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1),
            "long": st.integers(-(2**40), 2**40) | st.integers(-(2**63), 2**63 - 1), "float": st.floats(width=32),
            "double": st.floats(), "bytes": st.binary(max_size=3) | st.binary(max_size=18), "string": st.text(max_size=5),
        }[name]
    )  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> tuple[Schema, Schema, list[Any]]:
    """Return a writer's schema, a reader's schema, and written values."""
    writer = draw(records(SCHEMAS) | SCHEMAS)
    reader = draw(evolved(writer))
    return writer, copy.deepcopy(reader), draw(st.lists(values(writer), min_size=1, max_size=4))
