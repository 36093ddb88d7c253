"""`ProgressListener` in a notebook: cells run in a real kernel, and a test reads what a notebook would receive."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.spark

SESSION = """
from pyspark.sql import SparkSession
from spark_groupsource import ProgressListener
from spark_groupsource.embedded import EmbeddedKafka

broker = EmbeddedKafka()
broker.create_topic("orders", 2)
broker.produce("orders", [(None, b"v", n % 2) for n in range(50)])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = builder.config("spark.driver.memory", "1g").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
"""
LISTENER = "spark.streams.addListener(ProgressListener())"
QUERY = """
options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "orders", "kafka.group.id": "shop",
           "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
stream = spark.readStream.format("groupkafka").options(**options).load()
writer = stream.writeStream.format("noop").queryName("to <b>lake").option("checkpointLocation", "checkpoint")
writer.trigger(availableNow=True).start().awaitTermination(120)
"""


class Notebook:
    """Runs cells, and keeps the messages from which a notebook draws its outputs."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self.messages: list[dict[str, Any]] = []

    def run(self, cell: str) -> list[dict[str, Any]]:
        """Run a cell; return the messages with its outputs. An exception in the cell fails."""
        began = len(self.messages)
        request = self._client.execute(cell)
        while not self._is_end(message := self._next(120), request):
            assert message["msg_type"] != "error", "\n".join(message["content"]["traceback"])
        return self.messages[began:]

    def wait_for(self, text: str) -> None:
        """Wait until a table has a text, also after its cell has ended."""
        deadline = time.monotonic() + 60
        while not any(text in table for table in self.tables()):
            assert time.monotonic() < deadline, self.tables()
            self._next(60)

    def tables(self) -> list[str]:
        """Return all states of the tables."""
        contents = (message["content"] for message in self.messages)
        return [content["data"]["text/html"] for content in contents if "text/html" in content.get("data", {})]

    def kinds(self) -> list[str]:
        """Return the kinds of the messages about tables."""
        return [message["msg_type"] for message in self.messages if "text/html" in message["content"].get("data", {})]

    def printed(self) -> str:
        """Return what the cells printed to stdout."""
        streams = (message["content"] for message in self.messages if message["msg_type"] == "stream")
        return "".join(content["text"] for content in streams if content["name"] == "stdout")

    def _next(self, timeout_s: float) -> dict[str, Any]:
        try:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=timeout_s)
        except queue.Empty:
            pytest.fail(f"no message within {timeout_s:.0f} s: {self.messages[-3:]}")
        self.messages.append(message)
        return message

    def _is_end(self, message: dict[str, Any], request: str) -> bool:
        idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
        return idle and message["parent_header"].get("msg_id") == request


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    """Start a kernel whose files are all in the test's folder; its broker and its JVM end with it."""
    folders = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path), env=os.environ | folders)
    try:
        yield Notebook(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_notebook_shows_one_table_that_is_updated_in_place(notebook: Notebook) -> None:
    notebook.run(SESSION)
    (shown,) = [message for message in notebook.run(LISTENER) if message["msg_type"] == "display_data"]
    assert "no query has started" in shown["content"]["data"]["text/html"]
    table = shown["content"]["transient"]["display_id"]
    notebook.run(QUERY)
    notebook.wait_for("<td>ended</td>")
    changes = [message["content"] for message in notebook.messages if message["msg_type"] == "update_display_data"]
    assert {change["transient"]["display_id"] for change in changes} == {table}
    # One output below one cell: its start, three batches, its end.
    assert notebook.kinds() == ["display_data", *["update_display_data"] * len(changes)]
    assert len(changes) >= 5
    first, last = notebook.tables()[1], notebook.tables()[-1]
    assert first.count("<tr>") == last.count("<tr>") == 2
    assert "<td>to &lt;b&gt;lake</td><td>running</td><td></td>" in first
    assert "<td>to &lt;b&gt;lake</td><td>ended</td><td>2</td><td>10</td>" in last
    assert last.endswith("<td>0</td><td>orders[0,1]</td></tr></tbody></table>")
    assert "orders[0,1]" in changes[-1]["data"]["text/plain"]
    assert "batch=" not in notebook.printed()
