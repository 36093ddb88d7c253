"""Describe what a group's members offer, for the error of a member that shares no strategy with them."""

from __future__ import annotations

from typing import Any

from kafka import KafkaAdminClient

from spark_groupsource.assignors.notes import MemberNote, WireError
from spark_groupsource.client.kafka_python_settings import admin_settings
from spark_groupsource.membership.backends.peers import in_words
from spark_groupsource.options.model import SourceOptions


def others(options: SourceOptions) -> str:
    """Return in words what strategy the group runs, and what its members offer as far as they report it.

    Of each member the broker reports only the strategy that the group runs. This source's own members add their lists.
    """
    try:
        admin = KafkaAdminClient(**admin_settings(options))
        try:
            group = admin.describe_groups([options.group_id])[options.group_id]
        finally:
            admin.close()
    except Exception as error:  # noqa: BLE001 - the client decodes what any member may have sent
        return f"the brokers did not describe what the others offer ({error})"
    return _in_words(group)


def _in_words(group: dict[str, Any]) -> str:
    lists = []
    for member in group.get("members") or []:
        offers = _offers(member.get("member_metadata"))
        lists.append(str(member.get("client_id")) + (f" offers {', '.join(offers)}" if offers else ""))
    return in_words(group.get("protocol_data") or "", lists)


def _offers(metadata: Any) -> tuple[str, ...]:
    data = metadata.get("user_data") if isinstance(metadata, dict) else getattr(metadata, "user_data", None)
    # The client's description contains bytes as text.
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data or b"")
    try:
        return MemberNote.decode(raw).offers
    except WireError:
        return ()
