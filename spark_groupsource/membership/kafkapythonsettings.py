"""The client's settings in the words of kafka-python."""

from __future__ import annotations

from spark_groupsource.option_types import SourceOptions


def admin_settings(options: SourceOptions) -> dict[str, object]:
    """Return keyword arguments of KafkaAdminClient. Raises `OptionError` for a setting that has no equal there."""
    return {
        "bootstrap_servers": options.bootstrap_servers.split(","),
        "client_id": f"{options.client_id or 'groupkafka'}-admin",
    }
