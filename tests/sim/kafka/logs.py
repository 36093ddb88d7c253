"""Simulate brokers: topics with ids, logs with leader epochs, growth, deletion, recreation, metadata that lags."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.history import Logged, Produced, TopicLife
from tests.sim.world import World


class Log:
    """One partition. Offsets without a record are markers, as transactions and compaction leave them."""

    def __init__(self) -> None:
        self.records: dict[int, str] = {}
        self.begin = self.end = 0
        # (leader epoch, its first offset), ascending.
        self.epochs: list[tuple[int, int]] = [(0, 0)]

    @property
    def epoch(self) -> int:
        """The newest leader epoch."""
        return self.epochs[-1][0]

    def end_of_epoch(self, epoch: int) -> int:
        """Return where the largest epoch up to this one ends (OffsetForLeaderEpoch)."""
        later = [start for known, start in self.epochs if known > epoch]
        return later[0] if later else self.end


class Topic:
    """A topic from its creation to its deletion."""

    def __init__(self, name: str, topic_id: str, count: int, now: float) -> None:
        self.name, self.id = name, topic_id
        self.logs = [Log() for _ in range(count)]
        self.created_at = now
        self.deleted_at: float | None = None


class Cluster:
    """All topics, and what the rig does to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.topics: dict[str, Topic] = {}
        self.lives: list[Topic] = []
        self.produced: list[Produced] = []
        # No broker answers until then.
        self.down_until = 0.0
        # Seconds for which some broker may still report a topic as it was before a change.
        self.lag_s = 0.0
        # Answers of brokers may take that much longer.
        self.slow_s = 0.0
        # Called with a topic's name after each change.
        self.on_change: list[Callable[[str], object]] = []
        self._before: dict[str, tuple[float, Topic | None]] = {}
        # Until when a broker reports another life of a topic, and the chance that it is the one that is asked.
        self._behind: dict[str, tuple[float, Topic, float]] = {}
        self._number = 0

    # --- what the rig does

    def create(self, name: str, count: int) -> Topic:
        """Create a topic, perhaps under the name of a deleted one."""
        world = self.world
        topic = Topic(name, f"{name}-id{len(self.lives)}-{world.rng.getrandbits(32):08x}", count, world.now)
        self._before[name] = (world.now, None)
        self.topics[name] = topic
        self.lives.append(topic)
        world.say("rig", f"creates {name} with {count} partitions, id {topic.id}")
        self._changed(name)
        return topic

    def delete(self, name: str) -> None:
        """Delete a topic."""
        topic = self.topics.pop(name)
        topic.deleted_at = self.world.now
        self._before[name] = (self.world.now, topic)
        self.world.say("rig", f"deletes {name}, id {topic.id}")
        self._changed(name)

    def grow(self, name: str, count: int) -> None:
        """Add partitions, up to `count` of them."""
        topic = self.topics[name]
        topic.logs += [Log() for _ in range(count - len(topic.logs))]
        self.world.say("rig", f"{name} has {count} partitions now")
        self._changed(name)

    def produce(self, name: str, number: int, count: int, *, markers: bool = False) -> None:
        """Append records; with `markers` some offsets hold none."""
        topic = self.topics[name]
        log = topic.logs[number]
        for _ in range(count):
            if markers and self.world.rng.random() < 0.1:
                log.end += 1
            self._number += 1
            content = f"r{self._number}"
            log.records[log.end] = content
            self.produced.append(Produced(name, number, log.end, content, topic.id, self.world.now))
            log.end += 1

    def delete_records(self, name: str, number: int, to: int) -> list[tuple[str, int, int, int]]:
        """Remove the records below an offset. Return the removed range: (topic, partition, start, end)."""
        log = self.topics[name].logs[number]
        to = min(to, log.end)
        if to <= log.begin:
            return []
        removed = (name, number, log.begin, to)
        for offset in [offset for offset in log.records if offset < to]:
            del log.records[offset]
        log.begin = to
        self.world.say("rig", f"removes the records of {name}-{number} below {to}")
        return [removed]

    def move_leader(self, name: str, number: int) -> None:
        """Elect another leader."""
        log = self.topics[name].logs[number]
        epoch = log.epoch + 1
        if log.epochs[-1][1] == log.end:
            log.epochs[-1] = (epoch, log.end)
        else:
            log.epochs.append((epoch, log.end))

    def truncate(self, name: str, number: int, to: int) -> None:
        """Let a replica lead that ends at `to` (an unclean election): later records are lost."""
        log = self.topics[name].logs[number]
        epoch = log.epoch + 1
        for offset in [offset for offset in log.records if offset >= to]:
            del log.records[offset]
        log.end = to
        log.epochs = [*(one for one in log.epochs if one[1] < to), (epoch, to)]
        self.world.say("rig", f"the log of {name}-{number} ends at {to}")

    def lags(self, name: str, seconds: float, *, always: bool = True) -> None:
        """Let a broker report a topic as it was before its last life for a while: it has not heard of changes."""
        former = next((life for life in reversed(self.lives) if life.name == name and life.deleted_at), None)
        if former is not None:
            self._behind[name] = (self.world.now + seconds, former, 1.0 if always else 0.5)
            self.world.say("rig", f"a broker still reports {name} with id {former.id}")

    def settle(self) -> None:
        """Let all brokers know all topics at once."""
        self._before.clear()

    def _changed(self, name: str) -> None:
        for listener in list(self.on_change):
            listener(name)

    def first(self, name: str) -> Topic:
        """Return the first topic of a name."""
        return next(topic for topic in self.lives if topic.name == name)

    # --- what a broker reports

    def topic(self, name: str) -> Topic | None:
        """Return a topic as some broker reports it: for a moment after a change perhaps the former one."""
        since, before = self._before.get(name, (0.0, None))
        if since and self.world.now - since < self.lag_s and self.world.rng.random() < 0.5:
            self.world.saw("metadata lags behind")
            return before
        until, former, chance = self._behind.get(name, (0.0, None, 0.0))
        if until > self.world.now and self.world.rng.random() < chance:
            self.world.saw("a broker lags behind")
            return former
        return self.topics.get(name)

    # --- for the history

    def topic_lives(self) -> tuple[TopicLife, ...]:
        """Return all topics that there were."""
        return tuple(TopicLife(topic.name, topic.id, topic.created_at, topic.deleted_at) for topic in self.lives)

    def logged(self) -> tuple[Logged, ...]:
        """Return the records that are in the logs now, or were when their topic was deleted."""
        return tuple(
            Logged(topic.name, number, offset, content, topic.id)
            for topic in self.lives
            for number, log in enumerate(topic.logs)
            for offset, content in sorted(log.records.items())
        )
