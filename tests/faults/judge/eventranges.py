"""The offset ranges that a line of a query's metrics file tells of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.faults.history import MemberEvent

# "orders-0 group=200 checkpoint=100 (...)": where a partition starts.
_START = re.compile(r"(\S+)-(\d+) group=(\d+) checkpoint=(\d+)")
# "orders-0 [100, 150) group=120 (...)": a batch that runs again.
_REPLAY = re.compile(r"(\S+)-(\d+) \[(\d+), (\d+)\) group=\d+")


def ranges_of(event: MemberEvent) -> Iterator[tuple[str, int, int, int]]:
    """Yield (topic, partition, start, end): what was lost, or what a conflict may make the query read again.

    `ranges` in the details is a list of such, or the text in which the source tells of a conflict.
    """
    told = event.details.get("ranges") or ()
    if not isinstance(told, str):
        for topic, partition, start, end in told:
            yield topic, partition, start, end
        return
    by_checkpoint = event.details.get("on_conflict") != "group"
    for topic, partition, group, checkpoint in _START.findall(told):
        start, end = (int(checkpoint), int(group)) if by_checkpoint else (int(group), int(checkpoint))
        if start < end:
            yield topic, int(partition), start, end
    for topic, partition, start, end in _REPLAY.findall(told):
        yield topic, int(partition), int(start), int(end)
