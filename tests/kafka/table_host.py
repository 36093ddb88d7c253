"""One Spark application with Delta, whose queries are members of their own: tests start and end them by name.

It reads lines of JSON from standard input and answers each with a line on standard output, "done" or "failed: ...":

- ["start", settings]: start a query; settings are `name`, `sink`, `table`, `options` and `checkpoint` as those of
  query_process.py;
- ["stop", name]: stop a query;
- ["await", name]: wait until a query has ended by itself;
- ["race", table]: run merge_race.py; the answer is its result.

The first argument is JSON, too: Spark's settings. `TableHost` is the other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_groupsource.checkpoint.stop_requests import StopFiles
from tests import checkout
from tests.kafka.harness import wait_for
from tests.kafka.merge_race import race
from tests.kafka.query_process import session
from tests.kafka.table_sinks import table_writer

_ANSWER = "ANSWER "


class TableHost:
    """The process, as a test sees it."""

    def __init__(self, folder: Path, conf: dict[str, str]) -> None:
        self._log = folder / "host.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                checkout.command("tests.kafka.table_host", json.dumps(conf)),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env=checkout.environment({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}),
            )  # fmt: skip

    def call(self, *request: object) -> str:
        """Make a request, and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            text = line.decode(errors="replace")
            if text.startswith(_ANSWER):
                answer = text.removeprefix(_ANSWER).strip()
                assert not answer.startswith("failed"), f"{answer}\n{self.log()}"
                return answer
        raise AssertionError(f"the application has ended\n{self.log()}")

    def log(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End the process and all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=30)


class HostedMember:
    """A query of the host. See `harness.Query`, which is one with a process of its own."""

    def __init__(self, host: TableHost, settings: dict[str, Any]) -> None:
        self._host = host
        self.name: str = settings["name"]
        self.checkpoint = Path(settings["checkpoint"])
        host.call("start", settings)

    def log(self) -> str:
        """Return the end of the host's log."""
        return self._host.log()

    def stop(self) -> None:
        """Stop the query, and wait until its member has left."""
        self._host.call("stop", self.name)
        folder = self.checkpoint / "groupkafka"
        wait_for("the reader's end", lambda: not list(folder.iterdir()), 60, self.log)

    def kill(self) -> None:
        """SIGKILL the member: the query's reader process. Then the query fails."""
        (run,) = StopFiles(str(self.checkpoint)).runs()
        os.kill(run.pid, signal.SIGKILL)
        self._host.call("await", self.name)


class _Application:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}

    def start(self, settings: dict[str, Any]) -> str:
        options = {"checkpointLocation": settings["checkpoint"]} | settings["options"]
        frame = self._spark.readStream.format("groupkafka").options(**options).load()
        writer = table_writer(settings["sink"], frame, Path(settings["table"]), lambda _number: None)
        writer = writer.option("checkpointLocation", settings["checkpoint"])
        self._queries[settings["name"]] = writer.trigger(processingTime="200 milliseconds").start()
        return "done"

    def stop(self, name: str) -> str:
        self._queries.pop(name).stop()
        return "done"

    def await_(self, name: str) -> str:
        try:
            self._queries[name].awaitTermination(60)
        except StreamingQueryException:
            return "done"
        return f"failed: {name} has not failed"

    def race(self, table: str) -> str:
        return race(self._spark, table)


def main(conf: str) -> None:
    """Serve requests until standard input ends."""
    application = _Application(session("table", json.loads(conf)))
    served: dict[str, Callable[[Any], str]] = {
        "start": application.start, "stop": application.stop, "await": application.await_, "race": application.race,
    }  # fmt: skip
    for line in sys.stdin:
        name, argument = json.loads(line)
        try:
            answer = served[name](argument)
        except PySparkException as error:
            answer = f"failed: {error!r}"
        print(_ANSWER + answer.replace("\n", " "), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
