"""Decide how records of a writer's schema become values of the reader's type: "Schema Resolution" of Avro. Pure.

The result is a tree of steps. They say nothing of Arrow or fastavro: `avro_encoding` derives the bytes' form from them,
`avro_columns` the columns, and `avro_text` the text of a record inside itself.

Logical types have no part in it: the number is the same, and the reader's logical type says what it means. Where both
schemas have a unit or a scale, the writer's says what the number means.

A union follows Java's `Resolver`, as from_avro does: a branch of the same type wins over one to be promoted to. The
specification takes the first branch that fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_groupsource.functions.avro_defaults import WrongDefault, stored_default
from spark_groupsource.functions.avro_schema import (
    AvroType,
    DictType,
    EnumType,
    FixedType,
    ListType,
    NamedType,
    PrimitiveType,
    RecordField,
    RecordType,
    UnionType,
    UnsupportedSchema,
    is_null,
    short_name,
)
from spark_groupsource.functions.avro_types import sole_type

# Steps of one pair of schemas: some for each field of the largest reader's type (`avro_types.MAX_FIELDS`).
MAX_STEPS = 100_000
_PROMOTIONS = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
    "string": ("bytes",), "bytes": ("string",),
}  # fmt: skip


@dataclass(slots=True, eq=False)
class ScalarStep:
    """A primitive value or a fixed."""

    writer: PrimitiveType | FixedType
    reader: PrimitiveType | FixedType


@dataclass(slots=True, eq=False)
class EnumStep:
    """An enum: the reader's symbol for each of the writer's. None: the reader has none, and no default."""

    writer: EnumType
    symbols: tuple[str | None, ...]


@dataclass(slots=True, eq=False)
class WrittenField:
    """A field of the writer's record: what the reader calls it. Without a step the reader does not have it."""

    writer: RecordField
    name: str = ""
    step: ResolutionStep | None = None


@dataclass(slots=True, eq=False)
class FieldDefault:
    """A field that only the reader has: its default, in the form that `step` reads."""

    step: ResolutionStep
    value: Any


@dataclass(slots=True, eq=False)
class RecordStep:
    """A record: the writer's fields in the order of the bytes, the names of the reader's fields, and defaults."""

    written: list[WrittenField] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    defaults: dict[str, FieldDefault] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class ListStep:
    """An array."""

    items: ResolutionStep


@dataclass(slots=True, eq=False)
class DictStep:
    """A map."""

    values: ResolutionStep


@dataclass(slots=True, eq=False)
class BranchesStep:
    """A union of the writer: a step for each branch, in its order."""

    branches: list[ResolutionStep]

    @property
    def numbered(self) -> dict[str, ResolutionStep] | None:
        """The steps of branches that are not null, by `branch0` and so on; None if there is only one of them."""
        found: dict[str, ResolutionStep] = {
            f"branch{i}": step for i, step in enumerate(self.branches) if not isinstance(step, NullStep)
        }
        return found if len(found) > 1 else None


@dataclass(slots=True, eq=False)
class MemberStep:
    """A value that becomes a member of the reader's union of several types."""

    index: int  # among the types that are not null
    step: ResolutionStep


@dataclass(slots=True, eq=False)
class NullStep:
    """A null."""


@dataclass(slots=True, eq=False)
class MismatchStep:
    """A value that the reader's type cannot hold: a record that has one is bad."""

    writer: AvroType
    reason: str


@dataclass(slots=True, eq=False)
class TextStep:
    """A record of the reader inside itself, which becomes text. Its step has no further `TextStep`."""

    step: ResolutionStep


ResolutionStep: TypeAlias = (
    ScalarStep | EnumStep | RecordStep | ListStep | DictStep | BranchesStep | MemberStep | NullStep | MismatchStep
    | TextStep
)  # fmt: skip


def resolution_of(writer: AvroType, reader: AvroType) -> ResolutionStep:
    """Return how values of the writer's type become values of the reader's.

    Raises `UnsupportedSchema` if that takes too many steps.

    Guards against:
    1. The reader has 40 records inside each other.
    2. The writer has a union of two records in the place of each, whose names differ in the namespace only.
    3. Both fit, at each level: the steps would take a Python worker's time and memory for ever.
    """
    return _Resolution().step(writer, reader, frozenset())


