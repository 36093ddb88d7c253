"""A checkpoint on S3: Spark writes it to `s3a://`, and the source is given the same location.

The server is moto's, in this process. The query runs in a process of its own, because it needs more jars.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from spark_groupsource.checkpoint.log import CheckpointLog, offsets_in_log_entry
from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles, ask_to_stop
from spark_groupsource.model.offsets import parse_offset
from tests import checkout
from tests.realkafka.jars import find_java
from tests.realkafka.s3jars import s3_jars

from .application import Application
from .harness import Independent, Record, skipped, wait_for
from .holding import Events, Held, released
from .test_completion import HANDOVER_S

pytestmark = pytest.mark.kafka

BUCKET, KEY = "checkpoints", "shop/orders 1"
LOCATION = f"s3a://{BUCKET}/{KEY}"
TRIGGER_S = 20
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "not/a+secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Bucket:
    """An S3 server on loopback with one bucket."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.address = f"{host}:{port}"
        self._client = boto3.client("s3", endpoint_url=f"http://{self.address}")
        # Servers of one process share what they store.
        urllib.request.urlopen(f"http://{self.address}/moto-api/reset", data=b"", timeout=30).close()
        self._client.create_bucket(Bucket=BUCKET)

    def close(self) -> None:
        """End the server."""
        self._client.close()
        self._server.stop()

    def names(self, folder: str) -> set[str]:
        """Return the numbers of the log entries in a folder of the checkpoint."""
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{KEY}/{folder}/").get("Contents", [])
        return {name for item in found if (name := item["Key"].rpartition("/")[2]).isdigit()}

    def files(self, folder: str) -> set[str]:
        """Return the names of a folder's files."""
        found = self._client.list_objects_v2(Bucket=BUCKET, Prefix=f"{KEY}/{folder}/").get("Contents", [])
        return {name for item in found if (name := item["Key"].rpartition("/")[2])}

    def write(self, name: str, text: str) -> None:
        """Write a file of the checkpoint."""
        self._client.put_object(Bucket=BUCKET, Key=f"{KEY}/{name}", Body=text.encode())

    def read(self, name: str) -> str:
        """Return a file of the checkpoint."""
        text: str = self._client.get_object(Bucket=BUCKET, Key=f"{KEY}/{name}")["Body"].read().decode()
        return text


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Start the server; this process has credentials for it, and its address where pyarrow and the SDK look."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = Bucket()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.address}")
    yield server
    server.close()


@pytest.fixture
def jars() -> list[Path]:
    """Return the jars that Spark needs for S3."""
    with skipped("NO S3 JARS, a checkpoint on S3 is not shown"):
        return s3_jars(find_java())


class S3Query:
    """`query_process.py` with its checkpoint on S3."""

    def __init__(self, folder: Path, name: str, options: dict[str, str], jars: list[Path], endpoint: str) -> None:
        self.out = folder / name
        self.out.mkdir()
        settings: dict[str, Any] = {
            "name": name, "out": str(self.out), "checkpoint": LOCATION,
            "options": options | {"kafka.client.id": name, "checkpointLocation": LOCATION},
            "trigger": {"processingTime": f"{TRIGGER_S} seconds"},
        }  # fmt: skip
        conf = {
            "spark.jars": ",".join(map(str, jars)),
            "spark.hadoop.fs.s3a.endpoint": endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": CREDENTIALS["AWS_DEFAULT_REGION"],
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }
        arguments = " ".join(f"--conf {key}={value}" for key, value in conf.items())
        with (self.out / "log").open("wb") as log:
            self.process = subprocess.Popen(
                checkout.command("tests.kafka.query_process", json.dumps(settings)),
                stdout=log, stderr=log, start_new_session=True,
                env=checkout.environment({"PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell"}),
            )  # fmt: skip

    def log(self) -> str:
        """Return the end of its output."""
        return (self.out / "log").read_text(errors="replace")[-8000:]

    def check(self) -> bool:
        """Return True; fails with its output when it has ended."""
        assert self.process.poll() is None, self.log()
        return True

    def records(self) -> Counter[Record]:
        """Return how often its sink has each record."""
        batches = [json.loads(path.read_text()) for path in self.out.glob("*-*.json")]
        return Counter((topic, partition, offset) for b in batches for topic, partition, offset, _ in b["rows"])

    def stop(self) -> None:
        """Stop it cleanly."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.log()

    def kill(self) -> None:
        """End what is left of it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.mark.timeout(600)
