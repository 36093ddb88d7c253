"""Writes records with unique ids at a steady rate, and keeps what the broker acknowledged.

One thread writes plain records over all partitions, idempotent and with acks=all. Another writes transactions into the
first topic, of which every third is aborted. A record counts as acknowledged when its delivery report says so, and, in
a transaction, when the commit has succeeded; what fails is left out, it may or may not be in the log. So is what was
acknowledged without an offset.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.faults.history import Produced
from tests.faults.observe.observer import CLIENT, Partition
from tests.faults.waiting import wait_for

_PACE_S = 0.05
_IN_A_ROW = 5  # records to one partition: the brokers have a fifth of the requests
_TRANSACTION_RECORDS = 20


class SteadyProducer:
    """The producer of a run; a stop is final."""

    def __init__(
        self, bootstrap_servers: str, partitions: Sequence[Partition], rate: float, transactional: bool
    ) -> None:
        self._servers = bootstrap_servers
        self._partitions = list(partitions)
        self._ids_of_topics: dict[str, str] = {}
        # A topic that comes and goes has a producer for each of its lives: no sequence number or metadata outlives it.
        self._own: dict[str, Producer] = {}
        self._rate = rate
        self._transactional = transactional
        self._ids = itertools.count()
        self._lock = threading.Lock()  # over `_produced`
        self._produced: list[Produced] = []
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._producer = self._idempotent()

    def _idempotent(self) -> Producer:
        return Producer(
            {
                **CLIENT, "bootstrap.servers": self._servers, "acks": "all", "enable.idempotence": True,
                "linger.ms": 10, "message.timeout.ms": 300_000, "client.id": "producer",
            }
        )  # fmt: skip

    def burst(self, count: int) -> None:
        """Write records at once and wait until they are acknowledged. Not while the steady writing goes on."""
        for _ in range(count):
            self._write()
        for producer in (self._producer, *self._own.values()):
            producer.flush(120)

    def start(self) -> None:
        """Begin the steady writing."""
        self._threads.append(threading.Thread(target=self._steady, name="producer", daemon=True))
        if self._transactional:
            self._threads.append(threading.Thread(target=self._transactions, name="transactions", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the steady writing; returns when everything is acknowledged or given up."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(90)
        for producer in (self._producer, *self._own.values()):
            producer.flush(120)

    def set_rate(self, rate: float) -> None:
        """Write at another rate from now on, in records a second; at 0 nothing, not even transactions."""
        self._rate = rate

    def add_partition(self, partition: Partition) -> None:
        """Write to this partition too."""
        self._partitions = [*self._partitions, partition]

    def name_topic(self, topic: str, topic_id: str, *, passing: bool = False) -> None:
        """Note which id the topic of this name has from now on; a passing one gets no transactions."""
        self._ids_of_topics[topic] = topic_id
        if passing:
            self._own = {**self._own, topic: self._idempotent()}

    def leave_topic(self, topic: str) -> None:
        """Write steadily to this passing topic no more; returns when every record that went there has its answer."""
        self._partitions = [one for one in self._partitions if one[0] != topic]
        # One that is writing has chosen its partition already.
        time.sleep(2 * _PACE_S)
        producer = self._own[topic]
        wait_for(f"the answers of topic {topic}", 320, lambda: producer.flush(1) == 0)

    def burst_to(self, partition: Partition, count: int) -> None:
        """Write records to a partition of a passing topic, beside the steady writing."""
        producer = self._own[partition[0]]
        for _ in range(count):
            self._write_to(producer, partition, f"r{next(self._ids)}")
        wait_for(f"the records of {partition}", 120, lambda: producer.flush(1) == 0)

    def burst_beside(self, partition: Partition, count: int) -> None:
        """Write records to one partition beside the steady writing, without waiting for their answers."""
        for _ in range(count):
            self._write_to(self._own.get(partition[0], self._producer), partition, f"r{next(self._ids)}")

    def count(self) -> int:
        """How many records are acknowledged."""
        with self._lock:
            return len(self._produced)

    def produced(self) -> list[Produced]:
        """Return the acknowledged records."""
        with self._lock:
            return list(self._produced)

    def _write(self) -> None:
        number, partitions = next(self._ids), self._partitions
        place = partitions[number // _IN_A_ROW % len(partitions)]
        self._write_to(self._own.get(place[0], self._producer), place, f"r{number}")

    def _write_to(self, producer: Producer, place: Partition, value: str, kept: list[Produced] | None = None) -> None:
        topic, partition = place
        topic_id = self._ids_of_topics.get(topic, "")

        def said(error: Any, message: Message) -> None:
            # Without an offset: the broker had taken it at a first try, whose answer was lost, and does not say where.
            at = message.offset()
            if error is None and at is not None:
                record = Produced(message.topic() or topic, partition, at, value, topic_id, time.time())
                if kept is not None:
                    kept.append(record)
                else:
                    with self._lock:
                        self._produced.append(record)

        while True:
            try:
                producer.produce(topic, value.encode(), partition=partition, on_delivery=said)
            except BufferError:  # a broker is away: the queue is full
                producer.poll(0.1)
                if self._stopped.is_set():
                    return
            except KafkaException as error:
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                return  # just added, and not known to this producer yet
            else:
                return

    def _steady(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(_PACE_S):
            now = time.monotonic()
            if now - due > 1.0:  # the machine was busy: no catching up in one go
                due = now - 1.0
            while (rate := self._rate) > 0 and due < now:
                self._write()
                due += 1.0 / rate
            for producer in (self._producer, *self._own.values()):
                producer.poll(0)

    def _transactions(self) -> None:
        while not self._stopped.is_set():
            producer = Producer(
                {
                    **CLIENT, "bootstrap.servers": self._servers, "transactional.id": "rig",
                    "client.id": "transactions", "transaction.timeout.ms": 10_000, "linger.ms": 10,
                }
            )  # fmt: skip
            try:
                producer.init_transactions(30)
                for number in itertools.count():
                    if self._stopped.wait(1.0):
                        return
                    if self._rate > 0:
                        self._one_transaction(producer, abort=number % 3 == 2)
            except KafkaException:
                # Of whatever kind: a new producer with the same id ends the open transaction and goes on.
                self._stopped.wait(1.0)

    def _one_transaction(self, producer: Producer, abort: bool) -> None:
        kept: list[Produced] = []
        producer.begin_transaction()
        for _ in range(_TRANSACTION_RECORDS):
            number = next(self._ids)
            stable = [one for one in self._partitions if one[0] not in self._own]
            self._write_to(producer, stable[number // _IN_A_ROW % len(stable)], f"r{number}", kept)
        if abort:
            producer.flush(10)
            producer.abort_transaction(10)
            return
        producer.commit_transaction(10)
        with self._lock:
            self._produced += kept