class _Resolution:
    """The resolution of one pair of schemas."""

    def __init__(self) -> None:
        # Inside a text, a pair of records has one step, which may contain itself.
        self._in_text: dict[tuple[int, int], RecordStep] = {}
        self._left = iter(range(MAX_STEPS))

    def step(self, writer: AvroType, reader: AvroType, inside: frozenset[RecordType] | None) -> ResolutionStep:
        """Return the step of two types. `inside`: the reader's records around it; None in a text."""
        if next(self._left, None) is None:
            raise UnsupportedSchema(f"to resolve it to the reader's schema takes more than {MAX_STEPS} steps")
        if isinstance(writer, UnionType):
            return BranchesStep([self.step(branch, reader, inside) for branch in writer.branches])
        if isinstance(reader, UnionType):
            return self._into_union(writer, reader, inside)
        if is_null(writer) and is_null(reader):
            return NullStep()
        match writer, reader:
            case (PrimitiveType(), PrimitiveType()) if _reads(writer.kind, reader.kind):
                return ScalarStep(writer, reader)
            case (FixedType(), FixedType()) if _names_match(writer, reader) and writer.size == reader.size:
                return ScalarStep(writer, reader)
            case (EnumType(), EnumType()) if _names_match(writer, reader):
                symbols = (item if item in reader.symbols else reader.default for item in writer.symbols)
                return EnumStep(writer, tuple(symbols))
            case (ListType(), ListType()):
                return ListStep(self.step(writer.items, reader.items, inside))
            case (DictType(), DictType()):
                return DictStep(self.step(writer.values, reader.values, inside))
            case (RecordType(), RecordType()) if _names_match(writer, reader):
                return self._record(writer, reader, inside)
        return MismatchStep(writer, _cannot_hold(writer, reader))

    def _into_union(self, writer: AvroType, reader: UnionType, inside: frozenset[RecordType] | None) -> ResolutionStep:
        if is_null(writer) and any(is_null(branch) for branch in reader.branches):
            return NullStep()
        sole = sole_type(reader)
        if sole is not None:
            return self.step(writer, sole, inside)
        found = [
            (index, self.step(writer, reader.members[index], inside)) for index in _candidates(writer, reader.members)
        ]
        fitting = next((MemberStep(index, step) for index, step in found if not isinstance(step, MismatchStep)), None)
        if fitting is not None or not found:
            return fitting or MismatchStep(writer, _cannot_hold(writer, reader))
        return found[0][1]

    def _record(self, writer: RecordType, reader: RecordType, inside: frozenset[RecordType] | None) -> ResolutionStep:
        if inside is not None:
            if reader in inside:
                return TextStep(self.step(writer, reader, None))
            return self._fields(RecordStep(), writer, reader, inside | {reader})
        pair = (id(writer), id(reader))
        if pair not in self._in_text:
            self._in_text[pair] = RecordStep()
            self._fields(self._in_text[pair], writer, reader, None)
        return self._in_text[pair]

    def _fields(
        self, found: RecordStep, writer: RecordType, reader: RecordType, inside: frozenset[RecordType] | None
    ) -> RecordStep | MismatchStep:
        """Fill a record's step, or return why there is none. In a text, which may refer to it already, it is kept."""
        sources = _sources(writer, reader)
        for item in writer.fields:
            target = next((other for other in reader.fields if sources.get(other.name) is item), None)
            if target is None:
                found.written.append(WrittenField(item))
                continue
            step = self.step(item.type, target.type, inside)
            if isinstance(step, MismatchStep) and inside is not None:
                return MismatchStep(writer, f"field '{target.name}': {step.reason}")
            found.written.append(WrittenField(item, target.name, step))
        for target in reader.fields:
            if target.name in sources:
                continue
            default = self._default(target, inside)
            if isinstance(default.step, MismatchStep) and inside is not None:
                return MismatchStep(writer, default.step.reason)
            found.defaults[target.name] = default
        found.names.extend(item.name for item in reader.fields)
        return found

    def _default(self, item: RecordField, inside: frozenset[RecordType] | None) -> FieldDefault:
        try:
            return FieldDefault(self.step(item.type, item.type, inside), stored_default(item))
        except (WrongDefault, RecursionError) as error:
            reason = f"field '{item.name}' was not written, and its default cannot be used: {error}"
            return FieldDefault(MismatchStep(item.type, reason), None)


def described(kind: AvroType) -> str:
    """Return a type's name, for errors."""
    match kind:
        case PrimitiveType():
            return kind.kind
        case UnionType():
            return f"a union of {', '.join(map(described, kind.branches))}"
        case ListType():
            return "array"
        case DictType():
            return "map"
        case FixedType():
            return f"fixed '{kind.name}' of {kind.size} bytes"
        case EnumType():
            return f"enum '{kind.name}'"
    return f"record '{kind.name}'"


def _cannot_hold(writer: AvroType, reader: AvroType) -> str:
    return f"{described(writer)} was written, which {described(reader)} cannot hold"


def _reads(writer: str, reader: str) -> bool:
    return writer == reader or reader in _PROMOTIONS.get(writer, ())


def _names_match(writer: NamedType, reader: NamedType) -> bool:
    """Return whether names match without their namespaces, as the specification has it. An alias is a name, too."""
    return short_name(writer.name) in {short_name(name) for name in (reader.name, *reader.aliases)}


def _sources(writer: RecordType, reader: RecordType) -> dict[str, RecordField]:
    """Return which field of the writer each field of the reader is read from: by its name, else by an alias."""
    written = {item.name: item for item in writer.fields}
    found = {item.name: written.pop(item.name) for item in reader.fields if item.name in written}
    for item in reader.fields:
        alias = next((alias for alias in item.aliases if alias in written), None)
        if item.name not in found and alias is not None:
            found[item.name] = written.pop(alias)
    return found


def _candidates(writer: AvroType, members: list[AvroType]) -> list[int]:
    """Return the members of a union that a type may be read as, the best first."""

    def rank(member: AvroType) -> int | None:
        match writer, member:
            case (PrimitiveType(), PrimitiveType()):
                return (0 if writer.kind == member.kind else 3) if _reads(writer.kind, member.kind) else None
            case (NamedType(), NamedType()) if type(writer) is type(member):
                if writer.name in (member.name, *member.aliases):
                    return 0
                return 1 if _names_match(writer, member) else None
        return 0 if type(writer) is type(member) else None

    ranks = {index: rank(member) for index, member in enumerate(members)}
    return sorted((index for index in ranks if ranks[index] is not None), key=lambda index: (ranks[index] or 0, index))
