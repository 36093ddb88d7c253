"""Write the tables of docs/reference/options.md, between its two markers. `--check` only reports if they are stale."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_groupsource.options.table import OPTIONS, option_reference

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "options.md"
BEGIN, END = "<!-- options -->", "<!-- /options -->"

# The headings of the page with their options, in the order of the page.
GROUPS = {
    "Begin with these six": (
        "kafka.bootstrap.servers", "kafka.group.id", "subscribe", "startingOffsets", "checkpointLocation",
        "maxOffsetsPerTrigger",
    ),
    "What is read": ("subscribePattern", "assign", "includeHeaders", "failOnDataLoss"),
    "A start by time": ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    "The end of a batch read": ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    "The size of batches and tasks": (
        "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition",
    ),
    "The member in its group": (
        "drainTimeoutMs", "maxBatchMs", "onPartitionsLost", "onConflict", "onSharedState", "assignors", "memberWeight",
        "memberRedundancy",
    ),
    "Metrics": ("metricsPath", "metricsPort", "metricsAddress", "metricsLagIntervalMs"),
    "Login and secrets": ("tokenProvider", "executor.tokenProvider", "awsRegion", "allowedUnsafeSettings"),
    "Reading: waits and memory": (
        "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "fastLaneMaxOffsets",
        "kafkaConsumer.prefetchMemoryBytes",
    ),
}  # fmt: skip


class MarkersMissing(Exception):
    """The text has not exactly one pair of markers, in order."""


def grouped_reference() -> str:
    """Return a table of options for each group, in Markdown. Raises ValueError if an option has not exactly one."""
    head, rule, *rows = option_reference().splitlines()
    row_of = dict(zip((spec.name for spec in OPTIONS), rows, strict=True))
    grouped = [name for names in GROUPS.values() for name in names]
    if sorted(grouped) != sorted(row_of):
        wrong = sorted(name for name in {*grouped, *row_of} if grouped.count(name) != 1 or name not in row_of)
        raise ValueError(f"each option belongs to one of GROUPS in scripts/option_table.py: {', '.join(wrong)}")
    tables = ("\n".join([f"### {group}\n", head, rule, *(row_of[n] for n in names)]) for group, names in GROUPS.items())
    return "\n\n".join(tables)


def with_table(text: str, reference: str) -> str:
    """Return `text` with `reference` between the markers. Raises `MarkersMissing`."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in head + tail:
        raise MarkersMissing(f"expected one line '{BEGIN}' and after it one line '{END}'")
    return f"{head}{BEGIN}\n{reference}\n{END}{tail}"


def main() -> int:
    """Write the tables, or check them."""
    text = TARGET.read_text(encoding="utf-8")
    try:
        written = with_table(text, f"\n{grouped_reference()}\n")
    except MarkersMissing as error:
        print(f"{TARGET.name}: {error}", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        print(f"{TARGET.name}: {'up to date' if text == written else 'stale, run python -m scripts.option_table'}")
        return 0 if text == written else 1
    TARGET.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
