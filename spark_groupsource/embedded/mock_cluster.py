"""Call the C functions of librdkafka's mock cluster through ctypes.

This module has signatures and error codes; `broker` documents what the calls do. Every signature is that of
librdkafka's public headers rdkafka.h and rdkafka_mock.h (with one exception, marked below). The mock part is outside
of librdkafka's promise of a stable interface: if the installed library lacks a function, an error reports it.
"""

from __future__ import annotations

import ctypes
from typing import Any

_PRODUCER = 0  # rd_kafka_type_t
_ERRSTR_SIZE = 512
_PTR, _STR, _INT, _I16, _I32, _I64, _SIZE = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int16,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_size_t,
)
# A result of the type rd_kafka_resp_err_t, a C enum.
_ERROR = "error code"
# name without "rd_kafka_": (result, arguments). rd_kafka_conf_res_t is a C enum, too.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "version_str": (_STR, ()),
    "err2name": (_STR, (_INT,)),
    "err2str": (_STR, (_INT,)),
    "conf_new": (_PTR, ()),
    "conf_destroy": (None, (_PTR,)),
    "conf_set": (_INT, (_PTR, _STR, _STR, _STR, _SIZE)),
    "new": (_PTR, (_INT, _PTR, _STR, _SIZE)),
    "destroy": (None, (_PTR,)),
    "mem_free": (None, (_PTR, _PTR)),
    "mock_cluster_new": (_PTR, (_PTR, _INT)),
    "mock_cluster_destroy": (None, (_PTR,)),
    "mock_cluster_bootstraps": (_STR, (_PTR,)),
    # Since librdkafka 2.16, and not in the headers of 2.15: derived from its use and its machine code, which stores a
    # 32-bit id under the cluster's lock and returns nothing.
    "mock_set_controller_id": (None, (_PTR, _I32)),
    "mock_topic_create": (_ERROR, (_PTR, _STR, _INT, _INT)),
    "mock_topic_delete": (_ERROR, (_PTR, _STR)),
    "mock_topic_set_error": (None, (_PTR, _STR, _INT)),
    "mock_partition_delete_records": (_ERROR, (_PTR, _STR, _I32, _I64)),
    "mock_partition_set_leader": (_ERROR, (_PTR, _STR, _I32, _I32)),
    "mock_broker_set_down": (_ERROR, (_PTR, _I32)),
    "mock_broker_set_up": (_ERROR, (_PTR, _I32)),
    "mock_broker_set_rtt": (_ERROR, (_PTR, _I32, _INT)),
    "mock_broker_set_rack": (_ERROR, (_PTR, _I32, _STR)),
    "mock_coordinator_set": (_ERROR, (_PTR, _STR, _STR, _I32)),
    "mock_push_request_errors_array": (None, (_PTR, _I16, _SIZE, ctypes.POINTER(_INT))),
    # Variadic after the count: pairs of C ints, error and delay in ms.
    "mock_broker_push_request_error_rtts": (_ERROR, (_PTR, _I32, _I16, _SIZE)),
    "mock_clear_request_errors": (None, (_PTR, _I16)),
    "mock_start_request_tracking": (None, (_PTR,)),
    "mock_get_requests": (ctypes.POINTER(_PTR), (_PTR, ctypes.POINTER(_SIZE))),
    "mock_clear_requests": (None, (_PTR,)),
    "mock_request_id": (_I32, (_PTR,)),
    "mock_request_api_key": (_I16, (_PTR,)),
    "mock_request_timestamp": (_I64, (_PTR,)),
    "mock_request_destroy": (None, (_PTR,)),
    "mock_group_initial_rebalance_delay_ms": (None, (_PTR, _I32)),
    "mock_set_group_consumer_session_timeout_ms": (None, (_PTR, _INT)),
    "mock_set_group_consumer_heartbeat_interval_ms": (None, (_PTR, _INT)),
}


class EmbeddedKafkaError(RuntimeError):
    """A call of the embedded broker failed: the text has the call and the reason."""


class Library:
    """librdkafka, loaded once; each function is declared at its first use."""

    def __init__(self, path: str) -> None:
        self._dll = ctypes.CDLL(path)
        self._path = path

    def __call__(self, name: str, *args: Any) -> Any:
        """Call rd_kafka_<name>. Raises EmbeddedKafkaError if it returns an error, or the library does not have it."""
        try:
            function = getattr(self._dll, f"rd_kafka_{name}")
        except AttributeError:
            raise EmbeddedKafkaError(
                f"librdkafka {self._version()} ({self._path}) has no rd_kafka_{name}: "
                "a newer confluent-kafka is needed for this call"
            ) from None
        result, function.argtypes = _SIGNATURES[name]
        function.restype = _INT if result is _ERROR else result
        found = function(*args)
        if result is _ERROR and found:
            code, text = self("err2name", found).decode(), self("err2str", found).decode()
            shown = ", ".join(a.decode() if isinstance(a, bytes) else str(a) for a in args[1:])
            raise EmbeddedKafkaError(f"rd_kafka_{name}({shown}): {code}: {text}")
        return found

    def _version(self) -> str:
        self._dll.rd_kafka_version_str.restype = _STR
        return str(self._dll.rd_kafka_version_str().decode())


def new_handle(library: Library) -> int:
    """Create a librdkafka instance for the mock cluster; it never connects anywhere.

    Raises EmbeddedKafkaError. The caller must destroy it with rd_kafka_destroy.
    """
    text = ctypes.create_string_buffer(_ERRSTR_SIZE)
    conf = library("conf_new")
    # Silences only this instance, not the users' clients: its log has nothing that users could act on.
    if library("conf_set", conf, b"log_level", b"0", text, _ERRSTR_SIZE) != 0:
        library("conf_destroy", conf)
        raise EmbeddedKafkaError(f"rd_kafka_conf_set(log_level): {text.value.decode()}")
    handle = library("new", _PRODUCER, conf, text, _ERRSTR_SIZE)  # on success the instance owns conf
    if not handle:
        library("conf_destroy", conf)
        raise EmbeddedKafkaError(f"rd_kafka_new: {text.value.decode()}")
    return int(handle)


def seen_requests(library: Library, handle: int, cluster: int) -> list[tuple[int, int, int]]:
    """Return (broker id, request type, monotonic time in us) of every tracked request; free the C array."""
    count = _SIZE()
    array = library("mock_get_requests", cluster, ctypes.byref(count))
    seen = []
    for i in range(count.value):
        item = array[i]
        broker_id, api_key, time_us = (library(f"mock_request_{part}", item) for part in ("id", "api_key", "timestamp"))
        seen.append((broker_id, api_key, time_us))
        library("mock_request_destroy", item)
    if count.value:
        library("mem_free", handle, array)
    return seen
