"""What is read back from a checkpoint, from the group or from an option may hold anything: errors of the catalogue
only, and what is taken means exactly what the text says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.commit_metadata import CommitMetadata, KnownTopics, Pin, parse_metadata
from spark_groupsource.model.offsets import OFFSET_MAX, OffsetRange, Reset, SourceOffset, parse_offset
from spark_groupsource.options import offset_spec as starting
from spark_groupsource.options.values import moment, partition_list
from tests.unit.fakes import LINEAGE, tp

INPUTS = 10_000
ID = "Qw3zT0ynQ2uB8v7h1d2eZA"
RESET = Reset(1_700_000_000_000, "33333333-3333-3333-3333-333333333333")
OFFSETS = (
    SourceOffset(LINEAGE),
    SourceOffset.of(LINEAGE, {"orders": ID}, [OffsetRange(tp(0), 0, 50)], {tp(4): 150}, RESET),
    SourceOffset.of(LINEAGE, {"orders": ID}, [OffsetRange(tp(n), n, OFFSET_MAX - n, n) for n in range(3)], {}),
)
METADATA = (
    CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4)),
    CommitMetadata(LINEAGE, ID, 0, OFFSET_MAX, Pin(0, 1, KnownTopics.of({"orders": ID, "refunds": ID})), 3, RESET),
)
# As JSON spells them: what Python's parser takes although it is not JSON, and what looks like a number but is none.
ODD = (
    "null", "true", "0", "-0", "1", "-1", "-2", "1.0", "1e3", "1e999", "NaN", "-Infinity", "9223372036854775807",
    "9223372036854775808", "2147483648", "1" + "0" * 400, "1" + "0" * 4000, '""', '"0"', '"\\u0660"', '"\\ud800"',
    '"\\udfff\\u0000"', '"\u00b2"', '"\u0661"', '"+1"', '"01"', '" 1"', '"1\\n"', '"' + "x" * 256 + '"', "[]", "[[]]",
    "[1,2]", "[2,1]", "[1,2,3]", "{}", '{"0":[1,2]}', '{"":0}', "[" * 400 + "]" * 400, "[" * 5000 + "]" * 5000,
)  # fmt: skip
CHARACTERS = '{}[]",:0123456789-+.eE \\ntfu\u0000\u00e9\u0660\U0001f600xv'
FIELDS = ("v", "gk", "more", "e", "k", "done", "epochs", "ranges", "7")


def mutated(source: random.Random, text: str) -> str:
    """Return the text with a few of its characters or values changed."""
    for _ in range(source.choice((0, 1, 1, 1, 2, 5))):
        at = source.randrange(len(text) + 1)
        length = source.choice((0, 1, 1, 2, 3, 10))
        before, after = text[:at], text[at + length :]
        change = source.randrange(9)
        if change == 0:
            text = before + after
        elif change == 1:
            text = before
        elif change == 2:
            text = before + "".join(chr(ord(c) ^ 1 << source.randrange(7)) for c in text[at : at + length]) + after
        elif change == 3:
            text = before + "".join(source.choices(CHARACTERS, k=length)) + after
        elif change == 4:  # once more, which makes keys come twice
            text = before + text[max(0, at - 4 * length) :]
        else:
            text = _with_another_value(source, text)
    return text


def _with_another_value(source: random.Random, text: str) -> str:
    """Put an odd value in the place of another one, or add a field."""
    places = [at + 1 for at, character in enumerate(text) if character in ":[,{"]
    if not places:
        return source.choice(ODD)
    at = source.choice(places)
    if text[at - 1] in "{," and source.random() < 0.5:
        return f'{text[:at]}"{source.choice(FIELDS)}":{source.choice(ODD)},{text[at:]}'
    end = min((found for c in ",]}" if (found := text.find(c, at)) >= 0), default=len(text))
    return text[:at] + source.choice(ODD) + text[end:]


def inputs(seed: int, valid: list[str], count: int = INPUTS) -> Iterator[str]:
    """Return the texts to try: noise, odd values, and mostly valid ones with something changed."""
    source = random.Random(seed)
    yield from ODD
    for number in range(count - len(ODD)):
        if number % 20 == 0:
            yield "".join(source.choices(CHARACTERS, k=source.randrange(60)))
        else:
            yield mutated(source, source.choice(valid))


def canonical(value: object) -> str:
    """Return a text that tells 1 from 1.0 and from true."""
    return json.dumps(value, sort_keys=True)


def test_stored_offsets() -> None:
    taken = 0
    errors: list[OffsetFormatError] = []
    # Half of the texts are no JSON, and PySpark refuses those before this package sees them.
    for text in inputs(1, [json.dumps(offset.to_json()) for offset in OFFSETS], 2 * INPUTS):
        try:
            value: Any = json.loads(text)  # as PySpark does
        except (ValueError, RecursionError):
            continue
        try:
            offset = parse_offset(value)
        except OffsetFormatError as error:
            errors.append(error)
            continue
        taken += 1
        for topic in value["topics"].values():
            for empty in [key for key in ("done", "epochs") if topic.get(key) == {}]:
                del topic[empty]
        assert canonical(offset.to_json()) == canonical(value), text
        assert parse_offset(json.loads(canonical(offset.to_json()))) == offset
        assert len(offset.ends()) == len(offset.ranges) + len(offset.done), "a partition comes once"
        assert json.dumps(value, ensure_ascii=False).encode(), "Kafka and Spark can take all of its texts"
    assert taken > 1_000, "the changes are too hard to say anything"
    assert len(errors) > 2_500, "the changes are too soft to say anything"
    assert all(str(error).encode() for error in errors), "Spark can show them"


def test_commit_metadata() -> None:
    taken = refused = 0
    errors: list[OffsetFormatError] = []
    for text in inputs(2, [item.to_text() for item in METADATA]):
        try:
            metadata = parse_metadata(text)
        except OffsetFormatError as error:
            errors.append(error)
            continue
        if metadata is None:
            refused += 1
            continue
        taken += 1
        said = {key: item for key, item in json.loads(text).items() if item is not None}
        assert canonical(json.loads(metadata.to_text())) == canonical(said), text
        assert parse_metadata(metadata.to_text()) == metadata
        assert 0 <= metadata.start <= metadata.end <= OFFSET_MAX
    assert taken > 1_000, "the changes are too hard to say anything"
    assert refused > 1_000, "the changes are too soft to say anything"
    assert len(errors) > 10
    assert all(str(error).encode() for error in errors)


@pytest.mark.parametrize(
    ("parse", "valid"),
    [
        (starting.start_of, '{"orders":{"0":23,"1":-1,"2":-2},"refunds":{"0":0}}'),
        (lambda text: starting.times_of(text, moment), '{"orders":{"0":1700000000000,"1":0}}'),
        (partition_list, '{"orders":[0,1,2147483647],"refunds":[0]}'),
    ],
)
def test_json_of_options(parse: Callable[[str], Any], valid: str) -> None:
    """The parsers of option values raise ValueError, which becomes the error that names the option."""
    taken = refused = 0
    for text in inputs(3, [valid]):
        try:
            found = parse(text)
        except ValueError:
            refused += 1
            continue
        taken += 1
        found = found.each if isinstance(found, starting.Starting) else found
        if isinstance(found, dict | tuple):
            value = json.loads(text)
            numbers = {(topic, int(number)) for topic, named in value.items() for number in named}
            assert {tuple(partition) for partition in found} == numbers, text
            assert all(0 <= partition.partition < 2**31 for partition in found)
    assert taken > 500, "the changes are too hard to say anything"
    assert refused > 500, "the changes are too soft to say anything"
