"""Functions on columns, to be used with any source. Importing this package imports pyspark.

- `confluent_avro`: the function `from_confluent_avro`.
- `avro_decoder`, `avro_types`, `schema_registry`: what it does in Python workers, without Spark (extra `avro`).
"""

from spark_groupsource.functions.confluent_avro import from_confluent_avro

__all__ = ["from_confluent_avro"]
