"""The threads and queues of the operating system."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

# A thread waits for 2 ms again and again, and shows after each tenth wait that it goes on.
_WAITER = """
import queue, signal, sys, threading
from spark_groupsource.membership.runner import SYSTEM

signal.signal(signal.SIGTERM, lambda *_: None)
inbox = SYSTEM.inbox()

def wait():
    print(threading.get_native_id(), flush=True)
    while True:
        for _ in range(10):
            try:
                inbox.get(timeout=0.002)
            except queue.Empty:
                pass
        print("goes on", flush=True)

thread = threading.Thread(target=wait, daemon=True)
thread.start()
sys.stdin.read()
"""
_TIMES = 100
_LONG_S = 30.0


@pytest.mark.rule("R104")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sends a signal to one thread of another process")
def test_a_wait_ends_after_the_process_was_stopped_and_its_thread_gets_a_signal() -> None:
    """1. A process is stopped for longer than its thread waits. 2. The thread gets SIGTERM. 3. The process goes on."""
    with subprocess.Popen(
        [sys.executable, "-c", _WAITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        thread = int(process.stdout.readline())
        os.set_blocking(process.stdout.fileno(), False)
        try:
            for number in range(_TIMES):
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(0.01)
                process.stdout.read()
                assert ctypes.CDLL(None).tgkill(process.pid, thread, signal.SIGTERM) == 0
                os.kill(process.pid, signal.SIGCONT)
                until_s = time.monotonic() + _LONG_S
                while not process.stdout.read():
                    assert time.monotonic() < until_s, f"the thread waits for ever, after {number} times"
                    time.sleep(0.005)
        finally:
            process.kill()
