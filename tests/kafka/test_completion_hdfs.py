"""A checkpoint on HDFS: libhdfs starts a JVM in the process that reads it, which must not take the process's signals.

See libhdfs.py for what stands in for Hadoop's library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Query, skipped, wait_for
from .holding import Events
from .libhdfs import Libhdfs, LibhdfsMissing, libhdfs

pytestmark = pytest.mark.kafka

# In a process of its own: a JVM cannot be taken out of a process again.
LOOK = """
import os, signal, sys, time
from pathlib import Path
from spark_groupsource.checkpoint.log import CheckpointLog
from spark_groupsource.model.offsets import SourceOffset
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(True))
location, root = sys.argv[1], Path(sys.argv[2])
for folder in ("offsets", "commits"):
    (root / folder).mkdir(parents=True)
(root / "metadata").write_text("{}")
log, end = CheckpointLog(location), SourceOffset("00000000-0000-0000-0000-000000000000")
assert not log.is_complete(end)
log.compare_start(end)
import json
(root / "offsets" / "0").write_text("v1\\n{}\\n" + json.dumps(end.to_json()))
assert not log.is_complete(end)
assert not log.glance(SourceOffset("10000000-0000-0000-0000-000000000000"))
(root / "commits" / "0").write_text("v1\\n{}")
assert log.is_complete(end)
os.kill(os.getpid(), signal.SIGTERM)
deadline = time.monotonic() + 10
while not caught and time.monotonic() < deadline:
    time.sleep(0.01)
print("caught", bool(caught))
"""


@pytest.fixture
def hadoop(tmp_path: Path) -> Libhdfs:
    """Return a libhdfs; its folder is beside the checkpoints."""
    folder = tmp_path / "libhdfs"
    folder.mkdir()
    with skipped("NO LIBHDFS, a checkpoint on HDFS is not shown", LibhdfsMissing):
        return libhdfs(folder)


@pytest.mark.parametrize("given", ["", "-Xmx48m"])
def test_the_jvm_of_libhdfs_takes_no_signal_and_prints_nothing(hadoop: Libhdfs, given: str, tmp_path: Path) -> None:
    """Guards against: 1. the first look starts the JVM, which takes SIGTERM over, 2. SIGTERM ends the process at once:
    no last commit, no leave."""
    root = tmp_path / "checkpoint"
    run = subprocess.run(
        [sys.executable, "-c", LOOK, hadoop.location(root), str(root)],
        env=os.environ | hadoop.environment | {"LIBHDFS_OPTS": given},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, "caught True\n"), run.stderr
    assert "Exception" not in run.stderr


@pytest.mark.timeout(400)
def test_p6_a_stop_with_a_checkpoint_on_hdfs_commits_the_last_batch_and_leaves(
    hadoop: Libhdfs,
    start_query: Callable[..., Query],
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. a second member joins and leaves: the first one has looked into the log, 2. it has a last batch, 3. it is
    stopped. Only the look at the log says that the batch is complete.
    """
    options["kafka.session.timeout.ms"] = "45000"
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    for name, value in hadoop.environment.items():
        monkeypatch.setenv(name, value)
    seen, checkpoint = Events(tmp_path, "first"), tmp_path / "checkpoint"
    first = start_query(
        "first",
        options | seen.options | {"checkpointLocation": hadoop.location(checkpoint)},
        checkpoint=str(checkpoint),
        trigger={"processingTime": "20 seconds"},
    )
    first.wait_for_records(client.records(topic))
    second = application.start_query("second", options)
    seen.wait_for("revoked")
    second.stop()
    wait_for("the first query to own all", lambda: seen.metrics()["assigned_partitions"] == 2, 30, seen.tail)

    client.produce(topic, (f"b{n}" for n in range(40)), 2)
    wait_for("the last batch's end", lambda: len(list((checkpoint / "commits").glob("[0-9]*"))) > 1, 60, first.log)
    assert client.lag(group, topic) == 40, "something else than the stop commits: nothing is shown"
    first.stop()
    seen.wait_for("left", timeout_s=30)
    assert client.lag(group, topic) == 0, seen.tail()
    assert client.member_count(group) == 0
    assert "FileNotFoundException" not in (first.out / "log").read_text()
