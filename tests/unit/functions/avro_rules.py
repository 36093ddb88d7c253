"""Avro's rules a second time, for tests: binary encoding and schema resolution of one value, over JSON schemas.

Written from the specification ("Binary encoding", "Schema Resolution", "Logical Types"), with no part of the package:
it walks both schemas and one value. A value of a union is a pair of branch and value, an enum's is its symbol. Named
types are inline. Where unions allow several branches it follows Java's Resolver, as from_avro does.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

Schema = Any
PROMOTED = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",),
    "bytes": ("string",),
}  # fmt: skip
MICROS = {
    "date": (86_400_000_000, 1),
    "timestamp-millis": (1000, 1), "timestamp-micros": (1, 1), "timestamp-nanos": (1, 1000),
    "local-timestamp-millis": (1000, 1), "local-timestamp-micros": (1, 1), "local-timestamp-nanos": (1, 1000),
}  # fmt: skip
STORED_IN = dict.fromkeys(MICROS, "long") | {"date": "int"}


class Bad(Exception):
    """The record is bad."""


def kind(schema: Schema) -> str:
    """Return the name of a schema's type."""
    return schema["type"] if isinstance(schema, dict) else schema


def logical(schema: Schema) -> Any:
    """Return the name of a valid logical type that Spark knows, (precision, scale) of a decimal, or None."""
    if not isinstance(schema, dict):
        return None
    name = schema.get("logicalType")
    if name == "decimal" and kind(schema) in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            return None
        if kind(schema) == "fixed" and 10**precision > 2 ** (8 * schema["size"] - 1):
            return None
        return precision, scale
    return name if isinstance(name, str) and STORED_IN.get(name) == kind(schema) else None


def encoded(schema: Schema, value: Any) -> bytes:
    """Return a value in Avro's binary encoding."""
    if isinstance(schema, list):
        return varint(value[0]) + encoded(schema[value[0]], value[1])
    name = kind(schema)
    if name == "array":
        return (varint(len(value)) if value else b"") + b"".join(encoded(schema["items"], v) for v in value) + b"\0"
    if name == "map":
        pairs = [encoded("string", key) + encoded(schema["values"], v) for key, v in value.items()]
        return (varint(len(pairs)) if pairs else b"") + b"".join(pairs) + b"\0"
    if name == "record":
        return b"".join(encoded(f["type"], value[f["name"]]) for f in schema["fields"])
    if name == "enum":
        return varint(schema["symbols"].index(value))
    stored = value.encode() if name == "string" else value
    if name in ("bytes", "string"):
        return varint(len(stored)) + stored
    plain = {
        "null": lambda _: b"", "boolean": lambda v: bytes([v]), "int": varint, "long": varint, "fixed": bytes,
        "float": lambda v: struct.pack("<f", v), "double": lambda v: struct.pack("<d", v),
    }  # fmt: skip
    return plain[name](value)


def varint(number: int) -> bytes:
    """Return a long in Avro's encoding."""
    rest, found = (number << 1) ^ (number >> 63), []
    while rest >= 0x80:
        found.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes([*found, rest])


def read(writer: Schema, reader: Schema, value: Any) -> Any:
    """Return a value as the reader sees it: timestamps in microseconds, dates in days. Raises `Bad`."""
    if isinstance(writer, list):
        return read(writer[value[0]], reader, value[1])
    if isinstance(reader, list):
        return _read_union(writer, reader, value)
    if not matches(writer, reader):
        raise Bad(f"{writer} as {reader}")
    name = kind(reader)
    if name == "array":
        return [read(writer["items"], reader["items"], item) for item in value]
    if name == "map":
        return {key: read(writer["values"], reader["values"], item) for key, item in value.items()}
    if name == "enum":
        found = value if value in reader["symbols"] else reader.get("default")
        if found is None:
            raise Bad("symbol")
        return found
    return _read_record(writer, reader, value) if name == "record" else _scalar(writer, reader, value)


def _read_record(writer: Schema, reader: Schema, value: Any) -> dict[str, Any]:
    left = {f["name"]: f["type"] for f in writer["fields"]}
    sources = {f["name"]: f["name"] for f in reader["fields"] if f["name"] in left}
    for f in reader["fields"]:
        free = [alias for alias in f.get("aliases", ()) if alias in left and alias not in sources.values()]
        if f["name"] not in sources and free:
            sources[f["name"]] = free[0]
    found = {}
    for f in reader["fields"]:
        if f["name"] in sources:
            source = sources[f["name"]]
            found[f["name"]] = read(left[source], f["type"], value[source])
        elif "default" in f:
            found[f["name"]] = read(f["type"], f["type"], default(f["type"], f["default"]))
        else:
            raise Bad("no default")
    return found


