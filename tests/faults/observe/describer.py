"""Asks the coordinator about the group in a process of its own.

    python -m tests.faults.observe.describer SERVERS GROUP

librdkafka's admin client can end its process by a failed assertion, or a segmentation fault, when the coordinator goes
away in the middle of a request; and one that knows a dead coordinator goes on asking that one. Coordinators go away all
the time here, so what asks them may die, ends when it has no answer, and is started again.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from dataclasses import dataclass

from tests import checkout

_ANSWER_S = 5.0
_PROCESS_S = 15.0  # a dead coordinator is noticed after _ANSWER_S


@dataclass(frozen=True, slots=True)
class Description:
    """The group as its coordinator tells it: broker id, and each member's partitions by client id."""

    coordinator: int
    owners: dict[str, set[tuple[str, int]]]


class Describer:
    """The asking side. One thread; `describe` returns None when there is no answer now."""

    def __init__(self, bootstrap_servers: str, group: str) -> None:
        self._command = checkout.command("tests.faults.observe.describer", bootstrap_servers, group)
        self._process: subprocess.Popen[bytes] | None = None

    def describe(self) -> Description | None:
        """Ask the coordinator."""
        process = self._started()
        if process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(b"?\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.close()
            return None
        ready, _, _ = select.select([process.stdout], [], [], _PROCESS_S)
        line = process.stdout.readline() if ready else b""
        if not line:  # it died, hangs, or has no answer
            self.close()
            return None
        said = json.loads(line)
        owners = {client: {(topic, number) for topic, number in owned} for client, owned in said["owners"].items()}
        return Description(said["coordinator"], owners)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            # A crash of it is no news: its standard error goes nowhere.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=checkout.ROOT,
            )
        return self._process

    def close(self) -> None:
        """End the process; the next question starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def main(bootstrap_servers: str, group: str) -> None:
    """Answer a line of JSON for every line of input, until there is no answer."""
    from confluent_kafka import KafkaException  # here, since the asking side does without
    from confluent_kafka.admin import AdminClient

    settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 300}
    admin = AdminClient(settings)
    for _line in sys.stdin:
        try:
            found = admin.describe_consumer_groups([group], request_timeout=_ANSWER_S)[group].result(_ANSWER_S + 2)
        except (KafkaException, TimeoutError):
            return
        if found.coordinator is None:
            return
        owners: dict[str, list[tuple[str, int]]] = {}
        for member in found.members:
            owned = [(one.topic, one.partition) for one in member.assignment.topic_partitions]
            owners.setdefault(member.client_id, []).extend(owned)
        print(json.dumps({"coordinator": found.coordinator.id, "owners": owners}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
