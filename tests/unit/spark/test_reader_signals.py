"""Signals reach their request from every thread."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from spark_groupsource.spark.reader_signals import on_signals

_WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Put the handlers and the descriptor back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)
    signal.set_wakeup_fd(-1)


def raise_on_a_thread(then: threading.Event) -> threading.Thread:
    """Let a thread of its own take the signal; the main thread's call is not interrupted."""

    def run() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        then.set()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.rule("R104")
def test_a_signal_that_another_thread_takes_counts_while_the_main_thread_waits() -> None:
    requested, raised = threading.Event(), threading.Event()
    on_signals({signal.SIGUSR1}, lambda _number: requested.set())
    read, write = os.pipe()
    seen: list[bool] = []

    def end_the_wait() -> None:
        raised.wait(_WAIT_S)
        seen.append(requested.wait(_WAIT_S))
        os.write(write, b"x")

    ender = threading.Thread(target=end_the_wait)
    ender.start()
    thread = raise_on_a_thread(raised)
    # As a reader waits for the JVM: Python runs no handler before this call returns.
    assert os.read(read, 1) == b"x"
    thread.join(_WAIT_S)
    ender.join(_WAIT_S)
    os.close(read)
    os.close(write)
    assert seen == [True], "the signal waited for the main thread"


def test_a_signal_of_the_main_thread_counts_at_once() -> None:
    requested: list[float] = []
    on_signals({signal.SIGUSR1}, lambda _number: requested.append(time.monotonic()))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert requested


def test_other_signals_are_not_requests() -> None:
    requested, other = [], threading.Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: other.set())
    on_signals({signal.SIGUSR1}, requested.append)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert other.wait(_WAIT_S)
    time.sleep(0.05)
    signal.signal(signal.SIGUSR2, before)
    assert requested == []


def test_a_descriptor_that_the_program_has_set_stays() -> None:
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        signal.set_wakeup_fd(own.fileno())
        on_signals({signal.SIGUSR1}, lambda _number: None)
        assert signal.set_wakeup_fd(-1) == own.fileno()
