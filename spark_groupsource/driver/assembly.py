"""Build a query's session: the only place on the streaming path that constructs adapters."""

from __future__ import annotations

import logging
import time

from spark_groupsource.checkpoint.log import CheckpointLog, NoCheckpoint
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.driver.executor_python import misleading_variables
from spark_groupsource.driver.fast_lane import FastLane, Standby
from spark_groupsource.driver.lag_reporter import LagThread
from spark_groupsource.driver.session import Session
from spark_groupsource.executor.clients.choose import log_reading_path
from spark_groupsource.lag.measure import LibrdkafkaStandings
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.options.client_settings import librdkafka_has
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource")


def make_session(options: SourceOptions) -> tuple[Session, Standby | None]:
    """Return the session, and its `Standby` if the query's strategies know standby members; else None."""
    # Executors usually have the same reading path as the driver. Each of them logs its own.
    log_reading_path()
    warning = misleading_variables()
    if warning is not None:
        LOG.warning("%s (docs/deploying.md)", warning)
    clock = SystemClock()
    location = options.checkpoint_location
    log = CheckpointLog(location) if location is not None else NoCheckpoint()
    port = group_client(options)
    metrics = MetricsLog(options.metrics_path, options.group_id, clock)
    length = SessionLength(options)
    member = MembershipThread(options, port, clock, log, metrics, length=length)
    cluster = LibrdkafkaCluster(options, clock, time.sleep, abandoned=lambda: member.stopping)
    lag = _make_lag_thread(options, member, metrics)
    session = Session(
        options,
        clock=clock, cluster=cluster, member=member, metrics=metrics, pause=time.sleep, lag=lag, length=length,
    )  # fmt: skip
    return session, None if librdkafka_has(options.assignors) else Standby(member, clock)


def _make_lag_thread(options: SourceOptions, member: MembershipThread, metrics: MetricsLog) -> LagThread | None:
    """Return the thread that measures the lag for the metrics; None if that is not configured."""
    if options.metrics_path is None or options.metrics_lag_interval_s == 0:
        return None
    clock = SystemClock()
    standings = LibrdkafkaStandings(options, clock, time.sleep, abandoned=lambda: member.stopping)
    return LagThread(
        options.metrics_lag_interval_s,
        clock=clock, member=member, standings=standings, metrics=metrics, pause=time.sleep,
    )  # fmt: skip


def make_lane(options: SourceOptions) -> FastLane | None:
    """Return the driver's consumer for small batches; None if it is off or useless."""
    if options.fast_lane_max_offsets == 0 or (options.min_partitions or 1) > 1:
        return None
    return FastLane(options, SystemClock())
