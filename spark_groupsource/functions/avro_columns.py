"""Build Arrow arrays of the reader's type from values as they were read: steps on whole arrays, not on values.

A step's array is built as it was written (`ReadColumn.read`) and then converted. Conversions raise for one value that
does not fit, so that the caller can find its record. They take arrays without an offset, which `pyarrow.array` builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource.functions.avro_encoding import read_kind
from spark_groupsource.functions.avro_numbers import BadValue, as_unscaled, factor_of
from spark_groupsource.functions.avro_resolution import (
    BranchesStep,
    DictStep,
    EnumStep,
    FieldDefault,
    ListStep,
    MemberStep,
    MismatchStep,
    NullStep,
    RecordStep,
    ResolutionStep,
    ScalarStep,
    TextStep,
)
from spark_groupsource.functions.avro_text import symbol_of, text_edit
from spark_groupsource.functions.avro_types import STORED

Conversion: TypeAlias = Callable[[pa.Array], pa.Array]
# What a value raises that the result's type cannot hold.
UNFIT = (BadValue, pa.ArrowException, OverflowError)
_DECIMAL_BYTES = 16


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """The Arrow type that a step's values are read as, and how such an array becomes one of the result's type."""

    read: pa.DataType
    convert: Conversion | None = None  # None: it is of that type

    def converted(self, array: pa.Array) -> pa.Array:
        """Return an array of the result's type."""
        return self.convert(array) if self.convert else array

    def array(self, values: list[Any]) -> pa.Array:
        """Return an array of the result's type from values as they were read, with texts.

        Raises one of `UNFIT` if one value does not fit.
        """
        return self.converted(pa.array(values, self.read))


def column_of(step: ResolutionStep, result: pa.DataType) -> ReadColumn:
    """Return the column of a step."""
    match step:
        case ScalarStep():
            return _scalar(step, result)
        case EnumStep():
            return ReadColumn(pa.int32(), partial(_symbols, step))
        case TextStep():
            return ReadColumn(pa.string())
        case NullStep():
            return ReadColumn(pa.null(), lambda array: pa.nulls(len(array), result))
        case MismatchStep():
            return ReadColumn(pa.struct([]), partial(_mismatch, step.reason, result))
        case ListStep():
            items = column_of(step.items, result.value_type)
            read = pa.list_(items.read)
            return ReadColumn(read, None if items.convert is None else partial(_list, items, result))
        case DictStep():
            values = column_of(step.values, result.item_type)
            read = pa.map_(pa.string(), values.read)
            return ReadColumn(read, None if values.convert is None else partial(_map, values, result))
        case MemberStep():
            inner = column_of(step.step, result.field(step.index).type)
            return ReadColumn(inner.read, partial(_member, step.index, inner, result))
        case BranchesStep():
            return _branches(step, result)
        case RecordStep():
            return _record(step, result)
    raise AssertionError(step)


def _scalar(step: ScalarStep, result: pa.DataType) -> ReadColumn:
    kind = read_kind(step)
    read = pa.binary() if kind == "fixed" else STORED[kind]
    factor = factor_of(step)
    if factor is not None:
        return ReadColumn(read, None if read == result and factor == 1 else partial(_scaled, factor, result))
    if pa.types.is_decimal(result):
        return ReadColumn(read, partial(_decimals, step, result))
    # A number that is promoted to float is rounded, as in Java.
    return ReadColumn(read, None if read == result else lambda array: array.cast(result, safe=False))


def _scaled(factor: Fraction, result: pa.DataType, array: pa.Array) -> pa.Array:
    found = array.cast(pa.int64())
    if factor < 1:
        found = _floor_divided(found, factor.denominator)
    elif factor > 1:
        found = pc.multiply_checked(found, factor.numerator)
    return found.cast(result)


def _floor_divided(array: pa.Array, divisor: int) -> pa.Array:
    """Arrow rounds towards zero."""
    found = pc.divide(array, divisor)
    is_rounded_up = pc.greater(pc.multiply(found, divisor), array)
    return pc.subtract(found, is_rounded_up.cast(pa.int64()))


def _decimals(step: ScalarStep, result: pa.DataType, array: pa.Array) -> pa.Array:
    """Arrow has no conversion from bytes. A decimal128 is 16 bytes, the lowest first."""
    words = b"".join(
        bytes(_DECIMAL_BYTES)
        if value is None
        else as_unscaled(step, value).to_bytes(_DECIMAL_BYTES, "little", signed=True)
        for value in array.to_pylist()
    )
    return pa.Array.from_buffers(result, len(array), [array.buffers()[0], pa.py_buffer(words)], array.null_count)