def test_p6_a_checkpoint_on_s3_hands_over_and_stops_as_a_local_one(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path,
    bucket: Bucket, jars: list[Path],
) -> None:  # fmt: skip
    """1. a second query joins while a batch reads: it gets its share at the batch's end, 2. it leaves, 3. the first one
    has another batch, and a third query joins after its end: it is committed before the partitions go, 4. that one
    leaves, 5. the first one has a last batch and is stopped: that one is committed too.

    Nobody looks into a store while nobody waits for the batch.
    """
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(40)), 4)
    seen, held = Events(tmp_path, "first"), Held("first", "while-reading")
    first = S3Query(tmp_path, "first", options | seen.options, jars, f"http://{bucket.address}")
    try:
        with released(held):
            wait_for(
                "Spark with its S3 jars", lambda: first.check() and (first.out / "started").exists(), 120, first.log
            )
            held.wait_reached(first.log)
            second = application.start_query("second", options)
            seen.wait_for("revoking")
            assert first.check()
            assert not seen.lines("revoked"), "the revoke did not wait for the batch"
            # Not the next trigger is to tell: it comes when the interval is over.
            wait_for("an early moment", lambda: time.time() % TRIGGER_S < TRIGGER_S / 2, TRIGGER_S)
            held.release()
            ended_s = wait_for("the batch's end", lambda: bucket.names("commits") and time.time(), 60, first.log)
            revoked = seen.wait_for("revoked")
        print(f"handover with a checkpoint on S3: {revoked['at'] - ended_s:.3f}s")
        assert revoked["details"]["outcome"] == "COMPLETE"
        assert revoked["at"] - ended_s <= HANDOVER_S
        assert seen.lines("completed")[0]["at"] <= revoked["at"]
        assert bucket.names("offsets") == {"0"}, "the trigger came meanwhile: nothing is shown"
        second.stop()
        wait_for("the first query to own all", lambda: seen.metrics()["assigned_partitions"] == 4, 30, seen.tail)

        client.produce(topic, (f"b{n}" for n in range(40)), 4)
        wait_for("the next batch", lambda: first.check() and "1" in bucket.names("commits"), 3 * TRIGGER_S, first.log)
        time.sleep(1.5)  # Longer than a member with a local checkpoint would need.
        assert client.lag(group, topic) == 40, "something else than the revoke commits: nothing is shown"
        third = application.start_query("third", options)
        wait_for("the commit of the finished batch", lambda: client.lag(group, topic) == 0, 60, seen.tail)
        seen.wait_for("revoked", 2)  # The commit comes first: until they go, the query tells that it owns all.
        assert bucket.names("offsets") == {"0", "1"}, "the trigger came meanwhile: nothing is shown"
        third.stop()
        wait_for("the first query to own all", lambda: seen.metrics()["assigned_partitions"] == 4, 30, seen.tail)

        client.produce(topic, (f"c{n}" for n in range(40)), 4)
        wait_for("the last batch", lambda: first.check() and "2" in bucket.names("commits"), 3 * TRIGGER_S, first.log)
        assert client.lag(group, topic) == 40, "something else than the stop commits: nothing is shown"
        first.stop()
        assert client.lag(group, topic) == 0, seen.tail()
    finally:
        first.kill()
    total = first.records() + second.completed_records() + third.completed_records()
    assert set(total) == client.records(topic)
    assert set(total.values()) == {1}
    assert "checkpoint not readable" not in (first.out / "log").read_text()
    check_log_reader(bucket)


def check_log_reader(bucket: Bucket) -> None:
    """What the source makes of the last entry when it is given pyarrow's own parameters for the store."""
    (logged,) = offsets_in_log_entry(bucket.read("offsets/2"))
    assert isinstance(logged, dict)
    offset = parse_offset(logged)
    assert CheckpointLog(f"{LOCATION}?endpoint_override={bucket.address}&scheme=http").is_complete(offset)
    assert not CheckpointLog(f"s3a://{BUCKET}/elsewhere").is_complete(offset)


@pytest.mark.rule("R78")
def test_requests_to_stop_are_exchanged_on_s3(bucket: Bucket) -> None:
    """The reader's side and that of whoever asks, each with a client of its own."""
    reader, asker = StopFiles(LOCATION), StopFiles(LOCATION)
    run = Run.here("shop", 0)
    with pytest.raises(ValueError, match="Spark has no checkpoint here"):
        reader.register(run)
    bucket.write("metadata", "{}")
    assert asker.runs() == ()
    reader.register(run)
    assert not reader.is_requested(run.name)
    asked = ask_to_stop(asker, {})
    assert (asked, reader.is_requested(run.name)) == ({run.name: None}, True)
    reader.answer(run.name, Answer.COMPLETE)
    reader.unregister(run.name)
    assert ask_to_stop(asker, asked) == {run.name: Answer.COMPLETE}
    asker.forget(run.name)
    assert bucket.files("groupkafka") == set()

    reader.register(run)
    asker.request(run.name, waits=False)
    reader.answer(run.name, Answer.COMPLETE)
    reader.unregister(run.name)
    assert bucket.files("groupkafka") == set()
