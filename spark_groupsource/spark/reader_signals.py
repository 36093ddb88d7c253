"""Handle signals to the reader process at once, whichever of its threads the kernel gives them to.

Python runs a handler on the main thread, the next time that thread runs Python code. The main thread of a reader waits
for the JVM in a system call, as long as the batch or the trigger interval takes. A signal that the kernel gives to the
main thread ends that call. One that another thread takes does not.

Guards against (rule R104):
1. The reader process is stopped (SIGSTOP, a frozen container) while its main thread waits for the JVM.
2. SIGTERM comes. A stopped thread takes no signal, so it stays pending for the process.
3. The process goes on. Another thread takes the signal, and the main thread's call is not interrupted.
4. The handler would run at the next trigger only. Nothing is handed over before the supervisor's SIGKILL.

Python's own handler, in C, also writes the signal's number to a descriptor (`signal.set_wakeup_fd`), on whichever
thread it runs. A thread reads it.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Collection


def on_signals(numbers: Collection[int], request: Callable[[int], object]) -> None:
    """Call `request` with the number of each of these signals, on the main thread, a thread of its own, or both.

    Call it on the main thread. `request` must be safe in a signal handler: a second signal may interrupt the first
    handler, which would wait for itself if it held a lock.
    """
    for number in numbers:
        signal.signal(number, lambda number, _frame: request(number))
    here, there = socket.socketpair()
    there.setblocking(False)
    # R104: another thread than the main thread may take the signal
    before = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    if before != -1:
        # The program's own, for instance of an event loop on the main thread.
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        here.close()
        there.close()
        return
    thread = threading.Thread(
        target=_serve, args=(here, there, frozenset(numbers), request), name="groupkafka-signals", daemon=True
    )
    thread.start()


def _serve(
    here: socket.socket, there: socket.socket, numbers: Collection[int], request: Callable[[int], object]
) -> None:
    """Read the numbers of signals. Holds `there`: it would be closed otherwise."""
    with here, there:
        while arrived := here.recv(64):
            for number in arrived:
                if number in numbers:
                    request(number)
