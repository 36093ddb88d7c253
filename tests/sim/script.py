"""A world to which a test adds what happens when; nothing else happens.

def test_r26_a_revoke_waits_for_the_batch_in_flight() -> None:
    script = Script(queries=2)
    script.on(3.0, lambda: script.batches_take(3.0), script.write)
    script.on(4.0, script.starts("q2"))
    assert script.judged() == []
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from tests.sim.kafka.protocol import CommitAnswer, Error, OffsetCommit
from tests.sim.kafka.settings import GroupSettings
from tests.sim.simulation import Configuration, Simulation
from tests.sim.spark.application import Application, QuerySettings
from tests.sim.world import BEGIN_S

_OF_GROUP = {one.name for one in fields(GroupSettings)}
_OF_QUERY = {one.name for one in fields(QuerySettings)}


def _configuration(settings: dict[str, Any]) -> Configuration:
    group = {"protocol": "cooperative", "session_s": 6.0, "heartbeat_s": 2.0, "rebalance_s": 60.0}
    query: dict[str, Any] = {"trigger_s": 0.1}
    rest: dict[str, Any] = {"produces": False, "drain_s": 5.0, "stretch": 1.0}
    for name, value in settings.items():
        target = group if name in _OF_GROUP else query if name in _OF_QUERY else rest
        target[name] = value
    return Configuration(group=GroupSettings(**group), query=QuerySettings(**query), **rest)  # type: ignore[arg-type]


class Script(Simulation):
    """A run without chance faults. Settings are those of a group, a query or a configuration, by their names.

    Only q1 starts by itself. Times are seconds from the beginning.
    """

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        super().__init__(seed, _configuration(settings), tracing=True)

    def _start_applications(self) -> None:
        self.start(self.apps[0])

    def app(self, name: str) -> Application:
        """Return an application by its name."""
        return next(app for app in self.apps if app.name == name)

    # --- what happens when

    def on(self, seconds: float, *steps: Callable[[], object]) -> None:
        """Do something at a time."""
        for step in steps:
            self.world.at(BEGIN_S + seconds, step)

    def when(self, condition: Callable[[], bool], *steps: Callable[[], object], after_s: float = 0.0) -> None:
        """Do something as soon as a condition holds, looked at every millisecond, from `after_s` on."""

        def look() -> None:
            if condition():
                for step in steps:
                    step()
            elif not self.ending:
                self.world.after(0.001, look)

        self.world.at(BEGIN_S + after_s, look)

    def at_place(self, place: str, name: str, run: Callable[[], object]) -> None:
        """Do something when a query reaches a named place for the first time from now on."""
        done: list[bool] = []
        before = self.world.at_place

        def reached(where: str) -> None:
            before(where)
            task = self.world.current
            if where == place and not done and task is not None and task.process is self.app(name).process:
                done.append(True)
                run()

        self.world.at_place = reached

    # --- steps

    def starts(self, name: str) -> Callable[[], object]:
        """Start a query."""
        return lambda: self.start(self.app(name))

    def drains(self, name: str, rest_s: float = 1000.0) -> Callable[[], object]:
        """Ask a query to stop after its batch; it starts again after `rest_s`."""

        def run() -> None:
            self.rest_s[name] = rest_s
            self.app(name).drain()

        return run

    def stops(self, name: str, rest_s: float = 1000.0) -> Callable[[], object]:
        """Stop a query at once."""

        def run() -> None:
            self.rest_s[name] = rest_s
            self.app(name).stop()

        return run

    def kills(self, name: str, rest_s: float = 1000.0) -> Callable[[], object]:
        """SIGKILL an application."""

        def run() -> None:
            self.rest_s[name] = rest_s
            self.fault("app-killed", name)
            self.app(name).kill()

        return run

    def pauses(self, name: str, seconds: float, *, suspended: bool = False) -> Callable[[], object]:
        """Stop the reader of a query (SIGSTOP), or suspend its machine."""

        def run() -> None:
            app = self.app(name)
            assert app.process is not None
            app.settings.stops_whole = suspended
            self.fault("reader-paused", name, seconds)
            app.process.stop(seconds, suspended=suspended)

        return run

    def batches_take(self, seconds: float, name: str = "") -> None:
        """Let batches take that long from now on: of one query, or of all."""
        for app in self.apps:
            if name in ("", app.name):
                app.settings.batch_s = (seconds, seconds)

    def subscribes(self, name: str, *topics: str) -> None:
        """Let a query subscribe to these topics only."""
        app = self.app(name)
        options = app._options

        def narrowed(**settings: Any) -> Any:
            found = options(**settings)
            return replace(found, subscription=replace(found.subscription, topics=topics))

        app._options = narrowed

    def triggers_take(self, seconds: float, name: str = "") -> None:
        """Let triggers be that far apart from now on."""
        for app in self.apps:
            if name in ("", app.name):
                app.settings.trigger_s = seconds

    def ends_batch(self, name: str) -> Callable[[], object]:
        """Let Spark finish the batch that it runs now, at once."""

        def run() -> None:
            app = self.app(name)
            if app.batch is not None:
                app.hasten()
                self.world.after(0.001, run)

        return run

    def writes(self, count: int, topic: str = "orders", number: int | None = None) -> Callable[[], object]:
        """Append records to each partition of a topic, or to one."""

        def run() -> None:
            numbers = range(len(self.cluster.topics[topic].logs)) if number is None else [number]
            for one in numbers:
                self.cluster.produce(topic, one, count)

        return run

    def recreates(self, topic: str = "orders", count: int = 2, *, after_s: float = 0.1) -> Callable[[], object]:
        """Delete a topic, and create it again."""

        def run() -> None:
            self.fault("topic-recreated", "", 12.0)
            self.delete_topic(topic)
            self.world.after(after_s, lambda: self.create_topic(topic, count))

        return run

    def holds(self, place: str, name: str, seconds: float) -> None:
        """Hold the thread of a query that reaches a named place for the first time from now on."""
        self.at_place(place, name, lambda: self.world.sleep(seconds))

    def reads_late(self, name: str, seconds: float, *, breaks_after_s: float = 0.0) -> Callable[[], object]:
        """Let the coordinator read the next commit of a query that much later, from a connection that has broken.

        The client sends it again on a new connection, when the old one has broken.
        """

        def run() -> None:
            receive, done = self.group.receive, list[bool]()

            def received(client_id: str, request: Any, reply: Callable[[Any], None]) -> None:
                if client_id != name or not isinstance(request, OffsetCommit) or done:
                    receive(client_id, request, reply)
                    return
                done.append(True)
                self.world.say("coord", f"reads a commit of {name} {seconds:.1f} s later")
                self.world.after(seconds, lambda: receive(client_id, request, lambda _: None))
                self.world.after(breaks_after_s, self.app(name).client.break_connection)

            self.group.receive = received  # type: ignore[method-assign]

        return run

    def refuses(self, name: str, error: Error, count: int = 1) -> Callable[[], object]:
        """Let the coordinator refuse the next commits of a query."""

        def run() -> None:
            receive, left = self.group.receive, [count]

            def received(client_id: str, request: Any, reply: Callable[[Any], None]) -> None:
                if client_id != name or not isinstance(request, OffsetCommit) or not left[0]:
                    receive(client_id, request, reply)
                    return
                left[0] -= 1
                self.world.say("coord", f"refuses a commit of {name}: {error.name}")
                reply(CommitAnswer((error,) * len(request.items)))

            self.group.receive = received  # type: ignore[method-assign]

        return run

    def grows(self, count: int, topic: str = "orders") -> Callable[[], object]:
        """Add partitions to a topic, up to `count`."""
        return lambda: self.grow_topic(topic, count)

    def breaks(self, name: str) -> Callable[[], object]:
        """Break a query's connection to its coordinator."""

        def run() -> None:
            self.app(name).client.break_connection()

        return run

    def lags(self, topic: str, seconds: float) -> Callable[[], object]:
        """Let the broker that a client asks report a topic as it was before its last change, for that time."""

        def run() -> None:
            self.cluster.lags(topic, seconds)

        return run

    # --- what came of it

    def rows(self, name: str, topic: str = "orders", number: int = 0) -> list[int]:
        """Return the offsets of a partition that a query has written, in order."""
        found = [row for batch in self.app(name).batches for row in batch.rows]
        return [row[3] for row in found if (row[1], row[2]) == (topic, number)]

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Return the details of the events of a query that the history keeps: data_lost, conflict, reset,
        shared_state."""
        return [event.details for event in self.app(name).events if event.event == kind]

    def text(self) -> str:
        """Return the trace."""
        return "\n".join(self.world.trace or ())
