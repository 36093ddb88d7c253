"""Read a stored number by the reader's logical type: units of time and scales of decimals. Pure.

Where the writer has a unit or a scale, too, its own says what the number means: a timestamp keeps its instant, a
decimal its number. Otherwise the number is the reader's, as "Logical Types" of the Avro specification has it.
"""

from __future__ import annotations

from fractions import Fraction

from spark_groupsource.functions.avro_resolution import ScalarStep

_MICROS_PER_UNIT = {
    "date": Fraction(86_400_000_000),
    "timestamp-millis": Fraction(1000), "timestamp-micros": Fraction(1), "timestamp-nanos": Fraction(1, 1000),
    "local-timestamp-millis": Fraction(1000), "local-timestamp-micros": Fraction(1),
    "local-timestamp-nanos": Fraction(1, 1000),
}  # fmt: skip
_TIMESTAMPS = ("timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros")
# Spark has no type for nanoseconds: they are numbers.
_NANOS = ("timestamp-nanos", "local-timestamp-nanos")


class BadValue(ValueError):
    """A value was read that the reader's type cannot hold: its record is bad."""


def is_timestamp(step: ScalarStep) -> bool:
    """Return whether a number becomes a timestamp."""
    return step.reader.logical is not None and step.reader.logical.name in _TIMESTAMPS


def factor_of(step: ScalarStep) -> Fraction | None:
    """Return what a number is multiplied by if the reader has a unit of time: None if it has none.

    The result is in microseconds if the reader has a timestamp, and in nanoseconds if it has timestamp-nanos.
    """
    reader, writer = step.reader.logical, step.writer.logical
    if reader is None or reader.name not in (*_TIMESTAMPS, *_NANOS):
        return None
    micros = _MICROS_PER_UNIT.get(writer.name if writer else "") or _MICROS_PER_UNIT[reader.name]
    return micros * 1000 if reader.name in _NANOS else micros


def scaled(factor: Fraction, number: int) -> int:
    """Return a number multiplied by a factor, rounded down. Raises `BadValue` if Spark's types cannot hold it."""
    found = number * factor.numerator // factor.denominator
    if not -(2**63) <= found < 2**63:
        raise BadValue(f"{number} is beyond Spark's timestamps")
    return found


def as_unscaled(step: ScalarStep, stored: bytes) -> int:
    """Return the digits of a decimal, at the reader's scale, from a big-endian two's complement.

    Raises `BadValue` for zero bytes, as Java does, for more digits than the reader's precision, and for digits after
    the point that its scale would cut.
    """
    reader, writer = step.reader.logical, step.writer.logical
    if reader is None:
        raise TypeError("the reader has a decimal")
    if not stored:
        raise BadValue("a decimal without bytes")
    number = int.from_bytes(stored, "big", signed=True)
    shift = reader.scale - (writer.scale if writer and writer.name == "decimal" else reader.scale)
    found: int
    found, rest = divmod(number * 10 ** max(shift, 0), 10 ** max(-shift, 0))
    if rest or abs(found) >= 10**reader.precision:
        shown = f"{len(stored)} bytes" if len(stored) > 32 else f"{number} of scale {reader.scale - shift}"
        raise BadValue(f"{shown} does not fit decimal({reader.precision},{reader.scale})")
    return found
