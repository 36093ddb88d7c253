"""The recipes of docs/how-to/sinks.md through Spark Connect: a view of the batch in SQL, and rows into a database.

Reads its settings as JSON from the first argument, {"options": of the source, "out": folder, "records": how many}. The
last line of its output is JSON: the number of rows that SQL counted in the views.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from tests.kafka.connect_process import session, wait_for
from tests.kafka.table_sinks import recipe


def main(settings: dict[str, Any]) -> None:
    """Run a query until it has all records."""
    out, spark = Path(settings["out"]), session()
    names = recipe("insert_each_record_once", str(out / "table"))
    names["create_database_table"]()
    insert, counts = names["insert_each_record_once"], str(out / "counts")

    def write(batch: DataFrame, number: int) -> None:
        # As in the recipe for Delta: a view of the batch, and SQL in the batch's session.
        rows = batch.persist()
        rows.createOrReplaceTempView("batch")
        counted = batch.sparkSession.sql(f"SELECT {number} AS number, count(*) AS rows FROM batch")
        counted.write.mode("append").json(counts)
        insert(rows, number)
        rows.unpersist()

    checkpoint = str(out / "checkpoint")
    options = settings["options"] | {"checkpointLocation": checkpoint}
    frame = spark.readStream.format("groupkafka").options(**options).load()
    rows = frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()

    def is_done() -> bool:
        if (failure := query.exception()) is not None:
            raise failure
        return sum(one.numInputRows for one in query.recentProgress) >= settings["records"]

    wait_for("all records", is_done)
    query.stop()
    total = sum(row["rows"] for row in spark.read.json(counts).collect())
    print(json.dumps(total), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
