"""The embedded Kafka broker for users' own tests and demos; see `broker` for its use and its differences from Kafka.

Import its names from here. pytest imports the plugin in this folder in every run, also for people who do not use it. So
nothing is imported before a name is used.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_groupsource.embedded.broker import ApiKey as ApiKey
    from spark_groupsource.embedded.broker import EmbeddedKafka as EmbeddedKafka
    from spark_groupsource.embedded.broker import EmbeddedKafkaError as EmbeddedKafkaError
    from spark_groupsource.embedded.broker import Record as Record
    from spark_groupsource.embedded.broker import SeenRequest as SeenRequest

__all__ = ["ApiKey", "EmbeddedKafka", "EmbeddedKafkaError", "Record", "SeenRequest"]


def __getattr__(name: str) -> Any:
    """Import a name of the broker at its first use."""
    if name in __all__:
        from spark_groupsource.embedded import broker  # noqa: PLC0415

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
