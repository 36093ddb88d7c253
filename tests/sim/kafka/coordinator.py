"""What all simulated group coordinators share: offsets, commits, the group's records, metadata, and being down.

A coordinator knows requests only: `receive` gets one, with the client id of its header and a function that sends the
answer. Each rule names the Kafka method that it copies (apache/kafka at 1eb7644349cb, package
org.apache.kafka.coordinator.group; KIP-1251 and KIP-1263 are later: from their texts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from tests.faults.history import Commit, GroupRecord
from tests.sim.kafka.logs import Cluster
from tests.sim.kafka.protocol import CommitAnswer, Error, FetchAnswer, OffsetCommit, OffsetFetch
from tests.sim.kafka.settings import GroupSettings
from tests.sim.world import World

Reply = Callable[[Any], None]

# max.message.bytes of __consumer_offsets and offset.metadata.max.bytes; a record has the names and numbers, too.
MESSAGE_MAX_BYTES, METADATA_MAX_BYTES = 1_048_588, 4096
_RECORD_BYTES = 80


def short(partitions: Iterable[Any]) -> str:
    """Return partitions for the trace."""
    return "[" + " ".join(f"{p[0]}-{p[1]}" for p in sorted(partitions)) + "]"


def short_items(items: Iterable[CommitItem]) -> str:
    """Return a commit's items for the trace."""
    return " ".join(f"{item.partition}={item.offset}" for item in items)


def _bytes_of(item: CommitItem) -> int:
    return _RECORD_BYTES + len(item.partition.topic) + len(item.metadata)


class Timer:
    """A timeout that can be set again at no cost. Does nothing while the coordinator is down."""

    def __init__(self, coordinator: Coordinator, run: Callable[[], None]) -> None:
        self._coordinator, self._run = coordinator, run
        self._deadline: float | None = None
        self._next: float | None = None

    def set(self, seconds: float) -> None:
        """Expire after that time."""
        self._deadline = self._coordinator.world.now + seconds
        self._schedule()

    def cancel(self) -> None:
        """Do not expire."""
        self._deadline = None

    def _schedule(self) -> None:
        deadline = self._deadline
        if deadline is not None and (self._next is None or self._next > deadline):
            self._next = deadline
            self._coordinator.world.at(deadline, lambda: self._fire(deadline))

    def _fire(self, planned: float) -> None:
        if self._next != planned:
            return
        self._next = None
        if self._deadline is None or not self._coordinator.reachable():
            return
        if self._deadline > self._coordinator.world.now:
            self._schedule()
            return
        self._deadline = None
        self._run()


