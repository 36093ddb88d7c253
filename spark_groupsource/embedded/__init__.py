"""The embedded Kafka broker for users' own tests and demos: `broker` describes it, and what differs from Kafka.

Its names are imported from here. The pytest plugin below this folder is imported in every run of pytest, also by people
who do not use it: nothing is imported before a name is asked for.
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
    """Import a name of the broker when it is asked for."""
    if name in __all__:
        from spark_groupsource.embedded import broker  # noqa: PLC0415

        return getattr(broker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
