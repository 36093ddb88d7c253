"""What fixes a start position in the group: pure decisions, no I/O.

A pin tells, besides the position, what there was when the group began: how many partitions the topic had, and which
topics. Whoever is given a partition without an offset goes by that (`planning/start.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_groupsource.commits import CommitMetadata, GroupOffset, Pin
from spark_groupsource.offsets import TopicPartition
from spark_groupsource.planning.start import Basis, StartDecision


def initial_topics(
    decision: StartDecision,
    group: GroupOffset | None,
    topic_ids: Mapping[str, str],
    pins: Mapping[TopicPartition, Pin],
    *,
    has_read: bool,
    appeared: bool,
) -> dict[str, str]:
    """Return which topics (name, id) the new pin of a partition may say were there when the group began.

    `pins` are those that the group has, `has_read` and `appeared` as in `Memory`. What it leaves out starts at its
    beginning, wherever it is pinned.

    1. None where a checkpoint has read and the group has no pins: it had some, and has lost them.
    2. Not its own topic, where that was made again, is new, or was pinned before and that is lost. The sequence: both
       partitions of a topic were read, the group forgets them; one is pinned anew where the checkpoint was, then
       another member is given the other one, which by that pin was there, and starts at its end.
    """
    if has_read and not pins:
        return {}
    topic = decision.partition.topic
    new = group is None or group.offset is None
    # Only added partitions of a topic that was there at first have their own pins beside the first ones.
    added = decision.basis is Basis.FIRST_OFFSET and any(partition.topic == topic for partition in pins)
    left_out = new and decision.basis is not Basis.STARTING_POSITION and not added
    if decision.recreated or appeared or left_out:
        return {name: topic_id for name, topic_id in topic_ids.items() if name != topic}
    return dict(topic_ids)


def offset_to_pin(
    decision: StartDecision, position: int, group: GroupOffset | None, metadata: CommitMetadata | None
) -> int | None:
    """Return the offset to commit before anything is planned from `position`; None when the group's will do."""
    if group is None or group.offset is None or position > group.offset or decision.recreated:
        return position
    if metadata is None and position == group.offset:
        # Set by another program. Said in our name, a later offset without metadata is one that moved since.
        return position
    if decision.conflict is None or position >= group.offset:
        return None
    if metadata is None:
        # Decided for the checkpoint, against another program: the group's offset goes back to where its queries are.
        # The sequence this protects against: an operator moves it from 100 to 500; the query goes on at 100, and its
        # partition goes to another member before it has got to 500: that one would start there, and 100 to 500 would
        # be skipped silently.
        return position
    # Decided for an old checkpoint, against what was completed by queries of this source: the offset stays, in the
    # new lineage's name. Else, after a restart, it would look like another lineage's progress, and the decision would
    # be turned round silently.
    return group.offset
