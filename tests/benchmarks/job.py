"""A job as users submit it: read a topic with Trigger.AvailableNow into the sink that drops all, and end.

spark-submit runs it. Its first argument is JSON: `format`, `options`, `checkpoint` and the number of `records`, which
it must have read.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

said = json.loads(sys.argv[1])
spark = SparkSession.builder.appName("groupkafka-bench-job").getOrCreate()
stream = spark.readStream.format(said["format"]).options(**said["options"]).load()
writer = stream.writeStream.format("noop").option("checkpointLocation", said["checkpoint"])
query = writer.trigger(availableNow=True).start()
query.awaitTermination()
read = sum(one.numInputRows for one in query.recentProgress)
if read != said["records"]:
    sys.exit(f"read {read} of {said['records']} records")
