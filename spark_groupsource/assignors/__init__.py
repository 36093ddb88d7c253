"""Assignment strategies: what one is, for those who write their own. The built-in ones are beside it."""

from spark_groupsource.assignors.interface import (
    Assignor,
    AssignorError,
    ClusterInfo,
    GroupAssignment,
    GroupMember,
    MemberSettings,
    PartitionInfo,
    RebalanceProtocol,
)

__all__ = [
    "Assignor",
    "AssignorError",
    "ClusterInfo",
    "GroupAssignment",
    "GroupMember",
    "MemberSettings",
    "PartitionInfo",
    "RebalanceProtocol",
]