class Coordinator:
    """A group coordinator, and the group of which it takes care."""

    def __init__(self, world: World, cluster: Cluster, settings: GroupSettings) -> None:
        self.world, self.cluster, self.settings = world, cluster, settings
        self.session_s = settings.session_s
        self.offsets: dict[TopicPartition, GroupOffset] = {}
        self.commits: list[Commit] = []
        self.records: list[GroupRecord] = []
        # The partitions of a record with the ids of their topics, by its position; none in a classic group.
        self.parts: dict[int, frozenset[tuple[str, int]]] = {}
        self.down_until = 0.0
        # How often it has moved to another broker.
        self.moves = 0
        # Faults. The first two and the last are chances.
        self.lose_answer = self.lose_request = 0.0
        self.answer_delay_s = 0.0
        self.lose_heartbeat_answer = 0.0
        # Called when all connections to it break.
        self.listeners: list[Callable[[], None]] = []
        # The topics as its broker knows them: name -> (id, partitions). Changes arrive a little later, in order.
        self.image: dict[str, tuple[str, int]] = {}
        # The names of all topic ids that there ever were.
        self.names: dict[str, str] = {}
        self._is_loaded = True
        self._position = 0
        self._image_at = 0.0
        for name in list(cluster.topics):
            self._learn(name)
        cluster.on_change.append(self._topic_changed)

    # --- the protocol's own part

    def handle(self, client_id: str, request: Any, reply: Reply) -> None:
        """Handle a request of the group's protocol."""
        raise NotImplementedError

    def commit_error(self, request: OffsetCommit) -> Error | None:
        """Return why a whole commit is refused."""
        raise NotImplementedError

    def load(self) -> None:
        """Take over the group from its log, on another broker."""
        raise NotImplementedError

    def image_changed(self, name: str) -> None:
        """Take notice of a changed topic."""

    def described(self) -> dict[str, frozenset[TopicPartition]] | None:
        """Return the members with their partitions, as ConsumerGroupDescribe has them. None if it does not answer."""
        return None

    def confirmed(self) -> bool:
        """Return whether all members have confirmed their newest assignments (cluster/admin.py, `_is_confirmed`)."""
        raise NotImplementedError

    # --- being reached

    def reachable(self) -> bool:
        """Return whether it answers."""
        return self.down_until <= self.world.now

    def down(self, seconds: float) -> None:
        """Be unavailable for a while, then go on on another broker, from the group's log."""
        self.down_until = max(self.down_until, self.world.now + seconds)
        self.moves += 1
        self._is_loaded = False
        moves = self.moves
        for listener in list(self.listeners):
            listener()
        self.world.at(self.down_until, lambda: self._back(moves))

    def _back(self, moves: int) -> None:
        if moves == self.moves and not self._is_loaded:
            self._is_loaded = True
            self.world.say("coord", "is back")
            self.load()

    def heal(self) -> None:
        """End all faults."""
        self.lose_answer = self.lose_request = self.lose_heartbeat_answer = self.answer_delay_s = 0.0
        if not self.reachable():
            self.down_until = self.world.now
            self._back(self.moves)

    def latency(self) -> float:
        """Return how long a message takes."""
        rng = self.world.rng
        late = rng.uniform(0.0, self.answer_delay_s) if self.answer_delay_s else 0.0
        return late + (rng.uniform(0.0005, 0.006) if rng.random() < 0.95 else rng.uniform(0.01, 0.3))

    def receive(self, client_id: str, request: Any, reply: Reply) -> None:
        """Handle a request."""
        if not self.reachable():
            return
        if isinstance(request, OffsetCommit):
            reply(self._commit(client_id, request))
        elif isinstance(request, OffsetFetch):
            reply(FetchAnswer({p: self.offsets.get(p, GroupOffset(None)) for p in request.partitions}))
        else:
            self.handle(client_id, request, reply)

    # --- the group's log

    def record(self, client_id: str, member: str, event: str, partitions: Iterable[TopicPartition] = ()) -> None:
        """Write a record of a member."""
        self._position += 1
        named = tuple(sorted((p.topic, p.partition) for p in partitions))
        self.records.append(GroupRecord(self._position, self.world.now, client_id, member, event, named))
        if self.world.trace is not None:
            self.world.say("coord", f"{event} {client_id}/{member} {short(named)}")

    # --- topics

    def _topic_changed(self, name: str) -> None:
        self._image_at = max(self.world.now + self.world.rng.uniform(0.0, 0.3), self._image_at + 0.00001)
        self.world.at(self._image_at, lambda: self._update_image(name))

    def _learn(self, name: str) -> None:
        topic = self.cluster.topics.get(name)
        if topic is None:
            self.image.pop(name, None)
        else:
            self.image[name] = (topic.id, len(topic.logs))
            self.names[topic.id] = name

    def _update_image(self, name: str) -> None:
        """GroupCoordinatorService.onNewMetadataImage, OffsetMetadataManager.onPartitionsDeleted: offsets go by name."""
        before = self.image.get(name)
        self._learn(name)
        after = self.image.get(name)
        if before is not None and (after is None or after[0] != before[0]):
            for partition in [p for p in self.offsets if p.topic == name]:
                del self.offsets[partition]
        if after != before:
            self.image_changed(name)

    def named(self, parts: Iterable[tuple[str, int]]) -> frozenset[TopicPartition]:
        """Return partitions by their topics' names."""
        return frozenset(TopicPartition(self.names[topic_id], number) for topic_id, number in parts)

    # --- commits

    def _commit(self, client_id: str, request: OffsetCommit) -> CommitAnswer:
        """OffsetMetadataManager.commitOffset; KafkaApis.handleOffsetCommitRequest refuses unknown topics before."""
        known = [item for item in request.items if self._exists(item.partition)]
        error = self.commit_error(request) if known else None
        if error is None and sum(map(_bytes_of, known)) > MESSAGE_MAX_BYTES:
            # CoordinatorRuntime.append, GroupCoordinatorService.handleOperationException: RecordTooLargeException.
            error = Error.UNKNOWN_SERVER_ERROR
        if error is not None:
            self.world.saw(f"commit refused {error.name}")
            self.world.say("coord", f"refuses commit of {client_id}: {error.name} {short_items(request.items)}")
            known = []
        # OffsetMetadataManager.validateOffsetCommit: each offset's metadata on its own.
        stored = [item for item in known if len(item.metadata) <= METADATA_MAX_BYTES]
        for item in stored:
            self._store(item)
        if stored:
            self.world.say("coord", f"accepts commit of {client_id}: {short_items(stored)}")
        return CommitAnswer(tuple(self._item_error(item, error) for item in request.items))

    def _item_error(self, item: CommitItem, error: Error | None) -> Error | None:
        if not self._exists(item.partition):
            return Error.UNKNOWN_TOPIC_OR_PARTITION
        too_large = error is None and len(item.metadata) > METADATA_MAX_BYTES
        return Error.OFFSET_METADATA_TOO_LARGE if too_large else error

    def set_offset(self, partition: TopicPartition, offset: int, metadata: str = "") -> None:
        """Commit an offset as another program does, while the group is empty; all but a reset without metadata."""
        self._store(CommitItem(partition, offset, metadata))

    def _store(self, item: CommitItem) -> None:
        self._position += 1
        partition, now = item.partition, self.world.now
        self.offsets[partition] = GroupOffset(item.offset, item.metadata)
        self.commits.append(
            Commit(now, partition.topic, partition.partition, item.offset, item.metadata, self._position)
        )

    def _exists(self, partition: TopicPartition) -> bool:
        return partition.partition < self.image.get(partition.topic, ("", 0))[1]
