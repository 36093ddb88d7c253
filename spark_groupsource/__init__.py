"""groupkafka: a PySpark Structured Streaming source that is a real member of a Kafka consumer group.

Public names are those of `__all__`; everything else may change without notice.
"""

from typing import TYPE_CHECKING, Any

from spark_groupsource._version import __version__

if TYPE_CHECKING:
    from spark_groupsource.spark.clean_stop import CleanStop
    from spark_groupsource.spark.progress_listener import ProgressListener
    from spark_groupsource.spark.source import GroupKafkaDataSource

__all__ = ["CleanStop", "GroupKafkaDataSource", "ProgressListener", "__version__"]


def __getattr__(name: str) -> Any:
    """Import pyspark only when it is needed: the embedded broker and the command line do without."""
    if name == "GroupKafkaDataSource":
        from spark_groupsource.spark.source import GroupKafkaDataSource  # noqa: PLC0415

        return GroupKafkaDataSource
    if name == "ProgressListener":
        from spark_groupsource.spark.progress_listener import ProgressListener  # noqa: PLC0415

        return ProgressListener
    if name == "CleanStop":
        from spark_groupsource.spark.clean_stop import CleanStop  # noqa: PLC0415

        return CleanStop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
