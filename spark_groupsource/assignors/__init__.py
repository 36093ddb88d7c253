"""Define assignment strategies: the interface for your own, and the built-in ones."""

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
