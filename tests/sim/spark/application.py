"""Simulate a Spark application with one query, over all its runs: what can be done to it, and what it leaves behind."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_groupsource.driver.session import Session
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import SourceOffset, TopicPartition, parse_offset, same_topic
from spark_groupsource.options.model import SourceOptions
from tests.faults.history import Completed, MemberEvent, QueryRun, SinkBatch
from tests.sim.kafka.client import make_client
from tests.sim.kafka.cluster_port import SimCluster
from tests.sim.kafka.coordinator import Coordinator
from tests.sim.kafka.logs import Cluster
from tests.sim.spark.checkpoint import Checkpoint, SimBatchLog, SimStateFolder, Store
from tests.sim.spark.engine import Interrupted, MicroBatchExecution, Source, TaskFailed, Trigger
from tests.sim.watch import Watch
from tests.sim.world import Process, ProcessDied, SimClock, SimRunner, Ticket, World


@dataclass
class QuerySettings:
    """How a query runs. Times in seconds."""

    trigger_s: float = 0.5
    batch_s: tuple[float, float] = (0.02, 0.3)
    # maxOffsetsPerTrigger, minOffsetsPerTrigger with maxTriggerDelay, maxBytesPerTrigger.
    max_rows: int | None = None
    min_rows: int | None = None
    max_delay_s: float = 900.0
    max_bytes: int | None = None
    store: Store = Store.LOCAL
    # "4.2": with admission control; "4.0", "4.1": without.
    spark: str = "4.2"
    # The chance that a wait of the reader process ends late.
    hiccup: float = 0.0
    # Whether a stopped reader stops the JVM, too.
    stops_whole: bool = False
    instance_ids: bool = False
    # Whether the query has a window, a join of streams or dropDuplicates.
    has_state: bool = False
    # Whether the query reads its topics with two sources, as a union of two frames does.
    two_sources: bool = False


class SimMetrics(MetricsLog):
    """Keep the product's events for the history."""

    def __init__(self, app: Application, clock: SimClock) -> None:
        super().__init__(None, "sim", clock)
        self._app = app

    def write(self, event: str, partitions: Any = (), **details: Any) -> None:
        """See `MetricsLog`."""
        app, every = self._app, tuple(partitions)
        named = tuple((p.topic, p.partition) for p in every)
        app.world.saw(f"event {event}")
        if event == "revoked":
            app.world.saw(f"revoked {details['outcome']}" + (" uncommitted" if details["uncommitted"] else ""))
        if app.watches:
            app.watches[-1].event(event, every, details)
        if app.world.trace is not None:
            app.world.say(app.name, f"event {event} {sorted(named)} {details}")
        if "at most" in str(details.get("reason")) and "possible" not in details:
            # An upper bound (limits.md): the records may have been read before they were removed.
            details = details | {"possible": details["ranges"], "ranges": []}
        if event in ("data_lost", "conflict", "reset", "shared_state"):
            now, run = app.world.now, f"{app.run}"
            app.events.append(MemberEvent(now, app.name, self.lineage, event, named, details, run))


