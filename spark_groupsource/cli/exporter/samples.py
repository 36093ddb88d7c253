"""Define the metrics of consumer groups, and compute them from one reading of a group. Pure.

Names and labels are those of kafka-lag-exporter, so that its dashboards and alerts keep working. Instead of its
estimate of the lag in seconds there is the age of the next unread record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from spark_groupsource.cli.group.view import GroupDescription
from spark_groupsource.lag.model import Lag, LagInput, lag_of, total
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.prometheus.families import Family, Sample

_GROUP = ("cluster_name", "group")
_PARTITION = ("cluster_name", "topic", "partition")
_OWNED = (*_GROUP, "topic", "partition", "member_host", "consumer_id", "client_id")
# States of a group, as the coordinator reports them: classic groups, then those of KIP-848.
_STATES = (
    "Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Unknown",
)  # fmt: skip


def _gauge(name: str, labels: tuple[str, ...], meaning: str) -> Family:
    return Family(name, "gauge", meaning, labels)


_OFFSET = _gauge("kafka_consumergroup_group_offset", _OWNED, "Committed offset of the group.")
_LAG = _gauge(
    "kafka_consumergroup_group_lag", _OWNED,
    "Offsets between the committed offset and the end of the log, without those that the broker has lost already;"
    " without a committed offset, all that the log has.",
)  # fmt: skip
_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_lag_seconds", _OWNED,
    "Age of the next unread record; 0 if there is none. Missing if the age is not known.",
)  # fmt: skip
_MAX_LAG = _gauge("kafka_consumergroup_group_max_lag", _GROUP, "Largest lag of a partition, in offsets.")
_MAX_LAG_SECONDS = _gauge(
    "kafka_consumergroup_group_max_lag_seconds", _GROUP,
    "Age of the oldest unread record whose age is known; 0 if nothing is unread. Missing if records are unread and no"
    " age is known.",
)  # fmt: skip
_SUM_LAG = _gauge("kafka_consumergroup_group_sum_lag", _GROUP, "Lag of all partitions together, in offsets.")
_TOPIC_SUM_LAG = _gauge(
    "kafka_consumergroup_group_topic_sum_lag", (*_GROUP, "topic"), "Lag of a topic's partitions together, in offsets."
)
_LATEST = _gauge("kafka_partition_latest_offset", _PARTITION, "End of the log.")
_EARLIEST = _gauge("kafka_partition_earliest_offset", _PARTITION, "Beginning of the log.")

_TIME_TO_LOSS = _gauge(
    "kafka_consumergroup_group_time_to_data_loss_seconds", _OWNED,
    "Time until `retention.ms` lets Kafka remove the next unread record. Missing without unread records, without such a"
    " limit, and if the record's age or the topic's configuration cannot be read. Not in kafka-lag-exporter.",
)  # fmt: skip
_MIN_TIME_TO_LOSS = _gauge(
    "kafka_consumergroup_group_min_time_to_data_loss_seconds", _GROUP,
    "The shortest such time of the group's partitions. Missing if none is known. Not in kafka-lag-exporter.",
)  # fmt: skip
_LOST = _gauge(
    "kafka_consumergroup_group_lost_offsets", _OWNED,
    "Unread offsets that are already missing on the broker, if there are any. Not in kafka-lag-exporter.",
)  # fmt: skip
_AGE_UNKNOWN = _gauge(
    "kafka_consumergroup_group_age_unknown_partitions", _GROUP,
    "Number of partitions with unread records whose age is not known: no right READ on the topic, no record within"
    " 10 s, or a record without a timestamp, or with one more than 5 minutes in the future; and of partitions of which"
    " no lag is known: they have no leader, or the group's offset is beyond the log's end. Not in kafka-lag-exporter.",
)  # fmt: skip
_MEMBERS = _gauge("kafka_consumergroup_group_members", _GROUP, "Number of live members. Not in kafka-lag-exporter.")
_STATE = _gauge(
    "kafka_consumergroup_group_state", (*_GROUP, "state"),
    "1 for the group's present state, 0 for the others. Assigning and Reconciling (KIP-848) are shown as Unknown. Not"
    " in kafka-lag-exporter.",
)  # fmt: skip
_UP = _gauge(
    "kafka_consumergroup_group_up", _GROUP,
    "1 if the last attempt to measure the group succeeded, else 0; the group then has no other metrics. Not in"
    " kafka-lag-exporter.",
)  # fmt: skip
_MEASURED = _gauge(
    "kafka_consumergroup_group_measured_timestamp_seconds", _GROUP,
    "When the group was measured, in seconds since the epoch. Not in kafka-lag-exporter.",
)  # fmt: skip
_ROUND_SECONDS = _gauge(
    "groupkafka_exporter_round_seconds", ("cluster_name",),
    "How long the last round over all groups took (`kafka_consumergroup_poll_time_ms` of kafka-lag-exporter).",
)  # fmt: skip

# Every metric of the exporter, in the order of the reference page. A test checks that the list is complete.
GROUP_METRICS: tuple[Family, ...] = (
    _OFFSET, _LAG, _LAG_SECONDS, _MAX_LAG, _MAX_LAG_SECONDS, _SUM_LAG, _TOPIC_SUM_LAG, _LATEST, _EARLIEST,
    _TIME_TO_LOSS, _MIN_TIME_TO_LOSS, _LOST, _AGE_UNKNOWN, _MEMBERS, _STATE, _UP, _MEASURED, _ROUND_SECONDS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupReading:
    """A group at one moment. `description` is None if the broker cannot describe groups (embedded)."""

    group: str
    at_s: float
    inputs: tuple[LagInput, ...]
    description: GroupDescription | None = None


def group_samples(cluster: str, reading: GroupReading) -> Iterator[Sample]:
    """Return the metrics of one group that was measured."""
    now_ms = int(reading.at_s * 1000)
    lags = [lag_of(one, now_ms) for one in reading.inputs]
    # The first owner, if the group's strategy has given a partition to several.
    owners = {} if reading.description is None else reading.description.owners()
    name = (cluster, reading.group)

    def labels(partition: TopicPartition) -> tuple[str, ...]:
        owner = next(iter(owners.get(partition, ())), None)
        member = ("", "", "") if owner is None else (owner.host, owner.member_id, owner.client_id)
        return (*name, partition.topic, str(partition.partition), *member)

    for lag in lags:
        yield from _partition_samples(labels(lag.partition), lag)
    records, _, behind_s, safe_s = total(lags)
    yield _MAX_LAG.of(max((lag.records or 0 for lag in lags), default=0), *name)
    unknown = sum(not lag.age_known for lag in lags)
    if behind_s is not None or not unknown:
        yield _MAX_LAG_SECONDS.of(behind_s or 0.0, *name)
    yield _SUM_LAG.of(records, *name)
    for topic in sorted({lag.partition.topic for lag in lags if lag.end is not None}):
        yield _TOPIC_SUM_LAG.of(total(lag for lag in lags if lag.partition.topic == topic)[0], *name, topic)
    if safe_s is not None:
        yield _MIN_TIME_TO_LOSS.of(safe_s, *name)
    yield _AGE_UNKNOWN.of(unknown, *name)
    yield from _state_samples(name, reading.description)
    yield _MEASURED.of(reading.at_s, *name)


def status_samples(cluster: str, measured: Mapping[str, bool], round_s: float | None) -> Iterator[Sample]:
    """Return which groups were measured, and how long the last round took."""
    for group, is_measured in measured.items():
        yield _UP.of(float(is_measured), cluster, group)
    if round_s is not None:
        yield _ROUND_SECONDS.of(round_s, cluster)


def log_samples(cluster: str, readings: Iterable[GroupReading]) -> Iterator[Sample]:
    """Return the ends of all logs that the groups read: each log once, as it was measured last."""
    found: dict[TopicPartition, tuple[int, int]] = {}
    for reading in sorted(readings, key=lambda reading: reading.at_s):
        found |= {one.partition: (one.beginning, one.end) for one in reading.inputs if one.end is not None}
    for partition, (beginning, end) in sorted(found.items()):
        labels = (cluster, partition.topic, str(partition.partition))
        yield _EARLIEST.of(beginning, *labels)
        yield _LATEST.of(end, *labels)


def _partition_samples(labels: tuple[str, ...], lag: Lag) -> Iterator[Sample]:
    if lag.committed is not None:
        yield _OFFSET.of(lag.committed, *labels)
    if lag.records is not None:
        yield _LAG.of(lag.records, *labels)
    if lag.age_known:
        yield _LAG_SECONDS.of(lag.behind_s or 0.0, *labels)
    if lag.safe_s is not None:
        yield _TIME_TO_LOSS.of(lag.safe_s, *labels)
    if lag.lost:
        yield _LOST.of(lag.lost, *labels)


def _state_samples(name: tuple[str, str], description: GroupDescription | None) -> Iterator[Sample]:
    if description is None:
        return
    yield _MEMBERS.of(len(description.members), *name)
    present = description.state or "Unknown"
    for state in dict.fromkeys((*_STATES, present)):
        yield _STATE.of(float(state == present), *name, state)
