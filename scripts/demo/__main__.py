"""The demo behind scripts/run: two copies of a pipeline job share a topic, and the second takes over from the first.

1. An embedded broker is started (or --bootstrap-servers is used) and 336,776 flights are loaded into it.
2. jobs/flight_delays.py is started through spark-submit: it is the group's only member.
3. A second copy joins the group, and gets half of the partitions.
4. The first copy is stopped by SIGTERM; the second owns all partitions and reads what is left.
5. The results of both are merged, shown, and compared with the input. The exit code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from jobs.flight_delays import HISTOGRAM_EDGES
from scripts.demo.flight_results import (
    Check,
    aggregate_rows,
    by_route,
    check_aggregates,
    check_offsets,
    check_rows,
    delay_table,
    merge_all,
    read_partials,
    read_rows,
    rows_by_query,
)
from scripts.demo.kafka import GroupView, create_topic, offset_table
from scripts.demo.load_flights import load, read_flights
from scripts.demo.processes import Child, ChildFailed, wait_until
from spark_groupsource.cli.group.member_data import number_ranges
from spark_groupsource.embedded import EmbeddedKafka

ROOT = Path(__file__).resolve().parents[2]
LOG = ROOT / "conf" / "log4j2.properties"

PARTITIONS = 12
START_SECOND_AT = 0.2  # of all rows; while Spark starts for the second, the first reads about another quarter
BOTH_BATCHES = 3  # what the second completes before the first is stopped
# With the rows per batch, the throttle: without it the first member is done before the second has started.
TRIGGER = "2 seconds"
REPORT_EVERY_S = 3.0
FIRST_BATCH_TIMEOUT_S = 120.0
STALLED_TIMEOUT_S = 90.0


def owned_partitions(line: str) -> frozenset[int] | None:
    """The partition numbers in a line of spark_groupsource.ProgressListener; None when it is another line."""
    found = re.search(r"\bpartitions=(?:none|\S*?\[([\d,]*)\])", line)
    if found is None:
        return None
    return frozenset(int(number) for number in (found.group(1) or "").split(",") if number)


@dataclass
class Member:
    """A running copy of the job, and what its lines have told so far."""

    child: Child
    started: bool = False
    batches: int = 0
    owned: frozenset[int] = frozenset()
    stopped_cleanly: bool = False

    @property
    def name(self) -> str:
        return self.child.name

    def follow(self) -> None:
        """Show new lines, and remember what they say."""
        for line in self.child.new_lines():
            # What the job prints last. The exit code cannot tell: a JVM that was sent SIGTERM ends with 143 either way.
            self.stopped_cleanly |= line.endswith("flight-delays stopped: DRAINED")
            self.started |= line == "flight-delays started"
            owned = owned_partitions(line)
            if owned is None:
                continue
            print(f"    {self.name} | {line}", flush=True)
            self.batches += 1
            self.owned = owned
        if not self.child.running:
            self.owned = frozenset()

    def shown(self) -> str:
        if not self.child.running:
            return f"{self.name} has left"
        if self.batches:
            return f"{self.name} owns {number_ranges(sorted(self.owned)) or 'none'}"
        return f"{self.name} {'joins, and reads its first batch' if self.started else 'waits for Spark to start'}"


def embedded_options(options: Mapping[str, str]) -> dict[str, str]:
    """What the embedded broker needs to hand over in seconds.

    A classic rebalance takes it the whole session timeout, because it has no other way to see that a member will not
    rejoin; so it is the newer protocol, or a short timeout.
    """
    if options.get("kafka.group.protocol", "consumer") == "consumer":
        return {"kafka.group.protocol": "consumer"}
    return {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "1000"}


class Demo:
    def __init__(self, settings: argparse.Namespace, output: Path) -> None:
        self.output = output
        self.options = dict(option.split("=", 1) for option in settings.option)
        self.rows_per_batch: int = settings.rows_per_batch
        self.bootstrap: str | None = settings.bootstrap_servers
        if not self.bootstrap:
            self.options = {**embedded_options(self.options), **self.options}
        unique = uuid.uuid4().hex[:8]
        self.topic = f"flights-{unique}" if self.bootstrap else "flights"
        self.group = f"flight-delays-{unique}" if self.bootstrap else "flight-delays"
        self.broker: EmbeddedKafka | None = None
        self.members: list[Member] = []
        self.view: GroupView | None = None
        self.total = 0
        self._started = self._reported = time.monotonic()
        self._stopped: set[str] = set()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:5.1f} s] {text}", flush=True)

    def client_settings(self) -> dict[str, str]:
        """For the demo's own clients: the --option settings of the Kafka client, less those of a group member."""
        own = {key.removeprefix("kafka."): value for key, value in self.options.items() if key.startswith("kafka.")}
        kept = {key: value for key, value in own.items() if not key.startswith(("group.", "session.", "heartbeat."))}
        return {"bootstrap.servers": str(self.bootstrap), **kept}

    def start_broker(self) -> None:
        if self.bootstrap:
            self.say(f"creating topic {self.topic} with {PARTITIONS} partitions on {self.bootstrap}")
            create_topic(self.client_settings(), self.topic, PARTITIONS)
            return
        self.broker = EmbeddedKafka(topics={self.topic: PARTITIONS})
        self.bootstrap = self.broker.bootstrap_servers
        self.say(f"embedded broker on {self.bootstrap}, topic {self.topic} with {PARTITIONS} partitions")

    def load(self, flights: pa.Table) -> None:
        shown = time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal shown
            if time.monotonic() - shown >= REPORT_EVERY_S:
                shown = time.monotonic()
                self.say(f"loaded {done:,} of {total:,} flights")

        count = load(flights, str(self.bootstrap), self.topic, settings=self.client_settings(), progress=progress)
        self.view = GroupView(self.client_settings(), self.group, self.topic)
        limits = self.view.load_limits()
        self.total = sum(end - first for first, end in limits.values())
        if count != flights.num_rows or self.total != count or any(first for first, _ in limits.values()):
            raise SystemExit(f"{flights.num_rows:,} flights were sent, and Kafka holds {self.total:,}: {limits}")
        self.say(f"loaded all {self.total:,} flights")

    def start_member(self) -> Member:
        name = f"member {len(self.members) + 1}"
        arguments = {
            "--bootstrap-servers": str(self.bootstrap),
            "--group-id": self.group,
            "--topic": self.topic,
            "--output": str(self.output / "results"),
            "--trigger": TRIGGER,
            "--checkpoint": str(self.output / "checkpoints" / name.replace(" ", "-")),
        }
        options = {"maxOffsetsPerTrigger": str(self.rows_per_batch), **self.options}
        submit = Path(sys.executable).with_name("spark-submit")
        command = [
            str(submit) if submit.exists() else "spark-submit",
            "--properties-file",
            str(ROOT / "conf" / "spark-defaults.conf"),
            # Two drivers at once would fight for the UI's port; Spark's INFO log is a hundred lines a batch.
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=WARN"),
            # For a run of a minute on few cores: less compiling, half the time until the first batch is done.
            # In quotes, which Spark removes: the path may have a space.
            *("--driver-java-options", f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Dlog4j2.configurationFile={LOG}"'),
            str(ROOT / "jobs" / "flight_delays.py"),
            *(word for pair in arguments.items() for word in pair),
            *(word for key, value in options.items() for word in ("--option", f"{key}={value}")),
        ]
        environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **os.environ}
        environment.pop("SPARK_HOME", None)  # the one of this Python is meant
        member = Member(Child(name, command, self.output, {**environment, "PYTHONUNBUFFERED": "1"}))
        self.members.append(member)
        self.say(f"starting {name}: spark-submit jobs/flight_delays.py (pid {member.child.pid})")
        return member

    def done_rows(self) -> int:
        return sum(state.done for state in self._view().partitions())

    def _view(self) -> GroupView:
        if self.view is None:
            raise RuntimeError("the topic is not loaded yet")
        return self.view

    def follow(self) -> None:
        """Show what is new; fail when a member has ended that was not asked to."""
        for member in self.members:
            before = member.owned
            member.follow()
            if member.owned != before:
                self.say(member.shown())
            if not member.child.running and member.name not in self._stopped:
                raise ChildFailed(member.child)
        if time.monotonic() - self._reported >= REPORT_EVERY_S:
            self._reported = time.monotonic()
            done = self.done_rows()
            owners = ", ".join(member.shown() for member in self.members)
            self.say(f"{done:,} of {self.total:,} rows committed by the group ({100 * done // self.total}%); {owners}")

    def stop_member(self, member: Member) -> None:
        self._stopped.add(member.name)
        self.say(f"stopping {member.name}: SIGTERM to pid {member.child.pid}")
        member.child.ask_to_stop()
        wait_until(lambda: not member.child.running, STALLED_TIMEOUT_S, f"{member.name} to stop", self.follow)
        self.follow()
        if not member.stopped_cleanly:
            raise ChildFailed(member.child)

    def wait_for_rows(self, wanted: int, also: Member | None = None) -> None:
        """Until the group has committed so many rows, or `also` has completed BOTH_BATCHES and the two share."""
        best, moved_at = -1, time.monotonic()
        while True:
            self.follow()
            done = self.done_rows()
            if done >= wanted or (also is not None and also.batches >= BOTH_BATCHES and also.owned):
                return
            if done > best:
                best, moved_at = done, time.monotonic()
            elif time.monotonic() - moved_at > STALLED_TIMEOUT_S + (FIRST_BATCH_TIMEOUT_S if done == 0 else 0):
                raise TimeoutError(f"the group has committed nothing for {time.monotonic() - moved_at:.0f} s")
            time.sleep(0.3)

    def stream(self) -> None:
        first = self.start_member()
        self.wait_for_rows(int(self.total * START_SECOND_AT))
        second = self.start_member()
        self.wait_for_rows(self.total, also=second)
        self.stop_member(first)
        wait_until(
            lambda: len(second.owned) == PARTITIONS, STALLED_TIMEOUT_S, "the second member to own all", self.follow
        )
        self.wait_for_rows(self.total)
        self.say("the group has committed all rows")
        self.stop_member(second)

    def results(self, flights: pa.Table) -> list[Check]:
        """Show the results; return the checks of them."""
        self.say("comparing the results with the input")
        output = self.output / "results"
        rows, partials = read_rows(output), read_partials(output)
        merged = merge_all(partials)
        states = self._view().partitions()
        lag = sum(state.lag for state in states)
        by_member = sorted(rows_by_query(rows).values())
        title = "Departure delays per carrier and origin (p50 and p90: estimated from the merged histograms)"
        print(f"\n{title}\n{delay_table(by_route(merged), HISTOGRAM_EDGES)}")
        print(f"\nCommitted offsets of group {self.group}, topic {self.topic}\n{offset_table(states)}\n")
        return [
            check_offsets(rows, {state.partition: state.end for state in states}),
            check_rows(rows, flights),
            check_aggregates(merged, aggregate_rows(flights, HISTOGRAM_EDGES), len(partials)),
            Check("the group's committed offsets are at the end", lag == 0, f"lag {lag:,}"),
            Check(
                "both members read rows",
                len(by_member) == 2,
                f"the smaller and the larger share: {', '.join(f'{n:,}' for n in by_member)}",
            ),
        ]

    def run(self) -> int:
        flights = read_flights()
        self.start_broker()
        self.load(flights)
        self.stream()
        checks = self.results(flights)
        for check in checks:
            print(f"{'ok    ' if check.ok else 'FAILED'}  {check.name}: {check.detail}")
        failed = sum(not check.ok for check in checks)
        seconds = time.monotonic() - self._started
        print(f"\n{'All checks passed' if not failed else f'{failed} checks FAILED'} in {seconds:.0f} s")
        return 1 if failed else 0

    def close(self) -> None:
        if self.view is not None:
            self.view.close()
        for member in self.members:
            member.child.ask_to_stop()  # all first, so that they stop side by side
        for member in self.members:
            member.child.end()
        if self.broker is not None:
            self.broker.close()


