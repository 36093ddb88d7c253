"""Hold what all parts of a query have in common: options, ports, and what is known of partitions. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_groupsource.clock import Clock
from spark_groupsource.cluster.port import ClusterPort
from spark_groupsource.driver.data_loss import LossReporter
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.options.model import SourceOptions


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What the parts of a query share. The session makes it. Main thread only, apart from what the member allows.

    - `pause`: waits for some seconds.
    - `state`, `losses`: what is known of partitions and topics, and what is reported as lost of them.
    """

    options: SourceOptions
    clock: Clock
    cluster: ClusterPort
    member: MembershipThread
    metrics: MetricsLog
    pause: Callable[[float], object]
    state: QueryState
    losses: LossReporter
