"""Serve metrics over HTTP, for a Prometheus server. The only module that imports prometheus_client (extra `metrics`).

Guards against clients that open connections and send nothing: a connection has a time limit, and the number of
connections is limited. There is no TLS and no authentication: the caller decides on which address it listens.

Why not `prometheus_client.start_http_server`, which has TLS: its connections have no time limit. 300 that send nothing
keep 300 threads of the driver until they are closed. With TLS it makes the handshake in the thread that accepts, so
one connection that sends nothing keeps all others from an answer (prometheus_client 0.26.0).
"""

from __future__ import annotations

import errno
import logging
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import groupby
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from spark_groupsource.prometheus.families import Family, Histogram, Sample

LOG = logging.getLogger(__name__)

Samples = Callable[[], Iterable[Sample]]

PATH = "/metrics"
# The format that every Prometheus server reads.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METRICS = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
# Seconds for which a connection may be silent.
_SILENT_S = 10.0
_MAX_CONNECTIONS = 16
# Seconds until the serving thread notices `close`.
_POLL_S = 0.1


def is_about_port(error: OSError) -> bool:
    """Return whether a server cannot listen because of its port, and not because of its address."""
    return error.errno in (errno.EADDRINUSE, errno.EACCES)


class MetricsServer(Collector):
    """Answer `GET /metrics` on threads of its own, with what `samples` returns at that moment.

    Port 0 takes a free one; `port` is the one in use. Raises OSError if the address cannot be listened on.
    """

    def __init__(self, address: str, port: int, samples: Samples) -> None:
        self._samples = samples
        self._server = _Server(address, port, self.text)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="groupkafka-metrics", daemon=True
        )
        self._thread.start()

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """Convert the samples to the objects of prometheus_client, one per metric."""
        every = sorted(self._samples(), key=lambda sample: sample.family.name)
        for family, samples in groupby(every, key=lambda sample: sample.family):
            yield _metric(family, samples)

    def close(self) -> None:
        """Stop listening; idempotent. An answer under way may not arrive."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    made: Any = _METRICS[family.kind](family.name, _plain(family.meaning), labels=family.labels)
    for sample in samples:
        if isinstance(sample.value, Histogram):
            buckets = [("+Inf" if at == float("inf") else f"{at:g}", count) for at, count in sample.value.cumulated()]
            made.add_metric(sample.labels, buckets, sample.value.total)
        else:
            made.add_metric(sample.labels, sample.value)
    metric: Metric = made
    return metric


def _plain(meaning: str) -> str:
    """Return a meaning without Markdown's marks for code, and without the targets of its links."""
    return _LINK.sub(r"\1", meaning).replace("`", "")


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listen, with a limited number of threads."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: str, port: int, text: Callable[[], bytes]) -> None:
        self.text = text
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        try:
            found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except UnicodeError as error:
            raise OSError(f"not a host name: {error}") from None
        self.address_family, target = found[0][0], found[0][4]
        super().__init__(target, _Handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread; close the connection at once if too many are open."""
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:
                # No thread could be started. The caller closes the connection.
                self._free.release()
                raise
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away or sent nothing."""
        LOG.debug("a connection to the metrics ended", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _SILENT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with the metrics."""
        if self.path.partition("?")[0] != PATH:
            self._answer(404, "text/plain", f"the metrics are at {PATH}\n".encode())
            return
        try:
            text = self.server.text()
        except Exception:
            LOG.exception("the metrics cannot be shown")
            self._answer(500, "text/plain", b"the metrics cannot be shown; see the log\n")
            return
        self._answer(200, _CONTENT_TYPE, text)

    def _answer(self, status: int, kind: str, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def version_string(self) -> str:
        """Return the program's name for the header `Server`, without the versions of Python."""
        return "groupkafka"

    def log_message(self, format: str, *args: Any) -> None:
        """Log no line per request."""
