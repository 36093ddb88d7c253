"""scripts/env.sh: the scripts' environment is their own. Nothing is installed here: its Python is a stand-in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.checkout import ROOT

_JAVA = "#!/bin/sh\necho '    java.specification.version = 17' >&2\necho '    java.home = /a/java' >&2\n"
# Remembers what it is asked for.
_PYTHON = '#!/bin/sh\necho "$@" >>"$0.calls"\n'


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout with env.sh, in which a user has an environment `.venv`."""
    folder = tmp_path / "checkout"
    for name in ("scripts/env.sh", "pyproject.toml", "conf/constraints.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "spark_groupsource").mkdir()
    (folder / "spark_groupsource" / "a.c").write_text("")
    _executable(folder / ".venv" / "bin" / "python", _PYTHON)
    _executable(folder / ".venv-groupkafka" / "bin" / "python", _PYTHON)
    _executable(tmp_path / "java" / "bin" / "java", _JAVA)
    return folder


def _run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.defpath, "JAVA_HOME": str(checkout.parent / "java")}
    return subprocess.run(
        ["bash", *words], cwd=checkout, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def _bash(checkout: Path, command: str) -> list[str]:
    run = _run(checkout, "-c", f"set -euo pipefail; . scripts/env.sh; {command}")
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_a_users_environment_is_left_alone(checkout: Path) -> None:
    before = sorted(path.name for path in (checkout / ".venv").rglob("*"))
    shown = _bash(checkout, 'groupkafka_env demo,test; echo "$PYSPARK_PYTHON"; echo "${PATH%%:*}"; echo "$JAVA_HOME"')
    own = checkout / ".venv-groupkafka"
    assert shown == [str(own / "bin" / "python"), str(own / "bin"), "/a/java"]
    assert f"-e {checkout}[demo,test]" in (own / "bin" / "python.calls").read_text()
    assert (own / "stamp").read_text().splitlines()[1:] == ["demo", "test"]
    assert sorted(path.name for path in (checkout / ".venv").rglob("*")) == before
    assert not (checkout / ".venv-groupkafka.lock").exists()


def test_a_second_call_installs_nothing(checkout: Path) -> None:
    _bash(checkout, "groupkafka_env demo,test")
    calls = checkout / ".venv-groupkafka" / "bin" / "python.calls"
    calls.unlink()
    _bash(checkout, "groupkafka_env demo")
    assert not calls.exists()


def test_tools_that_need_little_use_the_scripts_environment_if_it_is_there(checkout: Path) -> None:
    own = checkout / ".venv-groupkafka" / "bin" / "python"
    assert _bash(checkout, 'groupkafka_any_python; echo "$python"') == [str(own)]
    _executable(checkout.parent / "path" / "python3", "#!/bin/sh\nexit 0\n")
    shutil.rmtree(checkout / ".venv-groupkafka")
    assert _bash(checkout, f'PATH={checkout.parent}/path:$PATH; groupkafka_any_python; echo "$python"') == ["python3"]


def test_tools_that_need_little_wait_for_a_set_up_that_another_call_does(checkout: Path) -> None:
    own = checkout / ".venv-groupkafka" / "bin" / "python"
    _executable(own, "#!/bin/sh\nexit 1\n")
    _executable(checkout.parent / "path" / "python3", "#!/bin/sh\nexit 1\n")
    command = 'groupkafka_env() { echo "set up $1"; }; groupkafka_any_python; echo "$python"'
    assert _bash(checkout, f"PATH={checkout.parent}/path:$PATH; {command}") == ["set up demo", str(own)]


def test_how_a_command_ended_is_one_line(checkout: Path) -> None:
    shown = _bash(
        checkout,
        """groupkafka_timed ci "a b" echo "c  d"; echo "$took"
        groupkafka_timed gate false sh -c "exit 3" || echo "$took $?" """,
    )
    # A second may begin meanwhile.
    lines = [re.sub(r": \d+ s", ": 0 s", line) for line in shown]
    assert lines == ["c  d", "[ci] a b: 0 s, exit code 0", "[gate] false: 0 s, exit code 3 3"]


def test_brokers_runs_no_test_without_the_list_of_tests(checkout: Path) -> None:
    """Without a name, pytest would run all tests."""
    shutil.copy(ROOT / "scripts" / "brokers", checkout / "scripts" / "brokers")
    own = checkout / ".venv-groupkafka" / "bin" / "python"
    _executable(own, _PYTHON + '[ "$*" != "-m tests.levels" ]\n')
    assert _run(checkout, "scripts/brokers", "4.3.1").returncode == 1
    assert "-m pytest" not in own.with_name("python.calls").read_text()
