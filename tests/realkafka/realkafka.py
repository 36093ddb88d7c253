"""A real Apache Kafka on 127.0.0.1 for tests: one to three brokers, with short group timings.

In KRaft mode; versions before 3.3 with a ZooKeeper.

In a test, the brokers end with the process that started them, however it ends:

    with RealKafka(brokers=3) as kafka:
        ... kafka.bootstrap_servers ... kafka.kill_broker(2) ... kafka.start_broker(2)

From a shell, they stay until told to stop: `scripts/kafka start [--brokers 3] [--version 3.9.1]`, `status`, `stop`.
Broker ids start at 1.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.realkafka import rundir
from tests.realkafka.cluster import (
    Broker,
    Cluster,
    free_ports,
    needs_zookeeper,
    server_properties,
    wait_until,
)
from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError, class_path, find_java
from tests.realkafka.proxy import KafkaProxy

if TYPE_CHECKING:
    from tests.realkafka.login import Secured

__all__ = ["KAFKA_VERSION", "RealKafka", "RealKafkaError", "find_java"]

_START_TIMEOUT_S = 90.0  # 3 to 6 s for one broker on an idle machine
_STOP_TIMEOUT_S = 20.0  # a controlled shutdown of a broker whose controller is gone never ends by itself


class RealKafka(rundir.Owner):
    """A Kafka cluster with its data in a fresh directory, removed at the end.

    properties: server properties for all brokers, over the defaults of this module.
    run_dir: must not exist; a temporary directory without it.
    detached: the brokers outlive this process (scripts/kafka); otherwise they end with it.
    proxied: a proxy in this process stands before the brokers, for clients that bootstrap at `proxied_servers`;
        those at `bootstrap_servers`, and the brokers among themselves, do without it.
    version: of Kafka; fetched when it is not there.
    security: keys, users and rights (security.py), or users only (login.py), and listeners for them: `secure_servers`.
    java_options: of the JVMs, besides those that all have.
    Errors are RealKafkaError. One thread at a time.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        properties: Mapping[str, object] | None = None,
        run_dir: Path | None = None,
        detached: bool = False,
        proxied: bool = False,
        security: Secured | None = None,
        version: str = KAFKA_VERSION,
        java_options: Sequence[str] = (),
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: at least 1 is needed")
        if proxied and detached:
            raise ValueError("proxied=True: the proxy ends with this process, so the brokers cannot be detached")
        self._count = brokers
        self._extra = dict(properties or {})
        self._wanted_dir = run_dir
        self._detached = detached
        self._proxied = proxied
        self._security = security
        self._version = version
        self._java_options = list(java_options)
        self._timeout_s = start_timeout_s
        self._cluster: Cluster | None = None
        self._proxy: KafkaProxy | None = None
        self._watchdog: rundir.Watchdog | None = None

    def __repr__(self) -> str:
        return f"RealKafka({self._cluster.bootstrap_servers if self._cluster else 'not running'})"

    @property
    def _running(self) -> Cluster:
        if self._cluster is None:
            raise RealKafkaError("the cluster is not running: use it in a with block, or call start()")
        return self._cluster

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, comma separated; the same over a broker's restart."""
        return self._running.bootstrap_servers

    @property
    def address(self) -> str:
        """What clients are given: a line name=value for each setting."""
        return self._running.address

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client, under librdkafka's names; with a login if the cluster was made with one."""
        return self._running.client_settings

    def secure_servers(self, protocol: str) -> str:
        """host:port of every broker's listener for SASL_PLAINTEXT, SSL or SASL_SSL."""
        return ",".join(f"127.0.0.1:{one.secure_ports[protocol]}" for one in self._running.brokers)

    @property
    def proxy(self) -> KafkaProxy:
        """The proxy of a cluster that was made with proxied=True."""
        if self._proxy is None:
            raise RealKafkaError(f"{self!r} has no proxy: make it with proxied=True")
        return self._proxy

    @property
    def proxied_servers(self) -> str:
        """host:port of every broker behind the proxy; the same over a broker's restart."""
        return self.proxy.servers

    def start(self) -> None:
        """Fetch if needed, format, start, and wait until every broker answers. Cleans up if that fails."""
        class_path(find_java(), self._version)  # fetches, so that the time limits below are about Kafka alone
        if self._wanted_dir is None:
            run_dir = Path(tempfile.mkdtemp(prefix="groupkafka-"))
        else:
            run_dir = self._wanted_dir.absolute()
            run_dir.mkdir(parents=True)
        ports = free_ports(3 * self._count)
        made = [Broker(i + 1, ports[2 * i], ports[2 * i + 1]) for i in range(self._count)]
        zookeeper = Broker(0, *free_ports(2)) if needs_zookeeper(self._version) else None
        for one in made:
            one.zookeeper_port = None if zookeeper is None else zookeeper.port
        self._cluster = Cluster(run_dir, made, self._version, zookeeper)
        try:
            if self._proxied:
                self._start_proxy(made, ports[2 * self._count :])
            if self._security is not None:
                for one in made:
                    listeners = self._security.listeners
                    one.secure_ports = dict(zip(listeners, free_ports(len(listeners)), strict=True))
                self._cluster.login = self._security.login()
            self._cluster.save()
            if not self._detached:
                self._watchdog = rundir.Watchdog("tests.realkafka", run_dir)
            self._format()
            if zookeeper is not None:
                # Brokers wait for it.
                self._cluster.spawn(zookeeper)
            for one in made:
                self._cluster.spawn(one)
            for one in made:
                self._wait_ready(one)
        except BaseException:
            self.close()
            raise

    def _start_proxy(self, brokers: Sequence[Broker], ports: Sequence[int]) -> None:
        """Bind the proxy's ports first: the brokers advertise them."""
        self._proxy = KafkaProxy({one.id: port for one, port in zip(brokers, ports, strict=True)})
        for one, port in zip(brokers, ports, strict=True):
            one.proxied_port, one.proxy_port = port, self._proxy.port(one.id)

    def _format(self) -> None:
        cluster = self._running
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        cluster.write_log_settings()
        secured = {} if self._security is None else self._security.prepare(cluster.run_dir)
        secure_options = [] if self._security is None else self._security.java_options()
        cluster.java_options = [*self._java_options, *secure_options]
        users = [] if self._security is None else self._security.format_arguments()
        for one in cluster.brokers:
            folder = cluster.folder(one.id)
            folder.mkdir()
            self._write_properties(one, secured)
            if cluster.zookeeper is not None:
                continue
            command = cluster.java_command(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={cluster_id}",  # one word: an id may begin with a dash
                f"--config={folder / 'server.properties'}",
                *users,
            )
            run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=self._timeout_s)
            if run.returncode != 0:
                raise RealKafkaError(f"formatting broker {one.id} failed:\n{run.stdout}{run.stderr}")

    def _write_properties(self, broker: Broker, more: Mapping[str, object]) -> None:
        cluster, folder = self._running, self._running.folder(broker.id)
        lines = {**server_properties(broker, cluster.brokers, folder, self._version), **self._extra, **more}
        (folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))

    def restart_with(self, broker_id: int, properties: Mapping[str, object]) -> None:
        """Stop a broker, and start it with these properties over those that it had. Not for secured clusters."""
        self.stop_broker(broker_id)
        self._write_properties(self._running.broker(broker_id), properties)
        self.start_broker(broker_id)

    def _wait_ready(self, broker: Broker) -> None:
        from confluent_kafka import KafkaException  # here, since stop and status do without
        from confluent_kafka.admin import AdminClient

        cluster = self._running
        address = f"127.0.0.1:{broker.port}"
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "reconnect.backoff.max.ms": 300})

        def answers() -> bool:
            if not cluster.alive(broker):
                raise RealKafkaError(f"broker {broker.id} ended while starting{log()}")
            try:
                return broker.id in admin.list_topics(timeout=1.0).brokers
            except KafkaException:
                return False

        def log() -> str:
            return f"; its log:\n{cluster.log_tail(broker.id)}"

        wait_until(f"broker {broker.id} at {address} to answer", self._timeout_s, answers, log)

    def stop_broker(self, broker_id: int) -> None:
        """Controlled shutdown (SIGTERM), SIGKILL when it takes too long; the data stays."""
        self._running.end([self._running.broker(broker_id)], _STOP_TIMEOUT_S)

    def kill_broker(self, broker_id: int) -> None:
        """SIGKILL: the broker has no chance to say goodbye; the data stays."""
        self._running.kill([self._running.broker(broker_id)])

    def pause_broker(self, broker_id: int) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(broker_id, signal.SIGSTOP)

    def resume_broker(self, broker_id: int) -> None:
        """SIGCONT after pause_broker."""
        self._signal(broker_id, signal.SIGCONT)

    def _signal(self, broker_id: int, number: signal.Signals) -> None:
        if not self._running.send(self._running.broker(broker_id), number):
            raise RealKafkaError(f"broker {broker_id} is not running")

    def start_broker(self, broker_id: int, *, wait: bool = True) -> None:
        """Start a stopped or killed broker again: same ports, same data.

        wait: until it answers; without a majority of the brokers it cannot.
        """
        broker = self._running.broker(broker_id)
        if self._running.alive(broker):
            raise RealKafkaError(f"broker {broker_id} is running already")
        self._running.spawn(broker)
        if wait:
            self._wait_ready(broker)

    def log_tail(self, broker_id: int, lines: int = 40) -> str:
        """The last lines of a broker's log."""
        return self._running.log_tail(broker_id, lines)

    def close(self) -> None:
        """End all brokers and remove their data. A second call does nothing."""
        cluster, self._cluster = self._cluster, None
        watchdog, self._watchdog = self._watchdog, None
        proxy, self._proxy = self._proxy, None
        try:
            if cluster is not None:
                cluster.remove()
        finally:
            if watchdog is not None:
                watchdog.close()
            if proxy is not None:
                proxy.close()
