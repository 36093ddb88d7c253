"""Reports how a process of pytest-xdist ended that ended in the middle of a test.

pytest's own faulthandler prints the stack of most crashes. It prints nothing for a crash in a thread that blocks all
signals, as librdkafka's threads do, and nothing for SIGKILL: the exit code is all that is left of these.
"""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_END_S = 30.0
_CRASHED = pytest.StashKey[bool]()


def ending(code: int) -> str:
    """Return what an exit code of `subprocess` means."""
    if code >= 0:
        return f"it ended with exit code {code}"
    number = signal.Signals(-code)
    hint = "; without a stack above, a thread of librdkafka crashed: those block signals" if number in _CRASHES else ""
    return f"it was ended by {number.name}{hint}"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Write the exit code of a process that has ended without having been asked to."""
    if not error:
        return
    node.config.stash[_CRASHED] = True
    process: subprocess.Popen[bytes] = node.gateway._io.popen
    try:
        found = ending(process.wait(_END_S))
    except subprocess.TimeoutExpired:
        found = f"it closed its channel, but is still there after {_END_S:.0f} s"
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    reporter.write_line(f"[{node.gateway.id}] process {process.pid}: {found}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with another exit code than that of failed tests (1) if a process crashed: some tests have not run at all."""
    if session.config.stash.get(_CRASHED, False):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
