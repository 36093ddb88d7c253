"""Build the column of `from_confluent_avro`: check its arguments, and request the schema of its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark.sql import Column
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from spark_groupsource import errors

if TYPE_CHECKING:
    from spark_groupsource.functions.avro_decoder import Reading

_MODE, _USER_INFO, _TOKEN, _CA = "mode", "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location"
_MODES = {"FAILFAST": True, "PERMISSIVE": False}


def from_confluent_avro(
    column: Column | str,
    schema_registry_url: str,
    *,
    subject: str | None = None,
    reader_schema: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decode a binary column that Confluent's Avro serializers have written: a zero byte, a schema id, a record.

    Each record is read with the schema that its id names, and resolved to the reader's schema, which gives the result
    its type: `reader_schema` (JSON), or the newest version of `subject` in the registry when this function is called.
    Needs the extra `avro` on the driver and on executors.

    `options`: `mode` is "FAILFAST" (the default: a bad record fails the task) or "PERMISSIVE" (a bad record is null; a
    registry that cannot be asked is an error all the same). `basic.auth.user.info` (user:password),
    `bearer.auth.token` and `ssl.ca.location` (a file, on executors too) are for the registry. They are in no plan.

    Raises `OptionError`, and `KafkaUnavailableError` if the registry cannot be asked.
    """
    reading, result = _reading(schema_registry_url, subject, reader_schema, dict(options or {}))
    found: Column = _function(reading, result)(column)
    return found


def _function(reading: Reading, result: Any) -> Any:
    """Return the function that Spark calls with arrays. Plans show its name and its columns only."""
    from pyarrow import Array  # noqa: PLC0415

    def from_confluent_avro(records: Any) -> Any:
        # Runs in a Python worker.
        from spark_groupsource.functions.avro_decoder import decoder_of  # noqa: PLC0415

        return decoder_of(reading).decode(records)

    # Spark reads the kind of the function from its hints, as classes, and warns about a function without them.
    from_confluent_avro.__annotations__ = {"records": Array, "return": Array}
    make: Any = arrow_udf  # its overloads want a plain number for the kind
    return make(from_confluent_avro, from_arrow_type(result, prefer_timestamp_ntz=True))


def _reading(url: str, subject: str | None, reader_schema: str | None, options: dict[str, str]) -> tuple[Reading, Any]:
    """Check the arguments; return what tasks need, and the Arrow type of the result."""
    try:
        from spark_groupsource.functions import avro_decoder, avro_schema, avro_types, schema_registry  # noqa: PLC0415
    except ImportError as error:
        raise errors.OptionError(errors.AVRO_EXTRA_MISSING, reason=str(error)) from None
    import pyarrow as pa  # noqa: PLC0415

    _check(url, subject, reader_schema, options)
    settings = schema_registry.RegistrySettings(
        url, options.get(_USER_INFO, ""), options.get(_TOKEN, ""), options.get(_CA, "")
    )
    try:
        if reader_schema is None:
            client = schema_registry.Registry(settings)
            texts = avro_decoder.schema_texts(client, client.by_version(str(subject)))
        else:
            texts = (reader_schema,)
        result = avro_types.arrow_type(avro_schema.parsed(texts))
    except (schema_registry.SchemaNotFound, avro_decoder.BadRecord, avro_schema.UnsupportedSchema) as error:
        source = f"subject '{subject}'" if reader_schema is None else "reader_schema"
        raise errors.OptionError(errors.AVRO_SCHEMA_UNUSABLE, source=source, reason=str(error)) from None
    is_strict = _MODES[options.get(_MODE, "FAILFAST").upper()]
    text = pa.schema([pa.field("result", result)]).serialize().to_pybytes()
    return avro_decoder.Reading(settings, texts, is_strict, text), result


def _check(url: str, subject: str | None, reader_schema: str | None, options: dict[str, str]) -> None:
    """Raise `OptionError` for arguments that cannot be."""

    def invalid(option: str, value: str, allowed: str) -> errors.OptionError:
        return errors.OptionError(errors.OPTION_INVALID, option=option, value=value, allowed=allowed)

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        # It may hold a password.
        raise invalid("schema_registry_url", f"{parts.scheme}:...", "http://host:port or https://host:port")
    if (subject is None) == (reader_schema is None):
        raise invalid("subject", str(subject), "a subject, or reader_schema instead")
    for name in options:
        if name not in (_MODE, _USER_INFO, _TOKEN, _CA):
            raise invalid("options", name, f"{_MODE}, {_USER_INFO}, {_TOKEN}, {_CA}")
    if options.get(_MODE, "FAILFAST").upper() not in _MODES:
        raise invalid(_MODE, options[_MODE], " or ".join(_MODES))