def fresh_directory(given: Path | None) -> Path:
    if given is None:
        directory = ROOT / "run-output" / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    elif given.exists() and any(given.iterdir()):
        raise SystemExit(f"--output {given}: the directory is not empty")
    else:
        directory = given.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def option(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT", help="a Kafka to use instead of the embedded broker"
    )
    parser.add_argument("--output", type=Path, help="directory for results and logs (default: under run-output/)")
    parser.add_argument("--keep", action="store_true", help="keep the default directory after a success, too")
    parser.add_argument(
        "--rows-per-batch", type=int, default=8_000, help="what a member reads in a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=option,
        metavar="KEY=VALUE",
        help="an option of the source, such as kafka.group.protocol=consumer (repeatable)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    settings = parse_arguments(arguments)
    directory = fresh_directory(settings.output)
    # SIGTERM and a closed terminal end the demo as Ctrl-C does: children are stopped on the way out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    demo = Demo(settings, directory)
    code = 1
    try:
        code = demo.run()
    except KeyboardInterrupt:
        print("\ninterrupted: stopping the members", flush=True)
        code = 130
    except (ChildFailed, TimeoutError, KafkaException) as error:
        print(f"\nFAILED: {error}", flush=True)
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError._INVALID_ARG:
            print("Check each --option kafka.NAME=VALUE: its NAME and VALUE are librdkafka's, without 'kafka.'.")
        if isinstance(error, TimeoutError):
            print("\n".join(member.child.tail() for member in demo.members))
    finally:
        demo.close()
        if code == 0 and settings.output is None and not settings.keep:
            shutil.rmtree(directory)
        else:
            print(f"results and logs are in {directory}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
