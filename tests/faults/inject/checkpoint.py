"""Faults of checkpoints: lost, damaged, replaced by an old copy, used twice."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.faults.inject.process import victim_of
from tests.faults.rig import apps
from tests.faults.rig.fleet import Query, log_entries, told_by
from tests.faults.rig.rig import Done, Rig
from tests.faults.waiting import wait_for


def _remove_entry(folder: Path, number: int) -> None:
    (folder / str(number)).unlink()
    (folder / f".{number}.crc").unlink(missing_ok=True)


def _completed(query: Query) -> int:
    return max(log_entries(query.checkpoint / "commits"), default=-1)


def _wait_batches(rig: Rig, query: Query, count: int) -> None:
    """Wait until the query has completed `count` more batches."""
    goal = _completed(query) + count
    wait_for(
        f"{count} batches of {query.name}", 60,
        lambda: bool(rig.fleet.heal()) or _completed(query) >= goal, rig.evidence,
    )  # fmt: skip


def lose(rig: Rig) -> Done:
    """The checkpoint of a stopped query is deleted; it starts with a new one."""
    victim = victim_of(rig)
    rig.fleet.stop(victim)
    old = victim.life_name
    rig.fleet.new_life(victim)
    rig.fleet.start(victim)
    return Done(victim.name, False, {"old": old, "new": victim.life_name})


def lose_commit_entry(rig: Rig) -> Done:
    """The newest entry of the commit log is lost, as after a crash: the batch runs again."""
    victim = victim_of(rig)
    rig.fleet.stop(victim)
    number = _completed(victim)
    details: dict[str, object] = {"checkpoint": victim.life_name}
    # With a batch planned and not complete, the checkpoint is what a crash leaves already.
    if number >= 0 and max(log_entries(victim.checkpoint / "offsets")) == number:
        rig.fleet.archive.look()  # keeps when the batch was complete for the first time
        _remove_entry(victim.checkpoint / "commits", number)
        details["batch"] = number
    rig.fleet.start(victim)
    return Done(victim.name, False, details)


def make_unreadable(rig: Rig) -> Done:
    """The newest entry of the offset log is cut in half: the query fails, and gets a new checkpoint."""
    victim = victim_of(rig)
    planned = victim.checkpoint / "offsets"
    # The fault before may have given it a new checkpoint, too.
    wait_for(
        f"a batch of {victim.name}", 60, lambda: bool(rig.fleet.heal()) or bool(log_entries(planned)), rig.evidence
    )
    rig.fleet.stop(victim)
    rig.fleet.keep_copy(victim)
    rig.fleet.archive.leave(victim.life_name)  # before it is damaged
    folder = victim.checkpoint / "offsets"
    number = max(log_entries(folder))
    text = (folder / str(number)).read_bytes()
    (folder / f".{number}.crc").unlink(missing_ok=True)
    (folder / str(number)).write_bytes(text[: len(text) // 2])
    rig.fleet.start(victim)
    app = victim.running_on
    wait_for(f"failure of {victim.name}", 180, lambda: app.state()[:2] == ("failed", victim.run), rig.evidence)
    error = told_by(app.state()[2])
    old = victim.life_name
    rig.fleet.new_life(victim)
    rig.fleet.start(victim)
    return Done(victim.name, False, {"old": old, "new": victim.life_name, "error": error})


def restore(rig: Rig) -> Done:
    """The checkpoint is replaced by a copy that is some batches old."""
    victim = victim_of(rig)
    rig.fleet.stop(victim)
    copy = rig.fleet.folder / "copies" / victim.life_name
    shutil.copytree(victim.checkpoint, copy)
    # A batch in flight would be run by both lives: the copy is of a moment between two batches.
    complete = log_entries(copy / "commits")
    for number in log_entries(copy / "offsets") - complete:
        _remove_entry(copy / "offsets", number)
    rig.fleet.start(victim)
    _wait_batches(rig, victim, 3)
    rig.fleet.stop(victim)
    old = victim.life_name
    rig.fleet.new_life(victim, copy)
    rig.fleet.start(victim)
    return Done(victim.name, False, {"old": old, "new": victim.life_name, "batch": max(complete, default=-1)})


def start_twice(rig: Rig) -> Done:
    """A second application starts the same checkpoint; Spark lets one of the two win, and the loser ends."""
    victim = victim_of(rig)
    twin, run = rig.fleet.start_twin(victim)
    original = victim.running_on

    def settled() -> bool:
        return not victim.alive() or twin.state()[:2] != ("running", run)

    before = _completed(victim)
    wait_for("one of the two to end", 180, lambda: settled() or _completed(victim) > before + 30, rig.evidence)
    time.sleep(0.2)
    details = {"first": original.state()[0], "second": twin.state()[0]}
    errors = [told_by(app.state()[2]) for app in (original, twin) if app.state()[0] == "failed"]
    # Whoever won, the operator keeps the first.
    twin.command(do="stop")
    wait_for(
        "the second to stop", 60,
        lambda: twin.state()[0] in ("stopped", "failed", "dead") and not apps.readers(twin.session), rig.evidence,
    )  # fmt: skip
    rig.fleet.pool_of(victim).give_back(twin)
    return Done(victim.name, False, {**details, "errors": errors})
