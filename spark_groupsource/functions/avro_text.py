"""Write records inside themselves as JSON text: a column's type has an end, the depth of such records has none. Pure.

Spark's `from_json` reads it with the types of the column: bytes are base64, dates and timestamps are ISO 8601
(timestamps in UTC, timestamps without time zone without "Z"), decimals are texts with all their digits, a member of a
union is an object with the one field `memberN`, a float that is no number is a text. Nulls are written.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

from spark_groupsource.functions.avro_encoding import read_kind
from spark_groupsource.functions.avro_numbers import BadValue, as_unscaled, factor_of, is_timestamp, scaled
from spark_groupsource.functions.avro_resolution import (
    BranchesStep,
    DictStep,
    EnumStep,
    ListStep,
    MemberStep,
    MismatchStep,
    NullStep,
    RecordStep,
    ResolutionStep,
    ScalarStep,
    TextStep,
)
from spark_groupsource.functions.avro_schema import FixedType

Edit: TypeAlias = Callable[[Any], Any]
_DAYS_PER_400_YEARS = 146_097
_MICROS_PER_DAY = 86_400_000_000


def text_edit(step: ResolutionStep) -> Edit | None:
    """Return what puts texts into a value as it was read, in place. None if the step has no texts.

    What is returned raises `BadValue` for a value that the reader's type cannot hold.
    """
    match step:
        case TextStep():
            return partial(_text, step.step)
        case MemberStep():
            return text_edit(step.step)
        case ListStep():
            return _over_items(text_edit(step.items))
        case DictStep():
            return _over_values(text_edit(step.values))
        case RecordStep():
            return _over_fields({item.name: text_edit(item.step) for item in step.written if item.step})
        case BranchesStep():
            numbered = step.numbered
            if numbered is not None:
                return _over_fields({name: text_edit(branch) for name, branch in numbered.items()})
            return next((edit for edit in map(text_edit, step.branches) if edit is not None), None)
    return None


def _text(step: ResolutionStep, value: Any) -> str | None:
    try:
        return None if value is None else json.dumps(_plain(step, value))
    except RecursionError:
        raise BadValue("records are nested too deep for a text: Python's recursion limit was reached") from None


def _over_items(edit: Edit | None) -> Edit | None:
    return None if edit is None else lambda value: None if value is None else [edit(item) for item in value]


def _over_values(edit: Edit | None) -> Edit | None:
    if edit is None:
        return None
    return lambda value: None if value is None else {key: edit(item) for key, item in value.items()}


def _over_fields(edits: dict[str, Edit | None]) -> Edit | None:
    some = [(name, edit) for name, edit in edits.items() if edit is not None]

    def over_fields(value: Any) -> Any:
        for name, edit in some:
            if value is not None and name in value:
                value[name] = edit(value[name])
        return value

    return over_fields if some else None


def _plain(step: ResolutionStep, value: Any) -> Any:
    """Return a value as JSON has it."""
    match step:
        case _ if value is None:
            return None
        case ScalarStep():
            return _scalar(step, value)
        case EnumStep():
            return symbol_of(step, value)
        case ListStep():
            return [_plain(step.items, item) for item in value]
        case DictStep():
            return {key: _plain(step.values, item) for key, item in value.items()}
        case MemberStep():
            return {f"member{step.index}": _plain(step.step, value)}
        case BranchesStep():
            numbered = step.numbered
            if numbered is None:
                sole = next(branch for branch in step.branches if not isinstance(branch, NullStep))
                return _plain(sole, value)
            ((name, inner),) = value.items()
            return _plain(numbered[name], inner)
        case MismatchStep():
            raise BadValue(step.reason)
        case RecordStep():
            found = {item.name: _plain(item.step, value[item.name]) for item in step.written if item.step}
            return {name: found[name] if name in found else _default(step, name) for name in step.names}
    raise AssertionError(step)


def _default(step: RecordStep, name: str) -> Any:
    default = step.defaults[name]
    if isinstance(default.step, MismatchStep):
        raise BadValue(default.step.reason)
    return _plain(default.step, default.value)


def symbol_of(step: EnumStep, number: int) -> str:
    """Return the reader's symbol for a symbol's number. Raises `BadValue`."""
    symbols = step.writer.symbols
    if not 0 <= number < len(symbols):
        raise BadValue(f"enum '{step.writer.name}' has no symbol {number}")
    found = step.symbols[number]
    if found is None:
        raise BadValue(f"the reader's enum has no symbol '{symbols[number]}' and no default")
    return found


def _scalar(step: ScalarStep, value: Any) -> Any:
    reader = step.reader
    logical = reader.logical
    if read_kind(step) == "int" and not -(2**31) <= value < 2**31:
        raise BadValue(f"{value} is no int")
    if logical is not None and logical.name == "decimal":
        # From text: arithmetic of decimals rounds to 28 digits.
        return f"{Decimal(f'{as_unscaled(step, value)}e-{logical.scale}'):f}"
    if logical is not None and logical.name == "date":
        return _day(value)
    factor = factor_of(step)
    if factor is not None:
        value = scaled(factor, value)
    if is_timestamp(step):
        days, micros = divmod(value, _MICROS_PER_DAY)
        time = (datetime.datetime.min + datetime.timedelta(microseconds=micros)).time()
        zone = "" if logical is not None and logical.name.startswith("local-") else "Z"
        return f"{_day(days)}T{time.isoformat('microseconds')}{zone}"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(reader, FixedType) or reader.kind not in ("float", "double"):
        return value
    number = float(value)
    return number if math.isfinite(number) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")


def _day(days: int) -> str:
    """Return a date, also outside Python's years 1 to 9999: the calendar repeats after 400 years."""
    cycles, rest = divmod(days, _DAYS_PER_400_YEARS)
    date = datetime.date(1970, 1, 1) + datetime.timedelta(days=rest)
    year = date.year + 400 * cycles
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{shown}-{date.month:02d}-{date.day:02d}"
