"""Find the id of the schema that a record was written with, where Confluent's serializers store it. No I/O.

An id has two forms (`SchemaId` of Confluent's clients): a zero byte and a number in four bytes, or a byte 1 and a GUID
in 16 bytes. It is in front of the record (`PrefixSchemaIdSerializer`, the default), or in a header of the record
(`HeaderSchemaIdSerializer`), which wins, as in `DualSchemaIdDeserializer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from spark_groupsource import errors

# Bytes of an id in front of a record: the usual form.
PREFIX_SIZE = 5
_SIZES = {0: PREFIX_SIZE, 1: 17}
_HEADERS_TYPE = "array<struct<key: string, value: binary>>, as the source's column with includeHeaders=true"


def header_name(*, is_key: bool) -> str:
    """Return the name of the header that has the id of a key's or a value's schema."""
    return "__key_schema_id" if is_key else "__value_schema_id"


def header_ids(headers: pa.Array, name: str) -> list[bytes | None]:
    """Return each record's id in its header `name`; None without this header, or if it is null.

    The last header of a name counts, as in Kafka's Java client: a program that forwards a record adds its own behind
    those it has read. Raises `OptionError` if the array is not of the source's headers.
    """
    kind = headers.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or _missing(kind.value_type):
        raise errors.OptionError(
            errors.OPTION_INVALID, option="headers", value=f"a column of {kind}", allowed=_HEADERS_TYPE
        )
    found: list[bytes | None] = [None] * len(headers)
    items = pc.list_flatten(headers)
    wanted = pc.equal(pc.struct_field(items, "key"), name)
    records = pc.list_parent_indices(headers).filter(wanted).to_pylist()
    for record, value in zip(records, pc.struct_field(items, "value").filter(wanted).to_pylist(), strict=True):
        found[record] = value
    return found


def _missing(kind: pa.StructType) -> bool:
    texts, bytes_ = (pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())
    has = {kind.field(index).name: kind.field(index).type for index in range(kind.num_fields)}
    return has.get("key") not in texts or has.get("value") not in bytes_


class StoredId(NamedTuple):
    """The bytes of an id, and how many bytes it takes in front of the record: none for an id of a header."""

    text: bytes
    size: int


def rows_by_id(records: Sequence[bytes | None], header_ids: Sequence[bytes | None] | None) -> dict[StoredId, list[int]]:
    """Return the rows that have the same id, without those of null records. The ids may be of neither form."""
    in_front: dict[bytes, list[int]] = {}
    in_header: dict[bytes, list[int]] = {}
    for row, record in enumerate(records):
        if record is None:
            continue
        header = None if header_ids is None else header_ids[row]
        if header is not None:
            in_header.setdefault(header, []).append(row)
        else:
            size = _SIZES[1] if record[:1] == b"\1" else PREFIX_SIZE
            in_front.setdefault(record[:size], []).append(row)
    found = {StoredId(text, len(text)): rows for text, rows in in_front.items()}
    return found | {StoredId(text, 0): rows for text, rows in in_header.items()}


def parsed_id(stored: StoredId) -> int | UUID:
    """Return the number or the GUID of an id. Raises ValueError if its bytes are of neither form."""
    text = stored.text
    size = _SIZES.get(text[0], 0) if text else 0
    if not size or len(text) < size:
        forms = "a zero byte and a schema id, nor with a byte 1 and a GUID"
        if stored.size or not text:
            raise ValueError(f"it does not begin with {forms}")
        raise ValueError(
            f"the header with its schema id has the bytes {text[:17].hex()}; it does not begin with {forms}"
        )
    # Confluent's deserializers ignore what follows an id in a header.
    return UUID(bytes=text[1:size]) if text[0] else int.from_bytes(text[1:size], "big")
