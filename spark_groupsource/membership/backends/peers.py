"""Describe a group: its members, and the strategy that it runs. Needs the right to describe the group."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import KafkaException
from confluent_kafka.admin import ConsumerGroupDescription  # type: ignore[attr-defined]

from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import AdminRequests
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.options.model import SourceOptions


def others(options: SourceOptions) -> str:
    """Return in words what the broker reports of the other members. It does not report what else they offer."""
    try:
        group = _described(options)
    except (KafkaException, GroupKafkaError) as error:
        return f"the brokers did not describe what the others run ({error})"
    return in_words(str(group.partition_assignor or ""), _clients(group))


def members(options: SourceOptions) -> list[str]:
    """Return the client ids of the group's members; an empty list if the coordinator does not report them."""
    try:
        return _clients(_described(options))
    except (KafkaException, GroupKafkaError):
        return []


def _described(options: SourceOptions) -> ConsumerGroupDescription:
    requests = AdminRequests(options, SystemClock())
    try:
        asked = requests.client().describe_consumer_groups([options.group_id], request_timeout=10)
        group: ConsumerGroupDescription = requests.answer(asked[options.group_id])
    finally:
        requests.forget()
    return group


def _clients(group: ConsumerGroupDescription) -> list[str]:
    return [str(member.client_id) for member in group.members]


def in_words(strategy: str, members: Collection[str]) -> str:
    """Return in words what strategy a group runs, and its members."""
    return f"the group runs {strategy or 'none yet'!r}, with {len(members)} members: {'; '.join(sorted(members))}"
