"""The table of options: the parser, the errors and the option reference are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_groupsource.options import values as read
from spark_groupsource.options.client_settings import SHOWN_SECRETS
from spark_groupsource.options.model import NoMatchStrategy, OnConflict, OnPartitionsLost
from spark_groupsource.options.offset_spec import start_of, times_of


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One row of the option table; `allowed` and `doc` are for people, `parse` raises ValueError."""

    name: str
    parse: Callable[[str], object]
    default: object
    allowed: str
    doc: str
    required: bool = False
    since: str = "0.1.0"
    # The default as a person reads it, where the value itself does not say it.
    shown_default: str | None = None


OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "kafka.bootstrap.servers", read.brokers, None, "host:port, comma separated",
        "Brokers to start from.", required=True,
    ),
    OptionSpec(
        "kafka.group.id", read.text, None, "a group name",
        "The consumer group to join. Not needed for a batch read, which joins none.", shown_default="(required)",
    ),
    OptionSpec(
        "subscribe", read.topics, None, "topic names, comma separated",
        "Topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
    ),
    OptionSpec(
        "subscribePattern", read.pattern, None, "a Python regular expression",
        "Read every topic whose whole name matches; new topics are picked up.",
    ),
    OptionSpec(
        "assign", read.partitions, None, 'JSON such as {"topic":[0,1]}',
        "Read these partitions and no others, without being a member: the offsets are committed to the group all"
        " the same, which must have no members. Nothing fences an old driver but a look before each commit: one that"
        " would take the group back ends its query (`ASSIGN_OVERTAKEN`).",
    ),
    OptionSpec(
        "startingOffsets", start_of, None,
        'earliest, latest, `group:<other group id>`, or JSON such as {"topic":{"0":23,"1":-1,"2":-2}} with an offset'
        ' for every partition (-1: latest, -2: earliest; a batch read has no latest start), or {"topic":"earliest"} for'
        " a whole topic",
        "Where a partition starts that the group has no offset for: it is pinned in the group once. `group:` starts"
        " where another group has got to (at the beginning where it has no offset). Partitions and topics that"
        " appear later start at their beginning.", shown_default="latest (batch: earliest)",
    ),
    OptionSpec(
        "startingTimestamp", read.integer(0), None, "milliseconds since the epoch, 0 or more",
        "Start at the first record at or after this time; takes precedence over `startingOffsetsByTimestamp`.",
    ),
    OptionSpec(
        "startingOffsetsByTimestamp", times_of, None,
        'JSON such as {"topic":{"0":1700000000000}} with milliseconds since the epoch for every partition',
        "The same for each partition; takes precedence over `startingOffsets`.",
    ),
    OptionSpec(
        "startingOffsetsByTimestampStrategy", read.choice(NoMatchStrategy), NoMatchStrategy.ERROR,
        "error, latest",
        "What a starting time does for a partition without a record at or after it.",
    ),
    OptionSpec(
        "endingOffsets", start_of, None,
        'latest, `group:<other group id>`, or JSON as for `startingOffsets`, without -2',
        "Batch only: where the read ends; the record at this offset is not read any more. A starting offset or time"
        " behind the end of its partition is an error.",
        shown_default="latest",
    ),
    OptionSpec(
        "endingTimestamp", read.integer(0), None, "milliseconds since the epoch, 0 or more",
        "Batch only: end before the first record at or after this time; takes precedence over"
        " `endingOffsetsByTimestamp`. Where there is none, at the log's end.",
    ),
    OptionSpec(
        "endingOffsetsByTimestamp", times_of, None, "JSON as for `startingOffsetsByTimestamp`",
        "Batch only: the same for each partition; takes precedence over `endingOffsets`.",
    ),
    OptionSpec(
        "maxOffsetsPerTrigger", read.integer(1), None, "an integer from 1",
        "Upper bound of offsets per batch of this member, shared out in proportion to the partitions' backlogs. Three"
        " members with 1,000 each read 3,000.",
    ),
    OptionSpec(
        "minOffsetsPerTrigger", read.integer(1), None, "an integer from 1",
        "A batch of this member waits until its partitions have this many offsets to read, or until `maxTriggerDelay`"
        " has passed. Until then they count as lag. At most `maxOffsetsPerTrigger`.",
    ),
    OptionSpec(
        "maxTriggerDelay", read.duration_s, None, "a duration such as 500ms, 30s, 15m, 1h",
        "How long `minOffsetsPerTrigger` may hold records back.", shown_default="15m",
    ),
    OptionSpec(
        "maxBytesPerTrigger", read.integer(1), None, "bytes, an integer from 1",
        "Upper bound of bytes (keys, values and headers) per batch of this member, approximate: by the size of the next"
        " records of each partition.",
    ),
    OptionSpec(
        "minPartitions", read.integer(1, 2**31 - 1), None, "an integer from 1",
        "Smallest number of Spark tasks per batch of this member: large ranges are split.",
    ),
    OptionSpec(
        "maxRecordsPerPartition", read.integer(1), None, "an integer from 1",
        "Largest number of offsets per Spark task: larger ranges are split, and the driver reads no larger batch"
        " itself.",
    ),
    OptionSpec(
        "failOnDataLoss", read.boolean, True, "true, false",
        "Fail the query when unread records are missing on the broker; false skips and reports them.",
    ),
    OptionSpec(
        "includeHeaders", read.boolean, False, "true, false",
        "Adds the column `headers`: `array<struct<key string, value binary>>`.",
    ),
    OptionSpec(
        "checkpointLocation", read.text, None, "the path given to the writer",
        "Lets the source see in Spark's commit log that a batch is complete: a handover then waits for the"
        " batch's end only, and the last batch before a stop is committed. A local one also moves the group's offsets"
        " at the batch's end, not at the next trigger.",
    ),
    OptionSpec(
        "drainTimeoutMs", read.integer(0), None, "milliseconds, 0 to kafka.max.poll.interval.ms",
        "How long a revoke, or a stop by SIGTERM, waits for the batch in flight. Then the next owner reads that batch"
        " again. Default: 0.8 x kafka.max.poll.interval.ms, so 240000 (4 minutes) unless you set that. A supervisor"
        " must wait longer before SIGKILL.",
    ),
    OptionSpec(
        "maxBatchMs", read.integer(1, 2**31 - 1), None, "milliseconds, an integer from 1",
        "How long a batch may take before the member gives its partitions up, as Kafka's consumers do after"
        " max.poll.interval.ms. The next owners read that batch again. The batch is not cancelled, and the member joins"
        " again when it has ended. Without it, a sink that hangs keeps its partitions until a rebalance asks for them,"
        " and `drainTimeoutMs` longer. With `kafka.group.instance.id` the partitions go when the session has expired."
        " Needs `checkpointLocation`; with `assign` it has no effect.",
    ),
    OptionSpec(
        "onPartitionsLost", read.choice(OnPartitionsLost), OnPartitionsLost.CONTINUE, "continue, fail",
        "What to do when the group took partitions without a handover (session expired, fenced).",
    ),
    OptionSpec(
        "onConflict", read.choice(OnConflict), OnConflict.CHECKPOINT, "checkpoint, group, fail",
        "Which one counts when a program that is no query of this source has moved the group's offset: the checkpoint"
        " or the group. `fail` ends the query.",
    ),
    OptionSpec(
        "assignors", read.names, None,
        "range, roundrobin, sticky, cooperative-sticky, co-partitioned, weighted, rack-aware, redundant, single-active,"
        " or `package.module:Class`; comma separated, in order of preference",
        "Who decides which member gets which partition: the group takes the strategy that all its members offer, and"
        " most prefer. A class of your own must be named in the driver's variable `GROUPKAFKA_ALLOW_ASSIGNORS`. Needs"
        " the extra `[assignors]`, apart from what librdkafka has. See"
        " [docs/assignors.md](../assignors.md).",
    ),
    OptionSpec(
        "memberWeight", read.integer(1, 1_000_000), None, "1 to 1000000",
        "This member's share under strategy `weighted`; refused without `assignors`. Default: the cores of the driver's"
        " machine that the reader process may use, not the application's.",
    ),
    OptionSpec(
        "memberRedundancy", read.integer(1, 1000), 2, "1 to 1000",
        "How many members strategy `redundant` gives a partition to: one is active, the others stand by. Refused"
        " without `assignors`.",
    ),
    OptionSpec(
        "metricsPath", read.text, None, "a path on the driver's machine",
        "Append a JSON line per event of the member to this file: state, partitions, rebalances and how they ended,"
        " drain times, commits, repeats. Each query needs a file of its own. The file must not exist yet, or begin with"
        " such a line; it may be no link.",
    ),
    OptionSpec(
        "metricsLagIntervalMs", read.integer(0, 2**31 - 1), 30_000, "milliseconds, an integer from 0",
        "With `metricsPath`: how often the event `lag` is written, measured beside the batches; 0: never.",
    ),
    OptionSpec(
        "kafkaConsumer.pollTimeoutMs", read.integer(1, 2**31 - 1), 120_000, "milliseconds, an integer from 1",
        "How long an executor waits for the next record of a range before the task fails.",
    ),
    OptionSpec(
        "fetchOffset.numRetries", read.integer(0), None, "an integer from 0",
        "How often a request for offsets is repeated when it fails. Default: as often as 2 minutes allow (20 s for the"
        " first one).",
    ),
    OptionSpec(
        "fetchOffset.retryIntervalMs", read.integer(1), 100, "milliseconds, an integer from 1",
        "How long to wait before it is repeated.",
    ),
    OptionSpec(
        "fastLaneMaxOffsets", read.integer(0), 2_000, "an integer from 0",
        "Largest batch that the driver reads itself, which saves a Spark Python task; 0 (or `minPartitions` above 1):"
        " the executors read all.",
    ),
    OptionSpec(
        "kafkaConsumer.prefetchMemoryBytes", read.integer(1024 * 1024, 2**40), 64 * 1024 * 1024,
        "bytes, an integer from 1048576",
        "About how much a Python worker, or the driver for small batches, may hold of fetched records; one answer of a"
        " broker may go beyond it.",
    ),
    OptionSpec(
        "allowedUnsafeSettings", read.unsafe_settings, None, ", ".join(SHOWN_SECRETS),
        "Client settings, comma separated, that are refused unless they are named here: secrets that Spark would show."
        " Settings that make the client load or run code are allowed by the driver's environment only. See"
        " [docs/security.md](../security.md#what-options-may-name).",
    ),
)  # fmt: skip


def option_reference() -> str:
    """Return the table of docs/reference/options.md, in Markdown."""
    lines = ["| option | allowed | default | meaning |", "|---|---|---|---|"]
    for spec in OPTIONS:
        default = "(required)" if spec.required else _shown_default(spec)
        lines.append(f"| `{spec.name}` | {spec.allowed} | {default} | {spec.doc} |")
    return "\n".join(lines)


def _shown_default(spec: OptionSpec) -> str:
    default = spec.default if spec.shown_default is None else spec.shown_default
    if default is None:
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    shown = str(default.value if isinstance(default, Enum) else default)
    return shown if shown.startswith("(") else f"`{shown}`"
