"""Build the column of `from_confluent_avro`: check its arguments, and request the schema of its result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql import Column
from pyspark.sql.pandas.types import from_arrow_type

from spark_groupsource import errors
from spark_groupsource.options.permissions import permissions_of

if TYPE_CHECKING:
    from spark_groupsource.functions.avro_decoder import Reading

_MODE = "mode"
_MODES = {"FAILFAST": True, "PERMISSIVE": False}


def from_confluent_avro(
    column: Column | str,
    schema_registry_url: str,
    *,
    subject: str | None = None,
    reader_schema: str | None = None,
    headers: Column | str | None = None,
    is_key: bool = False,
    options: Mapping[str, str] | None = None,
) -> Column:
    """Decode a binary column that Confluent's Avro serializers have written: the id of a schema, a record.

    Each record is read with the schema that its id names, and resolved to the reader's schema, which gives the result
    its type: `reader_schema` (JSON), or the newest version of `subject` in the registry when this function is called.
    Needs the extra `avro` on the driver and on executors.

    `schema_registry_url` is a registry, or several separated by commas: they are tried in turn.

    The id is in front of the record, or with `headers` in a header of the record, where Confluent's
    HeaderSchemaIdSerializer stores it. `headers` is the source's column with includeHeaders=true. The header is that of
    values, `__value_schema_id`, or with `is_key` that of keys, `__key_schema_id`. A record without the header has the
    id in front of it.

    `options`: `mode` is "FAILFAST" (the default: a bad record fails the task) or "PERMISSIVE" (a bad record is null; a
    registry that cannot be asked is an error all the same). The others are for the registry, with the names and the
    meaning of Confluent's Python client: `basic.auth.user.info` (user:password), `bearer.auth.*`, `ssl.*.location` and
    `ssl.key.password` (PEM files, on executors too). `tokenProvider` is "gcp" or package.module:function, as for the
    source. They are in no plan.

    Raises `OptionError` (SPARK_TOO_OLD before Spark 4.1), `KafkaUnavailableError` if no registry answers, and
    `AccessError` if a provider returns no token.
    """
    make = _arrow_udf()
    reading, result = _reading(schema_registry_url, subject, reader_schema, dict(options or {}))
    columns = (column,) if headers is None else (column, headers)
    found: Column = _function(make, reading, result, has_headers=headers is not None, is_key=is_key)(*columns)
    return found


def _arrow_udf() -> Any:
    """Return PySpark's maker of functions on Arrow arrays."""
    try:
        from pyspark.sql.pandas.functions import arrow_udf  # noqa: PLC0415
    except ImportError:
        what = from_confluent_avro.__name__
        raise errors.OptionError(errors.SPARK_TOO_OLD, what=what, least="4.1", version=pyspark.__version__) from None
    return arrow_udf


def _function(make: Any, reading: Reading, result: Any, *, has_headers: bool, is_key: bool) -> Any:
    """Return the function that Spark calls with arrays. Plans show its name and its columns only."""
    from pyarrow import Array  # noqa: PLC0415

    # Both run in a Python worker.
    def of_records(records: Any) -> Any:
        from spark_groupsource.functions.avro_decoder import decoder_of  # noqa: PLC0415

        return decoder_of(reading).decode(records)

    def of_records_and_headers(records: Any, headers: Any) -> Any:
        from spark_groupsource.functions.avro_decoder import decoder_of  # noqa: PLC0415
        from spark_groupsource.functions.schema_ids import header_ids, header_name  # noqa: PLC0415

        return decoder_of(reading).decode(records, header_ids(headers, header_name(is_key=is_key)))

    function: Any = of_records_and_headers if has_headers else of_records
    function.__name__ = from_confluent_avro.__name__
    # Spark reads the kind of the function from its hints, as classes, and warns about a function without them.
    function.__annotations__ = dict.fromkeys(function.__annotations__, Array)
    return make(function, from_arrow_type(result, prefer_timestamp_ntz=True))


def _reading(url: str, subject: str | None, reader_schema: str | None, options: dict[str, str]) -> tuple[Reading, Any]:
    """Check the arguments; return what tasks need, and the Arrow type of the result."""
    try:
        from spark_groupsource.functions import (  # noqa: PLC0415
            avro_decoder,
            avro_schema,
            avro_types,
            registry_options,
            schema_registry,
        )
    except ImportError as error:
        raise errors.OptionError(errors.AVRO_EXTRA_MISSING, reason=str(error)) from None
    _check(subject, reader_schema, options, (_MODE, *registry_options.REGISTRY_OPTIONS))
    of_registry = {name: value for name, value in options.items() if name != _MODE}
    settings = registry_options.registry_settings(url, of_registry, permissions_of(os.environ))
    settings = replace(settings, context=schema_registry.context_of(subject or ""))
    client = schema_registry.Registry(settings)
    try:
        if reader_schema is None:
            texts = avro_decoder.schema_texts(client, client.by_version(str(subject)))
        else:
            texts = (reader_schema,)
        result = avro_types.arrow_type(avro_schema.parsed(texts))
    except (
        schema_registry.SchemaNotFound, avro_decoder.BadRecord, avro_schema.UnsupportedSchema, RecursionError
    ) as error:  # fmt: skip
        source = f"subject '{subject}'" if reader_schema is None else "reader_schema"
        raise errors.OptionError(errors.AVRO_SCHEMA_UNUSABLE, source=source, reason=str(error)) from None
    is_strict = _MODES[options.get(_MODE, "FAILFAST").upper()]
    return avro_decoder.Reading(client.settings_for_tasks(), texts, is_strict), result


def _check(subject: str | None, reader_schema: str | None, options: dict[str, str], names: tuple[str, ...]) -> None:
    """Raise `OptionError` for arguments that cannot be. `names` are the known options."""

    def invalid(option: str, value: str, allowed: str) -> errors.OptionError:
        return errors.OptionError(errors.OPTION_INVALID, option=option, value=value, allowed=allowed)

    if (subject is None) == (reader_schema is None):
        raise invalid("subject", str(subject), "a subject, or reader_schema instead")
    for name in options:
        if name not in names:
            raise invalid("options", name, ", ".join(names))
    if str(options.get(_MODE, "FAILFAST")).upper() not in _MODES:
        raise invalid(_MODE, str(options[_MODE]), " or ".join(_MODES))
