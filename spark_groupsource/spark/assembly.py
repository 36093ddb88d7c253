"""Build a query's session: the only place on the streaming path that constructs adapters."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from spark_groupsource.checkpoint.location import is_local
from spark_groupsource.checkpoint.log import CheckpointLog, NoCheckpoint
from spark_groupsource.checkpoint.state_folder import StateFolder
from spark_groupsource.checkpoint.stop_requests import Run, StopFiles
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.driver.session import Session
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.sidecars.stop_watch import LOCAL_INTERVAL_S, STORE_INTERVAL_S, StopWatch
from spark_groupsource.spark.executor_python import misleading_variables

if TYPE_CHECKING:
    from spark_groupsource.driver.fast_lane import FastLane, Standby
    from spark_groupsource.prometheus.server import MetricsServer
    from spark_groupsource.sidecars.lag_reporter import LagThread

LOG = logging.getLogger("spark_groupsource")


def make_session(options: SourceOptions) -> tuple[Session, Standby | None]:
    """Return the session, and its `Standby` if the query's strategies know standby members; else None."""
    warning = misleading_variables()
    if warning is not None:
        LOG.warning("%s (docs/deploying.md)", warning)
    clock = SystemClock()
    location = options.checkpoint_location
    log = CheckpointLog(location) if location is not None else NoCheckpoint()
    port = group_client(options)
    metrics = MetricsLog(options.metrics_path, options.group_id, clock)
    member = MembershipThread(options, port, clock, log, metrics)
    cluster = LibrdkafkaCluster(options, clock, time.sleep, abandoned=lambda: member.stopping)
    lag = _make_lag_thread(options, member, metrics)
    run = Run.here(options.group_id, int(clock.epoch_s() * 1000))
    session = Session(
        options,
        clock=clock, cluster=cluster, member=member, metrics=metrics, pause=time.sleep, lag=lag,
        state_exists=(lambda: None) if location is None else StateFolder(location).exists,
        watch=None if location is None else _make_stop_watch(location, run, member),
        sibling=lambda: location is None or StopFiles(location).may_have_sibling(run),
        # Last: nothing after it may fail, since the port stays open until the session is stopped.
        metrics_port=_open_metrics_port(options, metrics),
    )  # fmt: skip
    if options.on_librdkafka:
        return session, None
    from spark_groupsource.driver.fast_lane import Standby  # noqa: PLC0415 - imports what reads

    return session, Standby(member, clock)


def _open_metrics_port(options: SourceOptions, metrics: MetricsLog) -> MetricsServer | None:
    """Return the port that serves the counters; None if that is not configured."""
    if options.metrics_port is None:
        return None
    # Imported here, because most queries have no such port.
    from spark_groupsource.sidecars.metrics_port import open_metrics_port  # noqa: PLC0415

    return open_metrics_port(options, options.metrics_port, metrics, SystemClock(), time.sleep)


def _make_stop_watch(location: str, run: Run, member: MembershipThread) -> StopWatch:
    """Return the thread that watches for requests to stop."""
    return StopWatch(StopFiles(location), run, member, LOCAL_INTERVAL_S if is_local(location) else STORE_INTERVAL_S)


def _make_lag_thread(options: SourceOptions, member: MembershipThread, metrics: MetricsLog) -> LagThread | None:
    """Return the thread that measures the lag for the metrics; None if that is not configured."""
    is_shown = options.metrics_path is not None or options.metrics_port is not None
    if not is_shown or options.metrics_lag_interval_s == 0:
        return None
    # Imported here, because most queries measure no lag.
    from spark_groupsource.lag.measure import LagRequests  # noqa: PLC0415
    from spark_groupsource.sidecars.lag_reporter import LagThread  # noqa: PLC0415

    clock = SystemClock()
    requests = LagRequests(options, clock, time.sleep, abandoned=lambda: member.stopping)
    return LagThread(
        options.metrics_lag_interval_s,
        clock=clock, member=member, requests=requests, metrics=metrics, pause=time.sleep,
    )  # fmt: skip


def make_lane(options: SourceOptions) -> FastLane | None:
    """Return the driver's consumer for small batches; None if it is off or useless."""
    if options.fast_lane_max_offsets == 0 or (options.min_partitions or 1) > 1:
        return None
    from spark_groupsource.driver.fast_lane import FastLane  # noqa: PLC0415 - see `import_reading`

    return FastLane(options, SystemClock())


def import_reading() -> None:
    """Import what reads records, and log the reading path: a third of all imports of this process.

    Runs on a thread of its own while the member joins the group, because joining needs none of it and mostly waits.
    """
    from spark_groupsource.driver import fast_lane  # noqa: F401, PLC0415
    from spark_groupsource.executor.clients.choose import log_reading_path  # noqa: PLC0415

    # Executors usually have the same reading path as the driver. Each of them logs its own.
    log_reading_path()
