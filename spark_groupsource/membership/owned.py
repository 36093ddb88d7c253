"""What the state machine keeps of one of its partitions: offsets of the group, of the plan, and of what is complete.

Pure, as the machine is, which alone changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, overruled


@dataclass(slots=True)
class Owned:
    """A partition of this member. `group` is the group's offset as last fetched or acknowledged.

    `start` is where planning begins, None until the group holds it. It is behind the group's offset only when a
    conflict was decided in the checkpoint's favour.
    """

    group: GroupOffset | None = None
    start: int | None = None
    completed: CommitItem | None = None

    def overrules(self, item: CommitItem) -> bool:
        """Whether what the group holds is not to be moved on by this item."""
        return self.group is not None and overruled(item, self.group, established=self.start is not None)

    def pending(self) -> CommitItem | None:
        """The completed offset that the group does not have yet; never one behind the group's."""
        if self.completed is None or self.group is None:
            return None
        known = -1 if self.group.offset is None else self.group.offset
        return self.completed if self.completed.offset > known else None

    def position(self) -> int | None:
        """The next offset to plan, None until the group has acknowledged one."""
        if self.start is None:
            return None
        return max(self.start, self.completed.offset if self.completed else 0)
