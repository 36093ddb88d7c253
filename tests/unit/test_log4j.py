"""conf/log4j2.properties names loggers that Spark has: one with another name would stay as loud as before."""

from __future__ import annotations

import re
import zipfile

from tests.checkout import ROOT
from tests.realkafka.ivy import pyspark_jars


def test_the_logger_of_a_query_that_fails_is_there() -> None:
    text = (ROOT / "conf" / "log4j2.properties").read_text(encoding="ascii")
    names = re.findall(r"^logger\.query\w*\.name = (\S+)$", text, re.MULTILINE)
    assert len(names) == 2, "one for Spark 4.0, one for newer versions"
    (jar,) = pyspark_jars().glob("spark-sql_2.13-*.jar")
    with zipfile.ZipFile(jar) as classes:
        there = set(classes.namelist())
    assert sum(f"{name.replace('.', '/')}.class" in there for name in names) == 1
