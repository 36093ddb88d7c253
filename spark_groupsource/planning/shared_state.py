"""Find out whether state goes wrong because queries share a group: pure functions, no I/O.

A window, a join of two streams and dropDuplicates keep state. Spark has it in the folder `state` of one query's
checkpoint, and it does not move with a partition. So state is wrong in two ways:
- It lacks records: a query with state gets a partition beyond the end in its own checkpoint, because others have
  completed what lies between.
- A query would complete records of a partition that a query with state reads, which then lacks these records. The text
  of the group's offset has the mark of that query. A new query ends; one that shares the group already reports it.

Offsets are compared with the checkpoint, not names of lineages: conflicts and resets rename a lineage, an idle
partition keeps an old name, and a query that was handed over to may have committed a start, but no batch.

Guards against (rule R115):
1. A counts keys in windows, and has read orders-0 to 100. A is killed.
2. B takes orders-0 over and completes [100, 150).
3. A starts again at 150. Its counts lack [100, 150), for ever and without a word.

Guards against (rule R116):
1. A, with state, has read orders-0 to 100. Somebody starts B in the same group, with a new checkpoint.
2. The group gives orders-0 to B, which completes [100, 150) and stops.
3. A gets orders-0 back, and can only fail.

Guards against (rule R116, a partition without a mark):
1. A, with state, has read orders-0 to 100. orders-1 is empty, or was added a moment ago: no commit has marked it.
2. B is new, gets orders-1 only, and completes what is written there.
3. A gets orders-1 back, and can only fail.

Not tripped, because nothing lies between the checkpoint and the group, or the user has moved the group:
- restart, SIGKILL, a moved checkpoint, a static member: the group is at the checkpoint's end, or behind it;
- growth: the group has no offset of a new partition, or its pin;
- a handover and back without a batch: the group's offset has not moved;
- `reset` and `adopt`: the group's offset is a start, and no batch was completed there since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_groupsource.model.commit_metadata import CommitMetadata
from spark_groupsource.model.offsets import TopicPartition

LACKS_RECORDS = "The state of this query lacks records that other queries have completed."
BREAKS_STATE = "A query with state reads these partitions, and would lack the records that this query completes."


@dataclass(frozen=True, slots=True)
class ReadByOthers:
    """Offsets [start, end) of a partition that others have completed beyond the query's own checkpoint; may be empty.

    `lineage`: who has committed `end`. `has_state`: whether a query with state reads the partition. After a reset
    `start` is that of the newest batch only.
    """

    partition: TopicPartition
    start: int
    end: int
    lineage: str
    has_state: bool

    def __str__(self) -> str:
        kind = "a query with state" if self.has_state else "a query"
        what = f"[{self.start}, {self.end}) is complete" if self.start < self.end else f"is at {self.end}"
        return f"{self.partition} {what} in {kind}, lineage={self.lineage}"


def read_by_others(
    partition: TopicPartition, own: int | None, group: int, metadata: CommitMetadata | None
) -> ReadByOthers | None:
    """Return what others have completed of a partition that starts at the group's offset. None if that is not known.

    `own` is the end in the checkpoint; None if it has none, or a reset has made it void. Without an end the pin counts.
    After a reset the group's offset is no end of a batch: only the range in the metadata shows one since.

    Guards against (a reset taken for a batch):
    1. The group is reset from 500 to 100. The pin is 0.
    2. A query with state restarts. It gets orders-0, and completes a batch, so its checkpoint knows the reset.
    3. Then it gets orders-1, whose end the reset has made void: by the pin, others would have completed [0, 100).
    """
    # The offset of another program is no batch of any query of this source.
    if metadata is None:
        return None
    if own is not None:
        start = own
    elif metadata.reset is None:
        start = metadata.pin.offset
    else:
        start = metadata.start if metadata.end == group else group
    return ReadByOthers(partition, min(start, group), group, metadata.lineage, metadata.has_state)


def lacking(found: Iterable[ReadByOthers | None]) -> list[ReadByOthers]:
    """Return what the state of a query with state lacks."""
    return [item for item in found if item is not None and item.start < item.end]


def broken(found: Iterable[ReadByOthers | None]) -> list[ReadByOthers]:
    """Return the partitions of queries with state."""
    return [item for item in found if item is not None and item.has_state]
