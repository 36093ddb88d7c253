"""Faults of brokers: one of three is restarted or killed, or the network in front of them is cut.

The network is cut by the proxy of each broker. A rule names the request of Kafka's protocol at which a connection is
cut, on its way to the broker (nothing has happened) or on the way back (it has). KIP-848 has one request for what the
classic protocol has three for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tests.faults.inject.process import taken_after, victim_of
from tests.faults.observe.observer import attempt
from tests.faults.rig.rig import MEMBER, Done, Rig
from tests.faults.waiting import RigError, wait_for
from tests.realkafka.groupwire import acknowledges, joins
from tests.realkafka.proxy import Action, Api, On, Rule
from tests.realkafka.wire import Request

_FIRE_S = 180.0


def _rule(rig: Rig, classic: Api, where: Callable[[Request], bool] | None, client: str, on: On) -> Rule:
    """Return a rule that cuts one connection at the classic request, or at KIP-848's heartbeat of that meaning."""
    if rig.shape.protocol == "kip848":
        return Rule(Api.CONSUMER_GROUP_HEARTBEAT, where=where, client=client, on=on)
    return Rule(classic, client=client, on=on)


def _fires(rule: Rule, times: int) -> bool:
    try:
        rule.wait_fired(1.0, times)
    except TimeoutError:
        return False
    return True


def _wait_fired(rig: Rig, rule: Rule, times: int = 1) -> None:
    """Wait until the rule has cut so often; a query that failed to start meanwhile is started again."""
    deadline = time.monotonic() + _FIRE_S
    try:
        while not _fires(rule, times):
            if time.monotonic() > deadline:
                raise RigError(f"waited {_FIRE_S:.0f} s for {rule} to fire {times} times\n{rig.evidence()}")
            rig.fleet.heal()
    finally:
        rig.kafka.proxy.remove(rule)


def cut_all(rig: Rig) -> Done:
    """All connections of one query are cut at once."""
    victim = victim_of(rig)
    return Done(victim.name, True, {"connections": rig.kafka.proxy.cut_all(f"{victim.name}-")})


def down_for_all(rig: Rig) -> Done:
    """All connections of all queries are cut, and new ones refused for a part of the session timeout."""
    down_s = round(rig.rng.uniform(1.0, 3.0), 2)
    rig.kafka.proxy.refuse(True)
    try:
        rig.kafka.proxy.cut_all()
        time.sleep(down_s)  # the fault itself
    finally:
        rig.kafka.proxy.refuse(False)
    return Done("network", True, {"down_s": down_s})


def cut_at_join(rig: Rig, on: On) -> Done:
    """The connection is cut at a query's JoinGroup, or KIP-848's heartbeat of that meaning."""
    victim = victim_of(rig)
    rig.fleet.stop(victim)
    rule = rig.kafka.proxy.add(_rule(rig, Api.JOIN_GROUP, joins, victim.name + MEMBER, on))
    rig.fleet.start(victim)
    _wait_fired(rig, rule)
    return Done(victim.name, False)


def cut_at_sync(rig: Rig, on: On) -> Done:
    """The connection is cut at a member's SyncGroup, or KIP-848's acknowledgement, while another query leaves."""
    other = victim_of(rig)
    rule = rig.kafka.proxy.add(_rule(rig, Api.SYNC_GROUP, acknowledges, MEMBER, on))
    rig.fleet.stop(other)
    _wait_fired(rig, rule)
    rig.fleet.start(other)
    return Done(other.name, False)


def cut_at_heartbeat(rig: Rig, on: On) -> Done:
    """The connection is cut at a member's heartbeat."""
    victim = victim_of(rig)
    rule = rig.kafka.proxy.add(_rule(rig, Api.HEARTBEAT, None, victim.name + MEMBER, on))
    _wait_fired(rig, rule)
    return Done(victim.name, True)


def cut_at_commit(rig: Rig, on: On) -> Done:
    """The connection is cut at a member's OffsetCommit."""
    victim = victim_of(rig)
    rule = rig.kafka.proxy.add(Rule(Api.OFFSET_COMMIT, client=victim.name + MEMBER, on=on))
    _wait_fired(rig, rule)
    return Done(victim.name, True)


def delay_commits(rig: Rig) -> Done:
    """The answers to some OffsetCommits of a member come seconds late, and heartbeats behind them as well."""
    victim = victim_of(rig)
    delay_s, times = round(rig.rng.uniform(0.5, 2.0), 2), rig.rng.randint(1, 2)
    client = victim.name + MEMBER
    rule = Rule(Api.OFFSET_COMMIT, client=client, on=On.RESPONSE, action=Action.DELAY, delay_s=delay_s, times=times)
    _wait_fired(rig, rig.kafka.proxy.add(rule), times)
    return Done(victim.name, True, {"delay_s": delay_s, "times": times})


def isolate(rig: Rig) -> Done:
    """All connections of a query go silent until others have read on in its partitions, then heal."""
    victim = victim_of(rig)
    client = f"{victim.name}-"
    proxy = rig.kafka.proxy
    rule = Rule(None, client=client, action=Action.BLACK_HOLE, times=None)
    try:
        taken = taken_after(rig, victim, lambda: proxy.add(rule))
        time.sleep(rig.rng.uniform(0.0, 1.5))
    finally:
        proxy.remove(rule)
        proxy.cut_all(client)  # what the silent connections lost is lost: a client has to make new ones
    return Done(victim.name, False, {"isolated_s": taken.reads_on_s, "partitions": taken.partitions})


# kind -> what does it
KINDS: dict[str, Callable[[Rig], Done]] = {
    "connections-cut": cut_all,
    "network-down": down_for_all,
    "member-isolated": isolate,
    "commits-delayed": delay_commits,
    **{
        f"cut-at-{name}-{on.value}": partial(cut, on=on)
        for name, cut in (
            ("join", cut_at_join), ("sync", cut_at_sync), ("heartbeat", cut_at_heartbeat), ("commit", cut_at_commit),
        )
        for on in On
    },
}  # fmt: skip


def _some_broker(rig: Rig) -> int:
    return rig.rng.randint(1, rig.shape.brokers)


def restart(rig: Rig) -> Done:
    """A broker is shut down cleanly and started again."""
    broker = _some_broker(rig)
    rig.kafka.stop_broker(broker)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False)


def kill(rig: Rig) -> Done:
    """SIGKILL of a broker, which is started again at once."""
    broker = _some_broker(rig)
    rig.kafka.kill_broker(broker)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False)


def kill_coordinator(rig: Rig) -> Done:
    """SIGKILL of the group's coordinator, which stays away until another broker has taken the group over."""
    broker = wait_for("the coordinator", 30, lambda: attempt(rig.observer.coordinator), rig.evidence)
    since = time.time()
    rig.kafka.kill_broker(broker)

    def moved() -> bool:
        found = attempt(rig.observer.coordinator)
        return found is not None and found != broker

    wait_for("another coordinator", 180, moved, rig.evidence)
    moved_s = round(time.time() - since, 2)
    rig.kafka.start_broker(broker)
    return Done(f"broker-{broker}", False, {"moved_s": moved_s})
