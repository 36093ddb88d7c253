"""One run of the rig with one protocol: faults one after another, then the history, whole."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

from tests.faults import history
from tests.faults.history import Fault, History, Run
from tests.faults.inject.kinds import ALL_KINDS
from tests.faults.observe import collect
from tests.faults.observe.consumer_offsets import GroupLog, read_group_log, removals
from tests.faults.observe.observer import attempt, read_log
from tests.faults.rig.rig import DRAIN_TIMEOUT_S, GROUP, TOPICS, Rig, Shape
from tests.faults.waiting import wait_for
from tests.realkafka.jars import KAFKA_VERSION

_FILL_RATE = 2_000.0
_WHOLE_LOG = 10**9  # lines


def run(shape: Shape, kinds: Iterable[str], say: Callable[[str], None]) -> str:
    """Do the faults and save the history in the shape's folder; returns why it was broken off ("" if it was not)."""
    started_at = time.time()
    about = Run(
        shape.seed, shape.protocol, GROUP, TOPICS, shape.session_s, started_at, kafka=KAFKA_VERSION,
        drain_timeout_s=DRAIN_TIMEOUT_S, starting=shape.flavour.starting, flavour=shape.flavour.name,
    )  # fmt: skip
    shape.folder.mkdir(parents=True)
    faults: list[Fault] = []
    trouble = ""
    with Rig(shape, say) as rig:
        try:
            say(f"{shape.protocol}: brokers are up after {time.time() - started_at:.0f} s, starting the queries")
            rig.begin()
            say(f"{shape.protocol}: the group reads after {time.time() - started_at:.0f} s")
            for number, kind in enumerate(kinds, start=1):
                faults.append(_one_fault(rig, number, kind))
                with (shape.folder / "faults.jsonl").open("a") as file:
                    file.write(json.dumps(asdict(faults[-1])) + "\n")
            _finish(rig)
        except Exception as error:  # noqa: BLE001  (whatever it is: what the run has left is saved and judged)
            trouble = str(error) or repr(error)
            (shape.folder / "trouble.txt").write_text(f"{traceback.format_exc()}\n{trouble}\n")
            say(f"{shape.protocol}: BROKEN OFF: {trouble.splitlines()[0]}")
            _break_off(rig)
        say(f"{shape.protocol}: reading what the run has left")
        rig.watcher.stop()
        saved = _history(rig, replace(about, ended_at=time.time()), faults)
        history.save(shape.folder, saved)
        say(
            f"{shape.protocol}: {len(saved.produced)} records, {len(saved.batches)} batches, {len(faults)} faults saved"
        )
    return trouble


def _one_fault(rig: Rig, number: int, kind: str) -> Fault:
    rig.seed_fault(number)
    started_at = time.time()
    done = ALL_KINDS[kind].inject(rig)
    # Ends from after the fault: a batch that was planned after it is committed, so the group takes commits again.
    revived = rig.wait_recovered(rig.ends(), f"{kind} of {done.target}")
    recovered_at = time.time()
    details = done.details | ({"revived": revived} if revived else {})
    takeover = f", taken over in {details['takeover_s']:.1f} s" if "takeover_s" in details else ""
    rig.say(
        f"{rig.shape.protocol} {number:3d} {kind:24s} {done.target:10s} took {done.at - started_at:4.1f} s, recovered "
        f"{recovered_at - done.at:4.1f} s later{takeover}{'; ' + '; '.join(revived) if revived else ''}"
    )
    return Fault(number, kind, done.target, started_at, done.at, recovered_at, done.clean, details)


def _finish(rig: Rig) -> None:
    """Write what is missing, wait until the group has read everything, and stop the queries."""
    missing = rig.shape.records - rig.producer.count()
    if missing > 0:
        rig.say(f"{rig.shape.protocol}: writing {missing} more records")
        rig.producer.set_rate(_FILL_RATE)
        wait_for(
            "the records to be written",
            60 + missing / _FILL_RATE * 3,
            lambda: rig.producer.count() >= rig.shape.records,
        )
    rig.producer.stop()
    rig.wait_recovered(rig.last_ends(), "the end of writing")
    for query in rig.fleet.live:
        rig.fleet.stop(query)
    rig.fleet.close()
    wait_for("an empty group", 30, lambda: attempt(rig.observer.owners) == {}, rig.evidence)


def _break_off(rig: Rig) -> None:
    rig.producer.stop()
    rig.fleet.close()
    for broker in range(1, rig.shape.brokers + 1):
        rig.revive_broker(broker)


def _history(rig: Rig, about: Run, faults: list[Fault]) -> History:
    folder, work, servers = rig.shape.folder, rig.fleet.folder, rig.kafka.bootstrap_servers
    newest = [replace(one, topic_id=rig.life_of(one.topic).id) for one in read_log(servers, rig.ends())]
    log = {(one.topic, one.topic_id, one.partition, one.offset): one for one in [*rig.kept_log, *newest]}
    members = GroupLog(about.group, {life.id: life.topic for life in rig.lives})
    commits = read_group_log(servers, members)
    removed = [
        record
        for broker in range(1, rig.shape.brokers + 1)
        for record in removals(rig.kafka.log_tail(broker, _WHOLE_LOG).splitlines(), about.group, members)
    ]
    return History(
        about,
        tuple(faults),
        tuple(rig.lives),
        tuple(rig.starts),
        tuple(rig.fleet.runs),
        tuple(sorted([*members.found, *removed], key=lambda one: (one.at, one.position))),
        tuple(rig.producer.produced()),
        tuple(log[key] for key in sorted(log)),
        tuple(commits),
        history.read_lines(folder / "watch.jsonl", history.Watched),
        tuple(collect.member_events(work / "metrics")),
        tuple(collect.batches(work / "sink")),
        tuple(collect.completed(rig.fleet)),
    )
