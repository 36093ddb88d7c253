"""Derive from a step how its bytes are read: a schema for fastavro, which then resolves and interprets nothing. Pure.

It describes the writer's bytes and nothing else: no logical types, no defaults, no aliases, the names of the reader's
fields. Some types are read as others of the same bytes:

- A record adds no bytes. So each branch of a union of several types is a record of one field, named after the branch:
  the value then says which branch it is, also for int and long, which are the same in Python.
- An enum is an int, so that a number beyond its symbols is found.
- Bytes and strings are the same, so that a promotion needs no work, and a value that nobody reads is not decoded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from spark_groupsource.functions.avro_resolution import (
    BranchesStep,
    DictStep,
    EnumStep,
    ListStep,
    MemberStep,
    MismatchStep,
    NullStep,
    ResolutionStep,
    ScalarStep,
    TextStep,
)
from spark_groupsource.functions.avro_schema import (
    AvroType,
    DictType,
    EnumType,
    FixedType,
    ListType,
    PrimitiveType,
    UnionType,
)

Encoding: TypeAlias = Any  # a schema for fastavro


def encoding_of(step: ResolutionStep) -> Encoding:
    """Return the schema that reads a step's values."""
    return _Encodings().of(step)


def read_kind(step: ScalarStep) -> str:
    """Return the kind of primitive that a scalar is read as; "fixed" for a fixed."""
    if isinstance(step.writer, FixedType) or isinstance(step.reader, FixedType):
        return "fixed"
    return step.reader.kind if step.writer.kind in ("bytes", "string") else step.writer.kind


class _Encodings:
    """The named types of one schema for fastavro. Names are numbers: what the writer calls a type is of no use here."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}

    def of(self, step: ResolutionStep) -> Encoding:
        """Return the schema of a step's bytes."""
        match step:
            case ScalarStep():
                return self._fixed(step.writer.size) if isinstance(step.writer, FixedType) else read_kind(step)
            case EnumStep():
                return "int"
            case NullStep():
                return "null"
            case ListStep():
                return {"type": "array", "items": self.of(step.items)}
            case DictStep():
                return {"type": "map", "values": self.of(step.values)}
            case MemberStep() | TextStep():
                return self.of(step.step)
            case MismatchStep():
                return self._record([("value", self._unread(step.writer))])
            case BranchesStep():
                return self._branches(step)
        if step in self._names:
            return self._names[step]
        found = self._record([], step)
        # The reader's names are not empty, and Avro's begin with no digit.
        found["fields"] = [
            {
                "name": item.name or f"{number}",
                "type": self.of(item.step) if item.step else self._unread(item.writer.type),
            }
            for number, item in enumerate(step.written)
        ]
        return found

    def _branches(self, step: BranchesStep) -> Encoding:
        numbered = step.numbered
        if numbered is None:
            return [self.of(branch) for branch in step.branches]
        return [
            self._record([(f"branch{number}", self.of(branch))]) if f"branch{number}" in numbered else "null"
            for number, branch in enumerate(step.branches)
        ]

    def _unread(self, kind: AvroType) -> Encoding:
        """Return the schema of bytes that nobody reads."""
        match kind:
            case PrimitiveType():
                return "bytes" if kind.kind == "string" else kind.kind
            case EnumType():
                return "int"
            case FixedType():
                return self._fixed(kind.size)
            case ListType():
                return {"type": "array", "items": self._unread(kind.items)}
            case DictType():
                pair = self._record([("key", "bytes"), ("value", self._unread(kind.values))])
                return {"type": "array", "items": pair}
            case UnionType():
                return [self._unread(branch) for branch in kind.branches]
        if kind in self._names:
            return self._names[kind]
        found = self._record([], kind)
        found["fields"] = _fields([(f"{n}", self._unread(item.type)) for n, item in enumerate(kind.fields)])
        return found

    def _record(self, fields: list[tuple[str, Encoding]], key: object = None) -> dict[str, Any]:
        return {"type": "record", "name": self._name(key), "fields": _fields(fields)}

    def _fixed(self, size: int) -> Encoding:
        key = ("fixed", size)
        return self._names.get(key) or {"type": "fixed", "name": self._name(key), "size": size}

    def _name(self, key: object = None) -> str:
        """Return a new name, and keep it under a key for further uses."""
        name = f"t{len(self._names)}"
        self._names[key if key is not None else name] = name
        return name


def _fields(fields: list[tuple[str, Encoding]]) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for name, kind in fields]
