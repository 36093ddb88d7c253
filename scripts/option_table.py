"""Write the tables of docs/reference/options.md, between its two markers."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from scripts.markdown import table
from spark_groupsource.options.table import OPTIONS, OptionSpec

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


HEAD = ("option", "allowed", "default", "meaning")


def grouped_reference() -> str:
    """Return a table of options for each group, in Markdown. Raises ValueError if an option has not exactly one."""
    row_of = {spec.name: row(spec) for spec in OPTIONS}
    grouped = [name for names in GROUPS.values() for name in names]
    if sorted(grouped) != sorted(row_of):
        wrong = sorted(name for name in {*grouped, *row_of} if grouped.count(name) != 1 or name not in row_of)
        raise ValueError(f"each option belongs to one of GROUPS in scripts/option_table.py: {', '.join(wrong)}")
    tables = (f"### {group}\n\n{table(HEAD, (row_of[name] for name in names))}" for group, names in GROUPS.items())
    return "\n".join(tables)


def row(spec: OptionSpec) -> tuple[str, ...]:
    """Return the cells of an option."""
    return f"`{spec.name}`", spec.allowed, _shown_default(spec), spec.doc


def _shown_default(spec: OptionSpec) -> str:
    default = spec.default if spec.shown_default is None else spec.shown_default
    if default is None:
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    shown = str(default.value if isinstance(default, Enum) else default)
    return shown if shown.startswith("(") else f"`{shown}`"


def with_table(text: str, reference: str) -> str:
    """Return `text` with `reference` between the markers."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{reference}\n{END}{rest.partition(END)[2]}"


def page() -> str:
    """Return the page with its tables."""
    return with_table(TARGET.read_text(encoding="utf-8"), f"\n{grouped_reference()}")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