class Application:
    """One query. The rig starts, stops and kills it; `on_end(how)` hears of the end of each run."""

    def __init__(
        self,
        world: World,
        name: str,
        cluster: Cluster,
        coordinator: Coordinator,
        settings: QuerySettings,
        options: Callable[..., SourceOptions],
    ) -> None:
        self.world, self.name, self.cluster, self.coordinator = world, name, cluster, coordinator
        self.settings = settings
        self._options = options
        self.fails_on_data_loss = False
        self.trigger = Trigger.PROCESSING_TIME
        # The other source of its query: it is started and stopped with this one, which leads.
        self.twin: Application | None = None
        self.checkpoint = Checkpoint(f"{name}#1")
        self.lives = [self.checkpoint]
        self.process: Process | None = None
        self.session: Session | None = None
        self.client: Any = None
        self.run = 0
        # The batch that Spark runs now, and the newest one that this run has begun.
        self.batch: int | None = None
        self.begun: int | None = None
        self.on_end: Callable[[str], object] = lambda _: None
        # For the history.
        self.runs: list[QueryRun] = []
        self.batches: list[SinkBatch] = []
        self.events: list[MemberEvent] = []
        self.errors: list[str] = []
        # What is wrong with the answers to requests to stop.
        self.answers: list[str] = []
        self.watches: list[Watch] = []
        # In a hurry: the quiet end of a run waits for no long triggers.
        self.hurry = False
        self._started_at = 0.0
        self._member: MembershipThread | None = None
        self._asked_to_drain = self._interrupted = False
        self._waits: Ticket | None = None

    def __repr__(self) -> str:
        return f"Application({self.name}.{self.run})"

    @property
    def sources(self) -> tuple[Application, ...]:
        """This one, and its twin."""
        return (self,) if self.twin is None else (self, self.twin)

    @property
    def up(self) -> bool:
        """Whether it runs."""
        return self.process is not None

    @property
    def trigger_s(self) -> float:
        """The trigger interval."""
        return min(0.1, self.settings.trigger_s) if self.hurry else self.settings.trigger_s

    def batch_s(self) -> float:
        """Return how long a batch takes. One in ten takes twice as long."""
        rng = self.world.rng
        seconds = rng.uniform(*((0.02, 0.3) if self.hurry else self.settings.batch_s))
        return seconds * (1 if rng.random() < 0.9 else 2)

    def is_drained(self) -> bool:
        """Whether the member has left after a request to stop."""
        members = [source._member for source in self.sources]
        return self._asked_to_drain and all(member is not None and member.join(0.0) for member in members)

    # --- what the rig does

    def start(self) -> None:
        """Start a run from the checkpoint."""
        assert self.process is None
        self.run += 1
        self.process = process = Process(self.world, f"{self.name}.{self.run}")
        process.hiccup = self.settings.hiccup
        self._started_at = self.world.now
        self._interrupted = self._asked_to_drain = False
        self.session = None
        self.world.say("rig", f"starts {self.name}, run {self.run}")
        self.world.spawn(process, self._main, "main")

    def kill(self) -> None:
        """SIGKILL the application."""
        process = self.process
        if process is not None:
            self.world.say("rig", f"kills {self.name}" + self._in_batch())
            self.world.saw("killed" + self._in_batch())
            self._ended("killed")
            process.kill()

    def drain(self) -> None:
        """Ask the member to leave after its batch (SIGTERM, `drain(query)`); the query is stopped when it has left."""
        if self.session is not None:
            self.world.say("rig", f"asks {self.name} to stop" + self._in_batch())
            self._asked_to_drain = True
            self._request_stop()

    def _request_stop(self) -> None:
        for source in self.sources:
            if source.session is not None:
                source.session.request_stop()

    def stop(self) -> None:
        """Stop the query at once (`query.stop()`): SIGTERM to the reader, an interrupt of Spark's thread."""
        if self.process is not None:
            self.world.say("rig", f"stops {self.name}" + self._in_batch())
            self._interrupted = True
            self._request_stop()
            if self._waits is not None:
                self.world.wake_soon(self._waits)

    def hasten(self) -> None:
        """End the wait of the moment in the JVM."""
        if self._waits is not None:
            self.world.wake_soon(self._waits)

    def new_life(self, entries: Checkpoint | None = None) -> tuple[str, str]:
        """Go on with an empty checkpoint, or with a copy. Return the names of the old and the new life."""
        assert self.process is None
        old, life = self.checkpoint.life, f"{self.name}#{len(self.lives) + 1}"
        self.checkpoint = Checkpoint(life) if entries is None else entries.copied(life)
        self.lives.append(self.checkpoint)
        self.world.say("rig", f"{self.name} goes on with checkpoint {life}, newest batch {self.checkpoint.newest}")
        return old, life

    def _in_batch(self) -> str:
        return "" if self.batch is None else " in a batch"

    def _ended(self, how: str) -> None:
        for source in self.sources:
            source.runs.append(QueryRun(source.name, self.run, self._started_at, self.world.now, how))
            source.process, source.session = None, None
        self.world.say("rig", f"{self.name} has ended: {how}")
        self.batch = None
        self.on_end(how)

    # --- the main thread: Spark's calls, and between them the JVM

    def reach(self, place: str) -> None:
        """Pass a named place in the JVM."""
        self.world.at_place(place)

    def in_jvm(self, seconds: float) -> None:
        """Spend time in the JVM. Raises `Interrupted` when the query is stopped."""
        task = self.world.current
        assert task is not None
        if self._interrupted:
            raise Interrupted
        task.in_jvm = not self.settings.stops_whole
        self._waits = self.world.ticket()
        try:
            self.world.wait(self._waits, seconds)
        finally:
            self._waits, task.in_jvm = None, False
        if self._interrupted:
            raise Interrupted

    def _main(self) -> None:
        how, process = "stopped", self.process
        try:
            self.world.sleep(self.world.rng.uniform(0.01, 0.5))
            sources = [source._begin(self) for source in self.sources]
            try:
                MicroBatchExecution(self, sources).run()
                how = "ended"
            except Interrupted:
                pass
            except (GroupKafkaError, TaskFailed) as error:
                how = "failed"
                asked = " (after a request to stop)" if self._asked_to_drain or self._interrupted else ""
                self.errors.append(f"{type(error).__name__}: {error}{asked}")
                self.world.say(self.name, f"the query fails: {error}")
            # PySpark's runner calls it at the end of its socket, and before it reports an error.
            twins = [SimRunner(source.app.process).spawn(source.session.stop, "stop") for source in sources[1:]]
            sources[0].session.stop()
            for twin in twins:
                twin.join(60.0)
            for source in self.sources:
                source._check_answer()
        except ProcessDied:
            return
        except Exception:  # noqa: BLE001 - a defect of the product, or of this simulation: a finding either way
            how = "crashed"
            self.errors.append(f"UNEXPECTED {traceback.format_exc()}")
        if process is not None and process is self.process:
            self._ended(how)
            process.kill()

    def _begin(self, leader: Application) -> Source:
        """Begin a run of this source of a query."""
        self.process, self.run, self.fails_on_data_loss = leader.process, leader.run, leader.fails_on_data_loss
        self.begun, self.session = None, self._make([other for other in leader.sources if other is not self])
        return Source(self, self.session, SourceOffset(self._lineage()))

    def _check_answer(self) -> None:
        """Compare the member's answer to a stop, if it is that nothing is repeated, with what the group has."""
        entry = None if self.begun is None else self.checkpoint.entries.get(self.begun)
        if entry is None or self._member is None or not (self._member.join(0.0) and self._member.left_clean):
            # One that has not left within the time answers nothing.
            return
        self.world.saw("a stop answers that nothing is repeated")
        end = parse_offset(entry.end)
        is_open = entry.completed_at is None and any(map(len, end.ranges))
        wrong = f"batch {self.begun} is not complete" if is_open else ""
        for item in end.ranges if not wrong else ():
            topic = self.cluster.topics.get(item.partition.topic)
            if len(item) and topic is not None and same_topic(topic.id, end.topic_id(topic.name)):
                held = self.coordinator.offsets.get(item.partition, GroupOffset(None))
                # Another program may have moved it since: its metadata is empty.
                if (held.offset or 0) < item.end and held.metadata:
                    wrong = f"batch {self.begun} has {item}, and the group is at {held.offset}"
        if wrong:
            self.answers.append(f"{self.name} answers that nothing is repeated, but {wrong}")

    def _make(self, siblings: Sequence[Application]) -> Session:
        world, process = self.world, self.process
        assert process is not None
        options = self._options(fail_on_data_loss=self.fails_on_data_loss)
        clock = SimClock(process)
        instance = self.name if self.settings.instance_ids else None
        self.client = make_client(world, self.coordinator, process, self.name, instance)
        metrics = SimMetrics(self, clock)
        log = SimBatchLog(world, self.checkpoint, self.settings.store)
        self._member = member = MembershipThread(options, self.client, clock, log, metrics, runner=SimRunner(process))
        self._watch(member)
        cluster = SimCluster(world, self.cluster, self.coordinator, options, lambda: member.stopping)
        return Session(
            options,
            clock=clock, cluster=cluster, member=member, metrics=metrics, pause=world.pause,
            state_exists=SimStateFolder(self.checkpoint, self.settings.store).exists, lineages=self._lineage,
            sibling=lambda: any(other.session is not None and other.session._started for other in siblings),
        )  # fmt: skip

    def _watch(self, member: MembershipThread) -> None:
        """Watch what this run asks of its client, and when it plans."""
        watch = self.client.watch = Watch(self)
        self.watches.append(watch)
        inner = member._member
        fix = inner.fix

        def fixed(batch: FlightBatch, assignment: int) -> bool:
            stopping = member.stopping
            is_fixed = fix(batch, assignment)
            if is_fixed:
                watch.fixed(batch, stopping=stopping)
            return is_fixed

        inner.fix = fixed  # type: ignore[method-assign]

    def _lineage(self) -> str:
        """Return the name of a new lineage."""
        return f"{self.name}-{self.world.rng.getrandbits(48):012x}"

    # --- for the history

    def completed(self) -> list[Completed]:
        """Return all batches that Spark planned, without those that only the other source had: they repeat an end."""
        return [
            Completed(self.name, life.life, number, entry.planned_at, entry.first_at, entry.end)
            for life in self.lives
            for number, entry in sorted(life.entries.items())
            if number - 1 not in life.entries or life.entries[number - 1].text != entry.text
        ]

    def owned(self) -> set[TopicPartition]:
        """Return what the client has assigned to the member."""
        return set(self.client.assigned) if self.process is not None and self.client is not None else set()
