"""One batch through a shuffle, in an application of its own: what Spark keeps of it when its executor is lost.

Reads its settings as JSON from the first argument: {"conf": of Spark, "options": of the source, "checkpoint": folder,
"out": folder}. Files in `out`:

1. `map-<n>.json`, for each run of the map task: the Python daemon that ran it, and its records in their order.
2. `holding`, when reducers 0 and 1 have finished and reducer 2 waits for `killed`.
3. `result.json`: each reducer's records in the batch that Spark records as complete.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

_REDUCERS = 4
_PATIENCE_S = 240.0


def _write(path: Path, value: object) -> None:
    """Write a file whole or not at all."""
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(value))
    scratch.rename(path)


# This file runs as __main__, so that functions go to the executors by value: they cannot import it.


def _map_side(out: str) -> Callable[[int, Iterable[Row]], Iterator[list[Any]]]:
    def record(number: int, rows: Iterable[Row]) -> Iterator[list[Any]]:
        found = [[row.topic, row.partition, row.offset] for row in rows]
        run = len(list(Path(out).glob("map-*.json")))
        _write(Path(out) / f"map-{run}.json", {"task": number, "daemon": os.getppid(), "rows": found})
        yield from found

    return record


def _reduce_side(out: str, patience_s: float) -> Callable[[int, Iterable[list[Any]]], Iterator[tuple[int, list[Any]]]]:
    def hold(number: int, rows: Iterable[list[Any]]) -> Iterator[tuple[int, list[Any]]]:
        found = list(rows)
        if number == 2:
            (Path(out) / "holding").touch()
            deadline = time.monotonic() + patience_s
            while not (Path(out) / "killed").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"nobody killed this executor within {patience_s:.0f} s")
                time.sleep(0.05)
        yield number, found

    return hold


def main(settings: dict[str, Any]) -> None:
    """Run one batch to its end."""
    out = settings["out"]
    spark = SparkSession.builder.appName("order").config(map=settings["conf"]).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    map_side, reduce_side = _map_side(out), _reduce_side(out, _PATIENCE_S)

    def write(batch: DataFrame, _number: int) -> None:
        mapped = batch.rdd.mapPartitionsWithIndex(map_side)
        reduced = mapped.repartition(_REDUCERS).mapPartitionsWithIndex(reduce_side)
        _write(Path(out) / "result.json", dict(reduced.collect()))

    reader = spark.readStream.format("groupkafka").options(**settings["options"])
    writer = reader.load().writeStream.foreachBatch(write).option("checkpointLocation", settings["checkpoint"])
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
