"""The processes and files of one Kafka cluster: state file, ports, settings, signals.

Knows nothing of who owns the cluster or for how long: that is realkafka.py. The state file in the run
directory lets another process see the brokers and end them. A process is ended by pid, and only while its
command line shows that it runs from this run directory: pids are used again.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.realkafka import rundir
from tests.realkafka.jars import (
    KAFKA_VERSION,
    RealKafkaError,
    archive_options,
    class_path,
    find_java,
    version_of,
)

_LOWEST_PORT = 20_000
# Processes of a test run that have ports of their own; more share them.
_MOST_WORKERS = 8
_LOG4J = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n
logger.group.name = org.apache.kafka.coordinator.group
logger.group.level = info
"""


@dataclass(slots=True)
class Broker:
    """One broker as the state file has it; pid is None while it is stopped.

    proxied_port: of a second listener, for clients that come through a proxy; its advertised port is the proxy's.
    secure_ports: of the listeners with TLS or SASL, by security protocol.
    """

    id: int
    port: int
    controller_port: int
    pid: int | None = None
    # Of a cluster that needs ZooKeeper.
    zookeeper_port: int | None = None
    proxied_port: int | None = None
    proxy_port: int | None = None
    secure_ports: dict[str, int] = field(default_factory=dict)


def needs_zookeeper(version: str) -> bool:
    """Whether brokers of this version are not to run without it: KRaft was complete with 3.3."""
    return version_of(version) < (3, 3)


def _quorum(broker: Broker, brokers: Sequence[Broker]) -> dict[str, object]:
    """What says where a broker's cluster keeps its metadata."""
    if broker.zookeeper_port is not None:
        return {
            "broker.id": broker.id,
            "zookeeper.connect": f"127.0.0.1:{broker.zookeeper_port}",
            "zookeeper.session.timeout.ms": 6_000,  # a killed broker is away for this long, and cannot come back sooner
        }
    return {
        "process.roles": "broker,controller",
        "node.id": broker.id,
        "controller.quorum.voters": ",".join(f"{b.id}@127.0.0.1:{b.controller_port}" for b in brokers),
        "controller.listener.names": "CONTROLLER",
    }


