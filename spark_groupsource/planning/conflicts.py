"""Find out whether a checkpoint and the group's offset disagree: pure functions, no I/O.

There are two kinds:
- Another program has set the group's offset. The group applies, unless `onConflict=fail`: what another program commits
  to a group is what Kafka's users expect to be followed.
- The checkpoint is behind what its own lineage has committed, because an older copy of it was restored. To follow the
  group would skip what a restored table does not have, and to follow the checkpoint would read it twice. Only the user
  knows: the query fails, unless `onConflict=group` is given.

Guards against (rule R50):
1. A query commits 150. It is stopped.
2. Somebody restores an old copy of its checkpoint, which ends at 100.
3. Started at 150, the query skips what a table that was restored with the checkpoint does not have. Started at 100, it
   repeats what any other table has. Either would be silent.

Two cases look alike and are none:
- The group is behind what the checkpoint's lineage has committed: a coordinator has lost commits. The checkpoint's end
  is committed again.
- Spark runs its newest batch again, and the group is at the end of it: only the entry of the commit log was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError
from spark_groupsource.model.commit_metadata import CommitMetadata
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import OnConflict

_ANOTHER_PROGRAM = "the group's offset was set by another program"
_OWN_COMMIT = "this query has committed the group's offset: was an older checkpoint restored, or one used twice?"
_OLDER_VERSION = "an older version has decided a conflict against this checkpoint"
# Number of partitions that an error shows.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Conflict:
    """How the group's offset of a partition and a checkpoint disagree. `is_behind`: it is of the second kind."""

    positions: str
    reason: str
    is_behind: bool

    def __str__(self) -> str:
        return f"{self.positions} ({self.reason})"


def at_start(
    partition: TopicPartition, own: int, group: int, metadata: CommitMetadata | None, lineage: str
) -> Conflict | None:
    """Return the conflict of a start position. `own` is the checkpoint's end, `lineage` that of the checkpoint."""
    positions = f"{partition} group={group} checkpoint={own}"
    return _conflict(positions, metadata, lineage, differs=group != own, is_behind=group > own)


def in_replay(item: OffsetRange, group: int | None, metadata: CommitMetadata | None, lineage: str) -> Conflict | None:
    """Return the conflict of a range that runs again.

    Offsets of this lineage at or before the range's start are normal: the last commit, a pinned start position, or a
    commit that proves the membership.
    """
    if group is None or not len(item):
        return None
    # R50: Spark never runs a batch before its newest one again
    is_behind = group > item.start and group != item.end
    return _conflict(f"{item} group={group}", metadata, lineage, differs=group != item.start, is_behind=is_behind)


def _conflict(
    positions: str, metadata: CommitMetadata | None, lineage: str, *, differs: bool, is_behind: bool
) -> Conflict | None:
    if metadata is None:
        return Conflict(positions, _ANOTHER_PROGRAM, is_behind=False) if differs else None
    if metadata.instead_of == lineage and differs:
        return Conflict(positions, _OLDER_VERSION, is_behind=True)
    if metadata.lineage == lineage and is_behind:
        return Conflict(positions, _OWN_COMMIT, is_behind=True)
    # Another lineage has read further (a takeover), or our last commit was not accepted: both are normal.
    return None


def check_allowed(conflicts: Collection[Conflict], on_conflict: OnConflict | None) -> None:
    """Raise `MembershipError` if the query may not follow the group. `on_conflict` is None if it is not given."""
    behind = [conflict for conflict in conflicts if conflict.is_behind]
    # R50: only the user knows what the sink has
    if behind and on_conflict is not OnConflict.GROUP:
        raise MembershipError(errors.CHECKPOINT_BEHIND, details=details_of(behind, SHOWN))
    if conflicts and on_conflict is OnConflict.FAIL:
        raise MembershipError(errors.CONFLICT, details=details_of(conflicts, SHOWN))


def details_of(found: Iterable[object], most: int | None = None) -> str:
    """Return all that was found, such as conflicts, in one text; or `most` of it, and how much more there is."""
    texts = [str(item) for item in found]
    more = len(texts) - (len(texts) if most is None else most)
    return "; ".join(texts[:most]) + (f"; and {more} more" if more > 0 else "")
