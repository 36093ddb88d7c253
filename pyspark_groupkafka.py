"""Makes `format("groupkafka")` known to Spark without a register call.

PySpark imports every module whose name starts with `pyspark_` and registers its `DefaultSource`.
"""

from spark_groupsource.spark.source import GroupKafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
