"""What all tests share: Spark's workers use this interpreter, and everything stays on loopback."""

from __future__ import annotations

import os
import sys
import tempfile

# Without it Spark's workers are whatever python3 is on the path, and "fail to connect back".
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Before any JVM starts, because its processes inherit it: where tests hold queries (spark_groupsource.failpoints).
FAILPOINTS = tempfile.TemporaryDirectory(prefix="groupkafka-failpoints-")
os.environ["GROUPKAFKA_FAILPOINTS"] = FAILPOINTS.name
