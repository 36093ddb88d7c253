"""Find the id of the schema that a record was written with, where Confluent's serializers store it. No I/O.

An id has two forms (`SchemaId` of Confluent's clients): a zero byte and a number in four bytes, or a byte 1 and a GUID
in 16 bytes. It is in front of the record (`PrefixSchemaIdSerializer`, the default), or in a header of the record
(`HeaderSchemaIdSerializer`), which wins, as in `DualSchemaIdDeserializer`.
"""

from __future__ import annotations

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


def stored_id(record: bytes, header: bytes | None = None) -> bytes:
    """Return the bytes of a record's id: those of the header, else those in front of the record.

    Raises ValueError if they are not of one of the two forms.
    """
    text = record if header is None else header
    size = _SIZES.get(text[0], 0) if text else 0
    if size and len(text) >= size:
        # Confluent's deserializers ignore what follows it in a header.
        return text[:size]
    if header is not None:
        raise ValueError(f"its header with the schema id has the bytes {header[:17].hex() or 'of nothing'}")
    raise ValueError("it does not begin with a zero byte and a schema id, nor with a byte 1 and a GUID")


def parsed_id(stored: bytes) -> int | UUID:
    """Return the number or the GUID of an id of `stored_id`."""
    return UUID(bytes=stored[1:]) if stored[0] else int.from_bytes(stored[1:], "big")
