"""A streaming query for programs that wait for one and stop it."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException


class FakeQuery:
    """Answers as a streaming query does, whose source has planned nothing."""

    def __init__(self) -> None:
        self.id = "the-query"
        self.name: str | None = "orders"
        self.isActive = True
        self.lastProgress: dict[str, Any] | None = None
        self.status: dict[str, Any] = {"isDataAvailable": False, "isTriggerActive": False}
        self.failure: Exception | None = None
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1
        self.isActive = False

    def exception(self) -> Exception | None:
        return self.failure

    def reads(self, sources: int) -> None:
        """Let Spark report so many sources of this kind, and one of another."""
        own = [{"endOffset": '{"v":1,"lineage":"3f","topics":{}}'}] * sources
        self.lastProgress = {"batchId": 3, "sources": [*own, {"endOffset": "17"}]}

    def fail(self, text: str) -> None:
        self.failure, self.isActive = StreamingQueryException(text), False