def _read_union(writer: Schema, reader: list[Schema], value: Any) -> Any:
    members = [branch for branch in reader if branch != "null"]
    if writer == "null":
        if "null" not in reader:
            raise Bad("null")
        return None
    if len(members) < 2:
        return read(writer, members[0] if members else "null", value)
    for pair in (("int", "long"), ("float", "double")):
        if sorted(map(kind, members)) == sorted(pair):
            return read(writer, pair[1], value)
    same = [m for m in members if kind(m) == kind(writer) and matches(writer, m)]
    exact = [m for m in same if kind(m) not in ("record", "enum", "fixed") or m["name"] == writer["name"]]
    member = next(iter([*exact, *same, *(m for m in members if matches(writer, m))]), None)
    if member is None:
        raise Bad("no branch")
    found = read(writer, member, value)
    return {f"member{i}": found if other is member else None for i, other in enumerate(members)}


def matches(writer: Schema, reader: Schema) -> bool:
    """Return whether two types match, without what they contain."""
    if kind(writer) != kind(reader):
        return kind(reader) in PROMOTED.get(kind(writer), ())
    if kind(writer) not in ("record", "enum", "fixed"):
        return True
    names = {name.split(".")[-1] for name in (reader["name"], *reader.get("aliases", ()))}
    return writer["name"].split(".")[-1] in names and writer.get("size") == reader.get("size")


def default(schema: Schema, value: Any) -> Any:
    """Return a default as a written value. Raises `Bad`."""
    if isinstance(schema, list):
        # "NaN" is a text first.
        for index, branch in sorted(
            enumerate(schema), key=lambda item: isinstance(value, str) and kind(item[1]) in ("float", "double")
        ):
            try:
                return index, default(branch, value)
            except Bad:
                continue
        raise Bad("default")
    name = kind(schema)
    if name == "array" and isinstance(value, list):
        return [default(schema["items"], item) for item in value]
    if name == "map" and isinstance(value, dict):
        return {key: default(schema["values"], item) for key, item in value.items()}
    if name == "record" and isinstance(value, dict):
        missing = {f["name"]: f["default"] for f in schema["fields"] if "default" in f}
        if not {f["name"] for f in schema["fields"]} <= {*missing, *value}:
            raise Bad("default")
        return {f["name"]: default(f["type"], (missing | value)[f["name"]]) for f in schema["fields"]}
    fits = {
        "null": value is None, "boolean": isinstance(value, bool), "string": isinstance(value, str),
        "int": type(value) is int and abs(value) < 2**31, "long": type(value) is int and abs(value) < 2**63,
        "float": type(value) in (int, float) or value in ("NaN", "Infinity", "-Infinity"),
        "bytes": isinstance(value, str) and all(ord(char) < 256 for char in value),
        "enum": isinstance(value, str) and value in (schema["symbols"] if name == "enum" else ()),
    }  # fmt: skip
    fits["double"] = fits["float"]
    fits["fixed"] = fits["bytes"] and len(value) == (schema["size"] if name == "fixed" else -1)
    if not fits.get(name):
        raise Bad("default")
    if name in ("bytes", "fixed"):
        return bytes(map(ord, value))
    return float(value) if name in ("float", "double") else value


def _scalar(writer: Schema, reader: Schema, value: Any) -> Any:
    name, own, other = kind(reader), logical(reader), logical(writer)
    if name in ("bytes", "fixed", "string"):
        stored = value.encode() if isinstance(value, str) else value
        if name == "string":
            try:
                return stored.decode()
            except UnicodeDecodeError:
                raise Bad("UTF-8") from None
        return stored if own is None else _decimal(own, other, stored)
    if own in MICROS and own != "date":
        times, per = MICROS[other if other in MICROS else own]
        units = value * times * (1000 if "nanos" in own else 1) // per
        if not -(2**63) <= units < 2**63:
            raise Bad("overflow")
        return units
    if name == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return float(value) if name == "double" else value


def _decimal(own: tuple[int, int], other: Any, stored: bytes) -> Decimal:
    if not stored:
        raise Bad("no digits")
    number = int.from_bytes(stored, "big", signed=True)
    scale = other[1] if isinstance(other, tuple) else own[1]
    scaled = number * 10 ** own[1]
    if scaled % 10**scale or abs(scaled // 10**scale) >= 10 ** own[0]:
        raise Bad("decimal")
    sign = "-" if number < 0 else ""
    return Decimal(f"{sign}{abs(scaled) // 10**scale}e-{own[1]}")