def _symbols(step: EnumStep, array: pa.Array) -> pa.Array:
    # No symbol is longer than the values that it stands for: a batch has few of them.
    used = pc.unique(array).to_pylist()
    for number in used:
        if number is not None:
            symbol_of(step, number)
    return pa.array(step.symbols, pa.string()).take(array)


def _mismatch(reason: str, result: pa.DataType, array: pa.Array) -> pa.Array:
    if array.null_count < len(array):
        raise BadValue(reason)
    return pa.nulls(len(array), result)


def _list(items: ReadColumn, result: pa.DataType, array: pa.Array) -> pa.Array:
    return _with_children(array, result, [items.converted(array.values)])


def _map(values: ReadColumn, result: pa.DataType, array: pa.Array) -> pa.Array:
    found = values.converted(array.items)
    entries = pa.StructArray.from_arrays([array.keys, found], fields=[result.key_field, result.item_field])
    return _with_children(array, result, [entries])


def _member(index: int, inner: ReadColumn, result: pa.DataType, array: pa.Array) -> pa.Array:
    return _struct(result, array, {result.field(index).name: inner.converted(array)})


def _record(step: RecordStep, result: pa.DataType) -> ReadColumn:
    steps = {item.name: item.step for item in step.written if item.step is not None}
    types = {item.name: item.type for item in result}
    columns = {name: column_of(steps[name], types[name]) for name in step.names if name in steps}
    defaults = {name: _default(item, types[name]) for name, item in step.defaults.items()}
    read = pa.struct([pa.field(name, column.read) for name, column in columns.items()])
    is_as_read = not defaults and all(column.convert is None for column in columns.values())
    return ReadColumn(read, None if is_as_read else partial(_fields, columns, defaults, result))


def _default(default: FieldDefault, result: pa.DataType) -> pa.Array | BadValue:
    """Return a default as an array of one value, or why it cannot be one."""
    edit = text_edit(default.step)
    try:
        return column_of(default.step, result).array([default.value if edit is None else edit(default.value)])
    except UNFIT as error:
        return BadValue(f"a default cannot be used: {error}")


def _fields(
    columns: Mapping[str, ReadColumn], defaults: Mapping[str, pa.Array | BadValue], result: pa.DataType, array: pa.Array
) -> pa.Array:
    # Flattened: the fields of a null record are null, else they have values that nobody wrote.
    found = {
        name: column.converted(part) for (name, column), part in zip(columns.items(), array.flatten(), strict=True)
    }
    for name, item in defaults.items():
        if isinstance(item, BadValue) and array.null_count < len(array):
            raise item
        found[name] = (
            pa.nulls(len(array), result.field(name).type) if isinstance(item, BadValue) else _repeated(item, len(array))
        )
    return _struct(result, array, found)


def _branches(step: BranchesStep, result: pa.DataType) -> ReadColumn:
    numbered = step.numbered
    if numbered is None:
        sole = next((branch for branch in step.branches if not isinstance(branch, NullStep)), step.branches[0])
        return column_of(sole, result)
    members: dict[int, list[str]] = {}
    columns = {}
    for name, branch in numbered.items():
        if isinstance(branch, MemberStep):
            members.setdefault(branch.index, []).append(name)
            columns[name] = column_of(branch.step, result.field(branch.index).type)
        else:
            columns[name] = column_of(branch, result)
    read = pa.struct([pa.field(name, column.read) for name, column in columns.items()])
    return ReadColumn(read, partial(_from_branches, columns, members, result))


def _from_branches(
    columns: Mapping[str, ReadColumn], members: Mapping[int, list[str]], result: pa.DataType, array: pa.Array
) -> pa.Array:
    found = {
        name: column.converted(part) for (name, column), part in zip(columns.items(), array.flatten(), strict=True)
    }
    if not members:
        return pc.coalesce(*found.values())
    chosen = {
        result.field(index).name: pc.coalesce(*(found[name] for name in names)) for index, names in members.items()
    }
    return _struct(result, array, chosen)


def _struct(result: pa.DataType, array: pa.Array, fields: Mapping[str, pa.Array]) -> pa.Array:
    """Return a struct that is null where `array` is, of the fields that there are; the others are null."""
    children = [fields[item.name] if item.name in fields else pa.nulls(len(array), item.type) for item in result]
    validity = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(result, len(array), [validity], array.null_count, children=children)


def _with_children(array: pa.Array, result: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return a list or map with the same lengths and other children."""
    return pa.Array.from_buffers(result, len(array), array.buffers()[:2], array.null_count, children=children)


def _repeated(item: pa.Array, count: int) -> pa.Array:
    if item.null_count:
        return pa.nulls(count, item.type)
    return item.take(pa.nulls(count, pa.int32()).fill_null(0))
