"""Serve a query's own counters for Prometheus (option metricsPort): the same that option metricsPath writes to a file.

The port belongs to the reader process of the query. It is open from the query's start until its end.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from spark_groupsource import errors
from spark_groupsource._version import __version__
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import OptionError
from spark_groupsource.executor.clients.choose import reading_path
from spark_groupsource.membership.machine import MemberState
from spark_groupsource.metrics import EVENTS, REBALANCE_OUTCOMES, MetricsLog
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.prometheus.families import Family, Sample

if TYPE_CHECKING:
    from spark_groupsource.prometheus.server import MetricsServer

LOG = logging.getLogger(__name__)

# Seconds for which a query that starts waits for a port in use: the query that it replaces may be about to end.
_WAIT_S = 10.0
_RETRY_S = 0.2

_GROUP = ("group",)
_PARTITION = ("group", "topic", "partition")


def _gauge(name: str, meaning: str, labels: tuple[str, ...] = _GROUP) -> Family:
    return Family(name, "gauge", meaning, labels)


def _counter(name: str, meaning: str, labels: tuple[str, ...] = _GROUP) -> Family:
    return Family(name, "counter", meaning, labels)


def _histogram(name: str, meaning: str) -> Family:
    return Family(name, "histogram", meaning, _GROUP)


_INFO = _gauge(
    "groupkafka_info",
    "Always 1. `lineage` is that of the checkpoint; `reading_path` is what gathers records in the driver's process:"
    " `c`, or the slower `python`.",
    ("group", "version", "client_id", "lineage", "reading_path", "protocol"),
)
_STATE = _gauge(
    "groupkafka_state", "1 for the member's present [state](../states.md), 0 for the others.", ("group", "state")
)
_COORDINATOR = _gauge("groupkafka_coordinator_known", "0 while the client searches for the group's coordinator.")
_ASSIGNED = _gauge("groupkafka_assigned_partitions", "Number of partitions that the member owns now.")
_STANDBY = _gauge(
    "groupkafka_standby_partitions", "Number of partitions that the member reads when their active member leaves."
)
_ASSIGNMENTS = _counter("groupkafka_assignments_total", "Assignments with new partitions.")
_REBALANCES = _counter(
    "groupkafka_rebalances_total",
    "Number of times partitions left the member, by how: the outcomes of counter `rebalances`.",
    ("group", "outcome"),
)
_DRAINS = _histogram("groupkafka_drain_seconds", "How long a revoke waited for the batch in flight.")
_BATCHES = _counter("groupkafka_batches_completed_total", "Completed batches.")
_BATCH_RECORDS = _histogram("groupkafka_batch_records", "Offsets per completed batch.")
_BATCH_SECONDS = _histogram("groupkafka_batch_seconds", "From the plan of a completed batch until its end was known.")
_READ = _counter(
    "groupkafka_batches_read_total",
    "Completed batches by the process that read them: `driver` (small ones) or `executors`.",
    ("group", "reader"),
)
_BYTES = _counter(
    "groupkafka_driver_read_bytes_total",
    "Size of the Arrow batches that the driver has read itself. The size of what executors read is not known to the"
    " driver; Spark's SQL page shows it.",
)
_COMMITS = _counter(
    "groupkafka_commits_total",
    "Commits by `result`: accepted or refused by the coordinator, or retried, which means sent again.",
    ("group", "result"),
)
_BEHIND = _gauge("groupkafka_commits_behind", "1 while batches continue although commits fail.")
_REPEATED = _counter(
    "groupkafka_records_repeated_total",
    "Upper bound of records that the next owner reads again: the member lost their partitions before a commit of them"
    " was confirmed.",
)
_LOST = _counter("groupkafka_records_lost_total", "Offsets missing on the broker, as counter `records_lost`.")
_EVENTS = _counter("groupkafka_events_total", "[Events](#events), by name.", ("group", "event"))
_LAST = _gauge(
    "groupkafka_last_event_timestamp_seconds",
    "When an event happened last, in seconds since the epoch. Missing for an event that has not happened.",
    ("group", "event"),
)
_LAG = _gauge(
    "groupkafka_lag_records",
    "Unread records of a partition that the member owns, from the group's offset. Missing while they cannot be"
    " measured: the brokers are away, or the partition has no leader.",
    _PARTITION,
)
_LAG_SECONDS = _gauge(
    "groupkafka_lag_seconds",
    "Age of the next unread record. Missing without one, or if it is not known, as with a time more than 5 minutes in"
    " the future.",
    _PARTITION,
)
_TIME_TO_LOSS = _gauge(
    "groupkafka_time_to_data_loss_seconds",
    "Time until `retention.ms` lets Kafka remove that record. Missing if there is none, or it is not known.",
    _PARTITION,
)

# Every metric of a query, in the order of the reference page. A test checks that the list is complete.
QUERY_METRICS: tuple[Family, ...] = (
    _INFO, _STATE, _COORDINATOR, _ASSIGNED, _STANDBY, _ASSIGNMENTS, _REBALANCES, _DRAINS, _BATCHES, _BATCH_RECORDS,
    _BATCH_SECONDS, _READ, _BYTES, _COMMITS, _BEHIND, _REPEATED, _LOST, _EVENTS, _LAST, _LAG, _LAG_SECONDS,
    _TIME_TO_LOSS,
)  # fmt: skip


def open_metrics_port(
    options: SourceOptions, port: int, log: MetricsLog, clock: Clock, pause: Callable[[float], object]
) -> MetricsServer:
    """Serve the counters of a query on the port of option metricsPort.

    Raises `OptionError` without prometheus_client, or if the port stays in use.
    """
    try:
        # This extra may be missing, and nothing else on the driver needs it.
        from spark_groupsource.prometheus.server import MetricsServer, is_about_port  # noqa: PLC0415
    except ImportError as error:
        raise OptionError(errors.METRICS_NOT_INSTALLED, option="metricsPort", reason=str(error)) from None
    address, deadline = options.metrics_address, Deadline(clock, _WAIT_S)
    while True:
        try:
            server = MetricsServer(address, port, lambda: query_samples(options, log))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or deadline.expired():
                option = "metricsPort" if is_about_port(error) else "metricsAddress"
                reason = error.strerror or str(error)
                raise OptionError(
                    errors.LISTENING_FAILED, option=option, address=address, port=port, reason=reason
                ) from None
            pause(_RETRY_S)
        else:
            LOG.info("metrics for Prometheus: group=%s address=%s port=%d", options.group_id, address, server.port)
            return server


def query_samples(options: SourceOptions, log: MetricsLog) -> Iterator[Sample]:
    """Return all metrics of a query. For any thread: the log replaces what it reads as a whole."""
    group, counters, totals = options.group_id, log.counters, log.totals
    path = "c" if "in C" in reading_path() else "python"
    protocol = options.group_protocol.value
    yield _INFO.of(1, group, __version__, options.client_id or "", log.lineage, path, protocol)
    for state in MemberState:
        yield _STATE.of(float(state.name == log.state), group, state.name)
    yield _COORDINATOR.of(float(counters["coordinator_known"]), group)
    yield _ASSIGNED.of(counters["assigned_partitions"], group)
    yield _STANDBY.of(counters["standby_partitions"], group)
    yield _ASSIGNMENTS.of(counters["assignments"], group)
    for outcome in REBALANCE_OUTCOMES:
        yield _REBALANCES.of(counters["rebalances"].get(outcome, 0), group, outcome)
    yield _DRAINS.of(totals.drain_seconds, group)
    yield _BATCHES.of(counters["batches_completed"], group)
    yield _BATCH_RECORDS.of(totals.batch_records, group)
    yield _BATCH_SECONDS.of(totals.batch_seconds, group)
    for reader, batches in log.batches_read.items():
        yield _READ.of(batches, group, reader)
    yield _BYTES.of(log.driver_read_bytes, group)
    for result, name in {"accepted": "done", "refused": "refused", "retried": "retried"}.items():
        yield _COMMITS.of(counters[f"commits_{name}"], group, result)
    yield _BEHIND.of(float(totals.commits_behind), group)
    yield _REPEATED.of(counters["records_repeated"], group)
    yield _LOST.of(log.records_lost, group)
    for event in EVENTS:
        yield _EVENTS.of(totals.counts[event], group, event)
        if (last_s := totals.last_s[event]) is not None:
            yield _LAST.of(last_s, group, event)
    yield from _lag_samples(group, log)


def _lag_samples(group: str, log: MetricsLog) -> Iterator[Sample]:
    """Return the lag of the partitions that the member still owns."""
    owned = log.owned
    for topic, number, records, behind_s, safe_s in log.totals.lag:
        if TopicPartition(topic, number) not in owned:
            continue
        labels = (group, topic, str(number))
        yield _LAG.of(records, *labels)
        if behind_s is not None:
            yield _LAG_SECONDS.of(behind_s, *labels)
        if safe_s is not None:
            yield _TIME_TO_LOSS.of(safe_s, *labels)
