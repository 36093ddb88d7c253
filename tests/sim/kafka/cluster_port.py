"""The product's requests to the cluster outside of the group, on the simulated brokers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from spark_groupsource import errors
from spark_groupsource.cluster.port import CONFIRM_S, Edge, LogEnd, LogSurvey, TopicInfo
from spark_groupsource.errors import KafkaUnavailableError, OptionError
from spark_groupsource.model.offsets import NextRecords, TopicPartition, same_topic
from spark_groupsource.options.model import SourceOptions, Subscription
from tests.sim.kafka.logs import Cluster, Log
from tests.sim.world import World

# Seconds between two tries of a request, and for how long brokers that do not answer are asked
# (cluster/admin.py, OUTAGE_TIMEOUT_S).
_AGAIN_S = 0.3
_OUTAGE_S = 120.0


class Coordinator(Protocol):
    """What this port needs of the group's coordinator."""

    session_s: float

    def reachable(self) -> bool:
        """Return whether it answers."""

    def described(self) -> dict[str, frozenset[TopicPartition]] | None:
        """Return the partitions of each member, in a KIP-848 group; None if it does not describe groups."""

    def confirmed(self) -> bool:
        """Return whether all members have confirmed their newest assignments."""


class SimCluster:
    """`cluster.port.ClusterPort` of one process. `abandoned()`: whether its member stops, which ends all waits."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        coordinator: Coordinator,
        options: SourceOptions,
        abandoned: Callable[[], bool],
    ) -> None:
        self._world, self._cluster, self._coordinator = world, cluster, coordinator
        self._options, self._abandoned = options, abandoned

    # --- waits

    def _ask(self, request: str) -> None:
        """Make one round trip; wait for brokers that do not answer."""
        world = self._world
        world.sleep(world.rng.uniform(0.0003, 0.004) if world.rng.random() < 0.97 else world.rng.uniform(0.01, 0.4))
        if self._cluster.slow_s and world.rng.random() < 0.3:
            world.saw("a broker answers late")
            world.sleep(world.rng.uniform(0.0, self._cluster.slow_s))
        self._wait_for(lambda: self._cluster.down_until <= world.now, request, "the brokers do not answer")

    def _wait_for(self, ready: Callable[[], bool], request: str, reason: str, *, once: bool = False) -> None:
        until = self._world.now + _OUTAGE_S
        while not ready():
            if once or self._abandoned() or self._world.now > until:
                raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request=request, reason=reason)
            self._world.sleep(_AGAIN_S)

    def _wait_known(self, partitions: Iterable[TopicPartition], request: str) -> None:
        """Ask again for unknown topics and partitions during `CONFIRM_S` (cluster/admin.py)."""
        wanted = sorted(partitions)
        until = self._world.now + CONFIRM_S
        while unknown := next((p for p in wanted if not self._knows(p)), None):
            if self._world.now >= until or self._abandoned():
                raise self._unknown(unknown.topic)
            self._world.sleep(_AGAIN_S)
            self._ask(request)

    def _knows(self, partition: TopicPartition) -> bool:
        topic = self._cluster.topic(partition.topic)
        return topic is not None and partition.partition < len(topic.logs)

    def _unknown(self, topic: str) -> OptionError:
        subscription = self._options.subscription
        return OptionError(errors.TOPIC_UNKNOWN, option=subscription.option, value=subscription.value, topic=topic)

    # --- topics

    def matching_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """See `ClusterPort`."""
        if subscription.pattern is None:
            return subscription.topics
        self._ask("ListTopics")
        matches = re.compile(subscription.pattern).fullmatch
        return tuple(sorted(name for name in self._cluster.topics if matches(name)))

    def describe(self, topics: Iterable[str], *, or_known: bool = False) -> dict[str, TopicInfo]:
        """See `ClusterPort`."""
        names = sorted(topics)
        if not names:
            return {}
        self._ask("DescribeTopics")
        self._wait_known([TopicPartition(name, 0) for name in names], "DescribeTopics")
        return self._described(names)

    def _described(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        found = {}
        for name in sorted(names):
            # A broker that lags may know nothing of a new topic: the client asks again.
            topic = self._cluster.topic(name) or self._cluster.topics.get(name)
            if topic is None:
                raise self._unknown(name)
            found[name] = TopicInfo(topic.id, len(topic.logs))
        return found

    def missing_topics(self, topics: Iterable[str]) -> set[str]:
        """See `ClusterPort`."""
        names = sorted(set(topics))
        if names:
            self._ask("ListTopics")
        return {name for name in names if name not in self._cluster.topics}

    def missing_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """See `ClusterPort`."""
        if topic_ids:
            self._ask("ListTopics")
        found = set()
        for partition, topic_id in sorted(topic_ids.items()):
            topic = self._cluster.topic(partition.topic)
            if topic is not None and partition.partition >= len(topic.logs) and not same_topic(topic.id, topic_id):
                found.add(partition)
        return found

    # --- logs

    def _log(self, partition: TopicPartition) -> Log:
        topic = self._cluster.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.logs):
            raise self._unknown(partition.topic)
        return topic.logs[partition.partition]

    def _edge(self, partition: TopicPartition, edge: Edge | int) -> LogEnd | None:
        log = self._log(partition)
        if isinstance(edge, int):
            raise NotImplementedError("the simulated records have no times")
        return LogEnd(log.end if edge is Edge.LATEST else log.begin, log.epoch)

    def log_offsets(
        self, wanted: Mapping[TopicPartition, Edge | int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, LogEnd | None]:
        """See `ClusterPort`."""
        if not wanted:
            return {}
        self._ask("ListOffsets")
        self._wait_known(wanted, "ListOffsets")
        return {partition: self._edge(partition, edge) for partition, edge in sorted(wanted.items())}

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """See `ClusterPort`."""
        wanted = sorted(partitions)
        if not wanted:
            return LogSurvey({}, {}, {})
        ends = self.log_offsets(dict.fromkeys(wanted, Edge.LATEST))
        self._ask("ListOffsets")
        beginnings = {partition: self._edge(partition, Edge.EARLIEST) for partition in wanted}
        return LogSurvey(ends, beginnings, self._described({partition.topic for partition in wanted}))

    def diverged(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int | None]:
        """See `ClusterPort`."""
        self._ask("OffsetForLeaderEpoch")
        self._wait_known(positions, "OffsetForLeaderEpoch")
        found: dict[TopicPartition, int | None] = {}
        for partition, (offset, epoch) in sorted(positions.items()):
            end = self._log(partition).end_of_epoch(epoch)
            found[partition] = end if end < offset else None
        return found

    def next_records(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, NextRecords]:
        """See `ClusterPort`."""
        self._ask("Fetch")
        # The client may find no record in time.
        late = self._world.rng.random() < 0.05
        return {} if late else {p: NextRecords(offset, 100.0) for p, offset in positions.items()}

    # --- the group

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `ClusterPort`."""
        return {}

    def members(
        self, group: str, *, once: bool = False, confirmed: bool = False
    ) -> dict[str, frozenset[TopicPartition]] | None:
        """See `ClusterPort`."""
        self._ask("ConsumerGroupDescribe")
        self._wait_for(self._coordinator.reachable, "ConsumerGroupDescribe", "no coordinator answers", once=once)
        described = self._coordinator.described()
        if confirmed and described is not None and not self._coordinator.confirmed():
            return dict.fromkeys(described, frozenset())
        return described

    def group_session_s(self, group: str) -> float | None:
        """See `ClusterPort`."""
        self._ask("DescribeConfigs")
        return self._coordinator.session_s

    def close(self) -> None:
        """See `ClusterPort`."""
