"""A process of pytest-xdist that dies in a test: its exit code is in the output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent.parent
_DIES = {
    "it was ended by SIGKILL": "import os\n\ndef test_it():\n    os.kill(os.getpid(), 9)\n",
    "it ended with exit code 7": "import os\n\ndef test_it():\n    os._exit(7)\n",
    "it was ended by SIGSEGV; without a stack above, a thread of librdkafka crashed": """
import ctypes, signal, threading

def crash():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.string_at(0)

def test_it():
    thread = threading.Thread(target=crash)
    thread.start()
    thread.join()
""",
}


@pytest.mark.parametrize("ending", _DIES)
def test_the_exit_code_of_a_process_that_dies_is_shown(ending: str, tmp_path: Path) -> None:
    test = tmp_path / "test_dies.py"
    test.write_text(_DIES[ending])
    command = [sys.executable, "-m", "pytest", "-p", "tests.worker_ends", "-n", "1", "--max-worker-restart", "0", test]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(_ROOT)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    # Not 1, the code of failed tests: some tests have not run at all.
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout + done.stderr
    assert f": {ending}" in done.stdout, done.stdout + done.stderr
    assert "Fatal Python error" not in done.stdout + done.stderr
