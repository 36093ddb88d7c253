"""Settings of a simulated group and of the brokers' version."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOLS = ("eager", "cooperative", "kip848")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """What the members and their coordinator are configured with. Times are in seconds."""

    protocol: str  # one of PROTOCOLS
    session_s: float = 6.0
    heartbeat_s: float = 2.0
    # max.poll.interval.ms, which is also the rebalance timeout.
    rebalance_s: float = 30.0
    # Classic: the client joins again while a revoke is queued or runs, when a topic has got partitions (rule R85).
    joins_in_callback: bool = True
    # Whether the coordinator answers ConsumerGroupDescribe.
    describes: bool = True
    # KIP-1263 (Kafka 4.3): the least time between two computations of the target assignment.
    assignment_delay_s: float = 0.0
    # KIP-1251 (Kafka 4.3): a commit with an older member epoch is accepted for partitions that the member had by then.
    per_partition_epochs: bool = False
    # group.initial.rebalance.delay.ms
    initial_delay_s: float = 0.1