def server_properties(
    broker: Broker, brokers: Sequence[Broker], folder: Path, version: str = KAFKA_VERSION
) -> dict[str, object]:
    """server.properties of one broker: everything that makes tests wait is short.

    A version ignores settings that it does not know.
    """
    copies, in_sync = (3, 2) if len(brokers) >= 3 else (1, 1)  # with three, one may die
    listeners = {"PLAINTEXT": broker.port}
    if broker.zookeeper_port is None:
        listeners["CONTROLLER"] = broker.controller_port
    advertised = {"PLAINTEXT": broker.port}
    if broker.proxied_port is not None and broker.proxy_port is not None:
        listeners["PROXIED"], advertised["PROXIED"] = broker.proxied_port, broker.proxy_port
    listeners |= broker.secure_ports
    advertised |= broker.secure_ports
    return {
        **_quorum(broker, brokers),
        "broker.rack": f"rack-{broker.id}",
        "listeners": _addresses(listeners),
        "advertised.listeners": _addresses(advertised),
        "listener.security.protocol.map": ",".join(
            f"{name}:{name if name in broker.secure_ports else 'PLAINTEXT'}" for name in listeners
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.num.partitions": 4,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
        # Before 4.0 the second one is a preview, behind a feature flag.
        "group.coordinator.rebalance.protocols": "classic,consumer" if version_of(version) >= (4,) else "classic",
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        "group.consumer.session.timeout.ms": 6_000,
        "group.consumer.min.session.timeout.ms": 1_000,
        "group.consumer.heartbeat.interval.ms": 1_000,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "log.initial.task.delay.ms": 500,
        "log.retention.check.interval.ms": 1_000,
        "log.segment.delete.delay.ms": 100,
        "log.cleaner.backoff.ms": 500,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,  # the default would take a quarter of the heap
        "num.network.threads": 2,
        "num.io.threads": 4,
        "broker.session.timeout.ms": 4_000,  # a killed broker is away for this long, and cannot come back sooner
        "broker.heartbeat.interval.ms": 500,
    }


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


_chosen: set[int] = set()
_choosing = threading.Lock()  # brokers and a Spark cluster start at the same time


def free_ports(count: int) -> list[int]:
    """Choose ports below those that the system hands out: a broker that is started, or started again after a kill,
    finds its port free even when other processes connect and listen in between.

    A process gets each port once: one that was chosen is free until its broker listens, or while that is killed.
    """
    # All are held open until the last is chosen, or one could be chosen twice.
    with _choosing, contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        left = [port for port in _port_range() if port not in _chosen]
        for port in random.sample(left, k=min(100 + count, len(left))):
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                held.append(one)
            if len(held) == count:
                ports = [one.getsockname()[1] for one in held]
                _chosen.update(ports)
                return ports
        raise RealKafkaError(f"no {count} free ports from {_LOWEST_PORT} on: end what listens there")


def _port_range() -> range:
    """Return the ports to choose from: those of this process of pytest-xdist, or all of them.

    Guards against: 1. Two processes of one test run choose ports in the seconds before their brokers listen. 2. Both
    choose the same one. 3. The second broker ends because its port is in use.
    """
    ports = range(_LOWEST_PORT, _first_ephemeral_port())
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not worker.isdecimal():
        return ports
    share = len(ports) // _MOST_WORKERS
    begin = int(worker) % _MOST_WORKERS * share
    return ports[begin : begin + share]


def _first_ephemeral_port() -> int:
    """Linux says it; elsewhere it is IANA's. A machine that hands out low ports, too, takes its chances."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 49_152
    return first if first >= _LOWEST_PORT + 1_000 else 32_768


wait_until = partial(rundir.wait_until, error=RealKafkaError)


def _command_of(pid: int) -> str:
    """The command line of a live process; empty for a dead one and for a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if Path("/proc/self/cmdline").exists():
            return ""
    run = subprocess.run(["ps", "-p", str(pid), "-o", "command="], capture_output=True, text=True, check=False)
    return run.stdout


class Cluster:
    """The brokers of one run directory, whoever started them: state file, processes, logs."""

    def __init__(
        self, run_dir: Path, brokers: list[Broker], version: str = KAFKA_VERSION, zookeeper: Broker | None = None
    ) -> None:
        self.run_dir = run_dir
        self.version = version
        # Its process, as that of a broker with the id 0.
        self.zookeeper = zookeeper
        self.brokers = brokers
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        # Options of the brokers' JVMs, besides those that all have.
        self.java_options: list[str] = []
        # What clients are given besides the address, if they log in.
        self.login: dict[str, str] = {}

    @classmethod
    def load(cls, run_dir: Path) -> Cluster | None:
        """The cluster that the state file describes; None without one."""
        state = rundir.load_state(run_dir)
        if state is None:
            return None
        zookeeper = state.get("zookeeper")
        brokers = [Broker(**b) for b in state["brokers"]]
        found = cls(
            run_dir, brokers, state.get("version", KAFKA_VERSION), None if zookeeper is None else Broker(**zookeeper)
        )
        found.login = state.get("login", {})
        return found

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        state = {
            "bootstrap.servers": self.bootstrap_servers,
            "version": self.version,
            "brokers": [asdict(b) for b in self.brokers],
            "zookeeper": None if self.zookeeper is None else asdict(self.zookeeper),
            "login": self.login,
        }
        rundir.save_state(self.run_dir, state)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{b.port}" for b in self.brokers)

    @property
    def address(self) -> str:
        """What clients are given: a line name=value for each setting."""
        return "\n".join(f"{name}={value}" for name, value in self.client_settings.items())

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client, under librdkafka's names."""
        servers = self.bootstrap_servers
        if self.login:
            protocol = self.login["security.protocol"].upper()
            servers = ",".join(f"127.0.0.1:{one.secure_ports[protocol]}" for one in self.brokers)
        return {"bootstrap.servers": servers, **self.login}

    def running(self) -> bool:
        return any(self.alive(one) for one in self.brokers)

    def status(self) -> Iterator[str]:
        for one in self.brokers:
            yield f"broker {one.id} 127.0.0.1:{one.port} {f'running, pid {one.pid}' if self.alive(one) else 'down'}"

    @property
    def processes(self) -> list[Broker]:
        """The brokers, and ZooKeeper if there is one."""
        return self.brokers if self.zookeeper is None else [*self.brokers, self.zookeeper]

    def broker(self, broker_id: int) -> Broker:
        for one in self.brokers:
            if one.id == broker_id:
                return one
        raise RealKafkaError(f"no broker {broker_id}: the ids are 1 to {len(self.brokers)}")

    def folder(self, broker_id: int) -> Path:
        return self.run_dir / f"broker-{broker_id}"

    def log_tail(self, broker_id: int, lines: int = 40) -> str:
        return rundir.log_tail(self.folder(broker_id) / "broker.log", lines)

    def write_log_settings(self) -> None:
        """What brokers log: warnings, and all that the group coordinator does."""
        (self.run_dir / "log4j2.properties").write_text(_LOG4J)

    def alive(self, broker: Broker) -> bool:
        if broker.pid is None:
            return False
        child = self._children.get(broker.id)
        if child is not None and child.pid == broker.pid:  # its pid is not used again before poll() took it
            return child.poll() is None
        return self._mark in _command_of(broker.pid)

    @property
    def _mark(self) -> str:
        return f"-Dgroupkafka.run={self.run_dir}/"  # the slash: /tmp/a is not /tmp/ab

    def java_command(self, main_class: str, *arguments: object) -> list[str]:
        java = find_java()
        jars = class_path(java, self.version)
        return [
            *(str(java), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", self._mark),
            f"-Dlog4j2.configurationFile={self.run_dir}/log4j2.properties",
            *archive_options(java, jars),
            *self.java_options,
            *("-cp", jars, main_class, *map(str, arguments)),
        ]

    def spawn(self, broker: Broker) -> None:
        """Start the process, in a session of its own: a Ctrl-C at the terminal is not meant for it."""
        folder = self.folder(broker.id)
        if broker is self.zookeeper:
            folder.mkdir()
            main = ("org.apache.zookeeper.server.ZooKeeperServerMain", broker.port, folder / "data")
        else:
            main = ("kafka.Kafka", folder / "server.properties")
        with (folder / "broker.log").open("ab") as log:
            child = subprocess.Popen(
                self.java_command(*main),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder,
            )
        self._children[broker.id] = child
        broker.pid = child.pid
        self.save()

    def send(self, broker: Broker, number: signal.Signals) -> bool:
        """Send a signal if the process is alive and ours; False if not."""
        if broker.pid is None or not self.alive(broker):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(broker.pid, number)
        return True

    def end(self, brokers: Sequence[Broker], timeout_s: float) -> None:
        """SIGTERM to all, then SIGKILL to those that are still there after timeout_s."""
        for one in brokers:
            self.send(one, signal.SIGCONT)  # a stopped process would not see the next signal
            self.send(one, signal.SIGTERM)
        with contextlib.suppress(RealKafkaError):
            wait_until("brokers to end", timeout_s, lambda: not any(self.alive(b) for b in brokers))
        self.kill(brokers)

    def kill(self, brokers: Sequence[Broker]) -> None:
        """SIGKILL, and wait until the processes are gone."""
        for one in brokers:
            self.send(one, signal.SIGKILL)
        wait_until("killed brokers to disappear", 10.0, lambda: not any(self.alive(b) for b in brokers))
        for one in brokers:
            one.pid = None
        self.save()

    def remove(self) -> None:
        """End all processes, and remove all files."""
        # The data goes anyway, so none of the brokers gets the time for a controlled shutdown.
        self.end(self.processes, 2.0)
        shutil.rmtree(self.run_dir)
