"""What strategy a group runs, for the error of a member on librdkafka that shares none with it."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaException

from spark_groupsource.client import LastTransportError
from spark_groupsource.cluster import admin_client, answer_of
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.option_types import SourceOptions


def others(options: SourceOptions) -> str:
    """Return in words what the broker tells of the others; it does not tell what else they offer."""
    transport = LastTransportError()
    try:
        client = admin_client(options, transport)
        asked = client.describe_consumer_groups([options.group_id], request_timeout=10)
        group = answer_of(client, asked[options.group_id], transport)
    except (KafkaException, GroupKafkaError) as error:
        return f"what the others run could not be asked ({error})"
    return in_words(str(group.partition_assignor or ""), [str(member.client_id) for member in group.members])


def in_words(strategy: str, members: Collection[str]) -> str:
    """Return what a group runs, and who is in it."""
    return f"the group runs {strategy or 'none yet'!r}, with {len(members)} members: {'; '.join(sorted(members))}"
