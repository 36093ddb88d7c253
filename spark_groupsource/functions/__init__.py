"""Functions on columns, to be used with any source. Importing this package imports pyspark.

- `confluent_avro`: the function `from_confluent_avro`.
- `avro_decoder`, `schema_registry`: what it does in Python workers, without Spark (extra `avro`).
- `avro_schema`, `avro_defaults`, `avro_resolution`: Avro's rules. They end in a tree of steps.
- `avro_encoding`, `avro_reader`: how bytes are read, and fastavro.
- `avro_types`, `avro_numbers`, `avro_columns`, `avro_text`: how what was read becomes columns of the reader's types.
"""

from spark_groupsource.functions.confluent_avro import from_confluent_avro

__all__ = ["from_confluent_avro"]
