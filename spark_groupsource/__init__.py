"""groupkafka: a PySpark Structured Streaming source that is a real member of a Kafka consumer group.

Public names are those of `__all__`; everything else may change without notice.
"""

from typing import TYPE_CHECKING, Any

from spark_groupsource._version import __version__

if TYPE_CHECKING:
    from spark_groupsource.spark.owner import run_when_owner
    from spark_groupsource.spark.progress_listener import ProgressListener
    from spark_groupsource.spark.source import GroupKafkaDataSource
    from spark_groupsource.spark.stop import QueryEnd, QueryFailedError, drain, run_until_stopped

__all__ = [
    "GroupKafkaDataSource",
    "ProgressListener",
    "QueryEnd",
    "QueryFailedError",
    "__version__",
    "drain",
    "run_until_stopped",
    "run_when_owner",
]

# Public names of the folder spark/, and their modules.
_MODULES = {
    "GroupKafkaDataSource": "source",
    "ProgressListener": "progress_listener",
    "QueryEnd": "stop",
    "QueryFailedError": "stop",
    "drain": "stop",
    "run_until_stopped": "stop",
    "run_when_owner": "owner",
}


def __getattr__(name: str) -> Any:
    """Import pyspark only when it is needed: the embedded broker and the command line do without."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    return getattr(import_module(f"spark_groupsource.spark.{_MODULES[name]}"), name)
