"""Measure groups round after round, and keep the last result of each for scrapes.

A scrape never waits for Kafka: it gets what the last round found. A group that cannot be measured loses its metrics
(old lags would hide an outage), and its metric `up` is 0 until it can be measured again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from spark_groupsource import errors
from spark_groupsource.cli.exporter.samples import GroupReading, group_samples, log_samples, status_samples
from spark_groupsource.cli.group.view import GroupDescription
from spark_groupsource.cli.output import Output
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import CommandError, GroupKafkaError, KafkaUnavailableError, OptionError
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.model.offsets import every_partition
from spark_groupsource.prometheus.families import Sample
from spark_groupsource.redaction import masked

T = TypeVar("T")

# Seconds for one group. The clients would otherwise wait two minutes for brokers that have answered before.
GROUP_S = 30.0
# What is measured beside the groups, in warnings.
_CLUSTER, _LIST = "the cluster", "the list of groups"


class Exporter:
    """Measure the named groups, and those whose whole name matches `pattern`.

    `round` is for one thread. `samples` may be called by any other one: it returns what is replaced as a whole.
    """

    def __init__(
        self,
        cluster: str,
        named: Iterable[str],
        pattern: str | None,
        *,
        requests: LagRequests,
        names: Callable[[], Iterable[str]],
        describe: Callable[[str], GroupDescription | None],
        clock: Clock,
        output: Output,
    ) -> None:
        self._cluster = cluster
        self._named = tuple(named)
        self._matches = None if pattern is None else re.compile(pattern).fullmatch
        self._requests = requests
        self._names = names
        self._describe = describe
        self._clock = clock
        self._deadline = Deadline(clock, GROUP_S)
        self._output = output
        # The matching groups of the last list. A list that fails leaves them: one broker may be away.
        self._matching: tuple[str, ...] = ()
        # None: the group could not be measured. Replaced as a whole, because scrapes read it.
        self._measured: Mapping[str, GroupReading | None] = {}
        # The last error of what cannot be measured.
        self._trouble: dict[str, str] = {}
        # Whether the last error was that brokers did not answer.
        self._were_away = False
        self._round_s: float | None = None

    def samples(self) -> Iterator[Sample]:
        """Return all metrics as of the last measurement of each group."""
        measured, round_s = self._measured, self._round_s
        known = [reading for reading in measured.values() if reading is not None]
        yield from status_samples(self._cluster, {name: one is not None for name, one in measured.items()}, round_s)
        for reading in known:
            yield from group_samples(self._cluster, reading)
        yield from log_samples(self._cluster, known)

    @property
    def is_late(self) -> bool:
        """Whether the time for the group that is being measured is over: its answers are not wanted any more."""
        return self._deadline.expired()

    def round(self) -> None:
        """Measure all groups once. Raises `OptionError` if the client refuses a setting; logs all other errors."""
        begun_s = self._clock.monotonic_s()
        # Until the first round is over, some groups have no metrics.
        step = self._output.step if self._round_s is None else lambda _: None
        step("reading the list of topics and groups")
        topics = self._attempt(_CLUSTER, self._requests.topics)
        if topics is not None and self._matches is not None:
            names = self._attempt(_LIST, self._names)
            if names is not None:
                self._matching = tuple(sorted(filter(self._matches, names)))
        groups = dict.fromkeys((*self._named, *self._matching))
        self._measured = {group: found for group, found in self._measured.items() if group in groups}
        asked = {_CLUSTER, _LIST, *map(_named, groups)}
        self._trouble = {what: kind for what, kind in self._trouble.items() if what in asked}
        for number, group in enumerate(groups, 1):
            if topics is None:
                # The brokers are away. Each group would wait for them.
                self._measured = {**self._measured, group: None}
                continue
            step(f"first measurement: group {group}, {number:,} of {len(groups):,}")
            found = self._attempt(_named(group), partial(self._measure, group, topics))
            self._measured = {**self._measured, group: found}
            if found is None and self._were_away:
                # Old lags of the other groups would hide an outage that began in this round.
                topics = self._attempt(_CLUSTER, self._requests.topics)
        step("")
        self._round_s = self._clock.monotonic_s() - begun_s

    def _attempt(self, what: str, ask: Callable[[], T]) -> T | None:
        """Return the answer; None after an error. An error is logged once, until another one follows or it is over."""
        self._deadline = Deadline(self._clock, GROUP_S)
        try:
            answer = ask()
        except OptionError as error:
            if error.condition is errors.CLIENT_REFUSED_OPTION:
                raise
            self._failed(what, error)
        except Exception as error:  # noqa: BLE001 - a scrape must not end for an error of one group
            self._failed(what, error)
        else:
            if self._trouble.pop(what, None) is not None:
                self._output.warn(f"{what} is measured again")
            return answer
        return None

    def _failed(self, what: str, error: Exception) -> None:
        self._were_away = isinstance(error, KafkaUnavailableError)
        text = masked(str(error) or type(error).__name__)
        kind = error.condition.id if isinstance(error, GroupKafkaError) else text
        if self._trouble.get(what) != kind:
            self._trouble[what] = kind
            self._output.warn(f"{what} is not measured: {text}")

    def _measure(self, group: str, topics: Mapping[str, int]) -> GroupReading:
        """Measure one group: 1. members, 2. its offsets on all topics, 3. the lag inputs of the topics that it reads.

        Raises `CommandError` for a group that does not exist, since its name may be wrong.
        """
        description = self._describe(group)
        committed = self._requests.group_offsets(group, every_partition(topics))
        members = () if description is None else description.members
        if not committed and description is None:
            raise CommandError(errors.GROUP_NOT_FOUND, group=group, servers=self._cluster)
        read = {partition.topic for partition in committed}
        read |= {partition.topic for member in members for partition in member.partitions} & topics.keys()
        read_partitions = every_partition({topic: topics[topic] for topic in read})
        found = self._requests.lag_inputs({partition: committed.get(partition) for partition in read_partitions})
        ordered = tuple(sorted(found, key=lambda one: one.partition))
        return GroupReading(group, self._clock.epoch_s(), ordered, description)


def _named(group: str) -> str:
    """Return the group's name in warnings."""
    return f"group {group}"
