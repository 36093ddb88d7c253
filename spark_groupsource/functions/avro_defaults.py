"""Translate a field's default from JSON to the stored value ("Records" in the Avro specification). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from spark_groupsource.functions.avro_schema import (
    NO_DEFAULT,
    AvroType,
    DictType,
    EnumType,
    FixedType,
    ListType,
    PrimitiveType,
    RecordField,
    RecordType,
    UnionType,
    is_null,
)

# JSON has no such numbers. Java writes them as texts.
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf, "INF": math.inf, "-INF": -math.inf}


class WrongDefault(ValueError):
    """There is no default, or it is not of the field's type."""


def stored_default(item: RecordField) -> Any:
    """Return a field's default in the form in which `avro_encoding` reads values of its type. Raises `WrongDefault`.

    That is: bytes as bytes, an enum as its symbol's number, a member of a union of several types under its branch.
    """
    if item.default is NO_DEFAULT:
        raise WrongDefault("it has none")
    return _stored(item.type, item.default)


def _stored(kind: AvroType, value: Any) -> Any:
    match kind:
        case PrimitiveType():
            return _primitive(kind.kind, value)
        case FixedType():
            found = _bytes(value)
            if len(found) != kind.size:
                raise WrongDefault(f"{len(found)} bytes for a fixed of {kind.size}")
            return found
        case EnumType() if value in kind.symbols:
            return kind.symbols.index(value)
        case ListType() if isinstance(value, list):
            return [_stored(kind.items, item) for item in value]
        case DictType() if isinstance(value, dict):
            return {key: _stored(kind.values, item) for key, item in value.items()}
        case RecordType() if isinstance(value, dict):
            return {item.name: _field_of(item, value) for item in kind.fields}
        case UnionType():
            return _member(kind, value)
    raise WrongDefault(f"{value!r:.100} for {type(kind).__name__.removesuffix('Type').lower()}")


def _field_of(item: RecordField, value: dict[str, Any]) -> Any:
    return _stored(item.type, value[item.name]) if item.name in value else stored_default(item)


def _member(kind: UnionType, value: Any) -> Any:
    """Return a union's value: that of the first branch that the default is of. Older Avro wants the first branch.

    A text is a number only if no branch holds texts.
    """
    is_text = isinstance(value, str)
    for number, branch in sorted(enumerate(kind.branches), key=lambda item: is_text and _is_float(item[1])):
        try:
            found = _stored(branch, value)
        except WrongDefault:
            continue
        return {f"branch{number}": found} if len(kind.members) > 1 and not is_null(branch) else found
    raise WrongDefault(f"{value!r:.100} for each type of a union")


def _is_float(kind: AvroType) -> bool:
    return isinstance(kind, PrimitiveType) and kind.kind in ("float", "double")


def _primitive(kind: str, value: Any) -> Any:
    found = _PRIMITIVE[kind](value)
    if found is None and kind != "null":
        raise WrongDefault(f"{value!r:.100} for {kind}")
    return found


def _integer(bits: int) -> Callable[[Any], int | None]:
    def integer(value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            return None
        return int(value) if -(2**bits) <= value < 2**bits else None

    return integer


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return _FLOATS.get(value)
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _null(value: Any) -> None:
    if value is not None:
        raise WrongDefault(f"{value!r:.100} for null")


def _bytes(value: Any) -> bytes:
    """Return bytes from text: a byte is the character of the same number."""
    try:
        return str.encode(value, "latin-1")
    except (TypeError, UnicodeEncodeError):
        raise WrongDefault(f"{value!r:.100} for bytes") from None


_PRIMITIVE: dict[str, Callable[[Any], Any]] = {
    "null": _null,
    "boolean": lambda value: value if isinstance(value, bool) else None,
    "int": _integer(31), "long": _integer(63), "float": _number, "double": _number, "bytes": _bytes,
    "string": lambda value: value if isinstance(value, str) else None,
}  # fmt: skip
