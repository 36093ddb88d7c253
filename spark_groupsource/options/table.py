"""Define the table of options, from which the parser, the errors and the page of options are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_groupsource.model.names import GROUP_NAME, PORT_MAX, group_name
from spark_groupsource.options import values as read
from spark_groupsource.options.client_settings import SHOWN_SECRETS
from spark_groupsource.options.model import NoMatchStrategy, OnConflict, OnPartitionsLost, OnSharedState
from spark_groupsource.options.offset_spec import AtTime, Starting, start_of, times_of
from spark_groupsource.options.times import MOMENTS
from spark_groupsource.options.token_login import provider_name, region_name


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One row of the option table. `allowed` and `doc` are texts for users; `parse` raises ValueError.

    `field` is the field of `SourceOptions` that has the value, in seconds if the name ends in `Ms`; None if other
    options or the client's settings have a part in it.
    """

    name: str
    parse: Callable[[str], object]
    default: object
    allowed: str
    doc: str
    field: str | None = None
    # The default as users should read it, if the value itself does not show it.
    shown_default: str | None = None


def _time_of(value: str) -> object:
    return Starting(AtTime(read.moment(value)))


def _times_of(value: str) -> object:
    return times_of(value, read.moment)


OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "kafka.bootstrap.servers", read.broker_list, None, "host:port, comma separated",
        "Brokers to start from.", field="bootstrap_servers", shown_default="(required)",
    ),
    OptionSpec(
        "kafka.group.id", group_name, None, GROUP_NAME,
        "The consumer group to join. A batch read joins no group and does not need it. For Kafka, `orders ` and"
        " `orders` are two groups: white space at an end is an error, so that no other group is meant.",
        shown_default="(required)",
    ),
    OptionSpec(
        "subscribe", read.topic_list, None, "topic names, comma separated",
        "Topics to read. Exactly one of `subscribe`, `subscribePattern` and `assign` is needed.",
    ),
    OptionSpec(
        "subscribePattern", read.pattern, None, "a Python regular expression",
        "Read every topic whose whole name matches; new topics are included.",
    ),
    OptionSpec(
        "assign", read.partition_list, None, 'JSON such as {"topic":[0,1]}',
        "Read only these partitions, without being a member of the group. The offsets are still committed to the"
        " group, which must have no members. An old driver is not fenced; the source only checks the group before"
        " each commit. A commit that would move the group back ends its query (`ASSIGN_OVERTAKEN`). Options of a member"
        " (`kafka.group.instance.id`, strategies, `onPartitionsLost`, `maxBatchMs`) are refused.",
    ),
    OptionSpec(
        "startingOffsets", start_of, None,
        'earliest, latest, `group:<other group id>`, or JSON such as {"topic":{"0":23,"1":-1,"2":-2}} with an offset'
        ' for every partition (-1: latest, -2: earliest; a batch read has no latest start), or {"topic":"earliest"} for'
        " a whole topic",
        "Where a partition starts for which the group has no offset. The owner of a topic's"
        " partition 0 stores this position in the group for all of its partitions: `latest` is one moment for a topic."
        " `group:` starts at another group's committed offset, and at the beginning where that has none; if it has none"
        " at all, a new group does not start, because the name may be misspelt. The name follows the colon at once, and"
        " has no white space at its ends. Partitions and topics that appear later start at their beginning.",
        shown_default="latest (batch: earliest)",
    ),
    OptionSpec(
        "startingTimestamp", _time_of, None, f"milliseconds since the epoch, 0 or more; or {MOMENTS}",
        "As `startingOffsets`, where the group has no offset: start at the first record at or after this time. A"
        " relative time is resolved when the query starts. After a restart it counts only for partitions that still"
        " have no offset in the group. Takes precedence over `startingOffsetsByTimestamp`. To move a group that has"
        " offsets, use the command [`reset`](../how-to/reset.md).",
    ),
    OptionSpec(
        "startingOffsetsByTimestamp", _times_of, None,
        'JSON such as {"topic":{"0":1700000000000}} with milliseconds since the epoch for every partition, or'
        ' a time as for `startingTimestamp`, as text: {"topic":{"0":"yesterday"}}',
        "The same for each partition; takes precedence over `startingOffsets`.",
    ),
    OptionSpec(
        "startingOffsetsByTimestampStrategy", read.choice(NoMatchStrategy), NoMatchStrategy.ERROR,
        "error, latest",
        "Meaning of a starting time for a partition without a record at or after it.", field="no_match_strategy",
    ),
    OptionSpec(
        "endingOffsets", start_of, None,
        'latest, `group:<other group id>`, or JSON as for `startingOffsets`, without -2',
        "Batch only: where the read ends; the record at this offset is not read. A starting offset or time after the"
        " end of its partition is an error.",
        shown_default="latest",
    ),
    OptionSpec(
        "endingTimestamp", _time_of, None, "as for `startingTimestamp`",
        "Batch only: end before the first record at or after this time; takes precedence over"
        " `endingOffsetsByTimestamp`. Without such a record, the end is the log's end.",
    ),
    OptionSpec(
        "endingOffsetsByTimestamp", _times_of, None, "JSON as for `startingOffsetsByTimestamp`",
        "Batch only: the same for each partition; takes precedence over `endingOffsets`.",
    ),
    OptionSpec(
        "maxOffsetsPerTrigger", read.integer(1), None, "an integer from 1",
        "Upper bound of offsets per batch of this member, divided in proportion to the partitions' backlogs. Each share"
        " is rounded down, so a batch can be a little smaller. If more partitions have records than the limit allows"
        " offsets, they take turns. Three members with 1,000 each read 3,000.",
        field="max_offsets_per_trigger",
    ),
    OptionSpec(
        "minOffsetsPerTrigger", read.integer(1), None, "an integer from 1",
        "A batch of this member waits until its partitions have this many offsets to read, or until `maxTriggerDelay`"
        " has passed. Until then these records count as lag. The first batch after a start does not wait, as in Spark,"
        " nor does `Trigger.AvailableNow`. At most `maxOffsetsPerTrigger`.", field="min_offsets_per_trigger",
    ),
    OptionSpec(
        "maxTriggerDelay", read.duration_s, 900.0, "a duration such as 500ms, 30s, 15m, 1h",
        "Longest time for which `minOffsetsPerTrigger` may delay records; no effect without it. A number alone is"
        " milliseconds, as in Spark.",
        field="max_trigger_delay_s", shown_default="15m",
    ),
    OptionSpec(
        "maxBytesPerTrigger", read.integer(1), None, "bytes, an integer from 1",
        "Upper bound of bytes (keys, values and headers) per batch of this member, estimated from the size of the next"
        " records of each partition. If that cannot be seen, the last known average counts, or 1,000 bytes.",
        field="max_bytes_per_trigger",
    ),
    OptionSpec(
        "minPartitions", read.integer(1, 2**31 - 1), None, "an integer from 1",
        "Smallest number of Spark tasks per batch of this member: large ranges are split.", field="min_partitions",
    ),
    OptionSpec(
        "maxRecordsPerPartition", read.integer(1), None, "an integer from 1",
        "Largest number of offsets per Spark task: larger ranges are split. Without it, a range of more than 100,000"
        " records is split that would take longer than about 5 s. The driver itself reads no batch larger"
        " than this either.", field="max_records_per_partition",
    ),
    OptionSpec(
        "failOnDataLoss", read.boolean, True, "true, false",
        "Fail the query when unread records are missing on the broker; false skips and reports them.",
        field="fail_on_data_loss",
    ),
    OptionSpec(
        "includeHeaders", read.boolean, False, "true, false",
        "Adds the column `headers`: `array<struct<key string, value binary>>`.", field="include_headers",
    ),
    OptionSpec(
        "checkpointLocation", read.text, None, "the path given to the writer",
        "The writer's path. The source then detects batch completion from Spark's commit log, so a handover waits only"
        " for the running batch, and the last batch is committed on stop. With a local path, the source also commits at"
        " the batch's end, not at the next trigger. `run_until_stopped` and `groupkafka stop` reach the query there.",
        field="checkpoint_location",
    ),
    OptionSpec(
        "drainTimeoutMs", read.integer(0), None, "milliseconds, 0 to kafka.max.poll.interval.ms",
        "How long a revoke, or a stop by SIGTERM, waits for the batch in flight. After that, the next owner reads"
        " the batch again. Default: 0.8 x kafka.max.poll.interval.ms, so 240000 (4 minutes) unless you set that. A"
        " supervisor must wait longer before SIGKILL.",
    ),
    OptionSpec(
        "maxBatchMs", read.integer(1, 2**31 - 1), None, "milliseconds, an integer from 1",
        "How long a batch may take before the member gives up its partitions, like Kafka's consumers after"
        " max.poll.interval.ms. The next owners read the batch again. The batch is neither limited nor cancelled, and"
        " the member rejoins when it has ended. Without this option, a hanging sink keeps its partitions until a"
        " rebalance revokes them and `drainTimeoutMs` has passed. With `kafka.group.instance.id` the partitions stay"
        " until the session has expired. Needs `checkpointLocation`; refused with `assign`.",
        field="max_batch_s",
    ),
    OptionSpec(
        "onPartitionsLost", read.choice(OnPartitionsLost), OnPartitionsLost.CONTINUE, "continue, fail",
        "What to do when the member lost partitions without a handover (session expired, fenced). `fail` is for"
        " [highly available queries](../how-to/highly-available.md), where another driver goes on.",
        field="on_partitions_lost",
    ),
    OptionSpec(
        "onConflict", read.choice(OnConflict), None, "group, fail",
        "What to do when the group's offsets are not those of the checkpoint: follow them, or end the query"
        " ([CONFLICT](errors.md#conflict)). Without the option: follow what another program has set, and end the query"
        " ([CHECKPOINT_BEHIND](errors.md#checkpoint_behind)) if its own commits are beyond its checkpoint, which is"
        " then a restored copy. `group` follows there, too.",
        shown_default="(neither)", field="on_conflict",
    ),
    OptionSpec(
        "onSharedState", read.choice(OnSharedState), OnSharedState.FAIL, "fail, warn, allow",
        "What to do when queries that share a group would make state wrong (windows, joins of streams,"
        " `dropDuplicates`): end the query before it reads ([SHARED_STATE](errors.md#shared_state)), log a warning and"
        " write the event `shared_state`, or nothing. It concerns a query with state if another query has read further"
        " in one of its partitions, and a new query in the group of a query with state. Needs `checkpointLocation`. See"
        " [queries with state](../how-to/scale.md#queries-with-state).",
        field="on_shared_state",
    ),
    OptionSpec(
        "assignors", read.name_list, None,
        "range, roundrobin, sticky, cooperative-sticky, co-partitioned, weighted, rack-aware, redundant, single-active,"
        " or `package.module:Class`; comma separated, in order of preference",
        "Strategies that decide which member gets which partition. The group uses the strategy that all members offer"
        " and most prefer. A class of your own must be named in the driver's variable `GROUPKAFKA_ALLOW_ASSIGNORS`."
        " Needs the extra `[assignors]`, except for librdkafka's own strategies. See"
        " [docs/assignors.md](../assignors.md).",
    ),
    OptionSpec(
        "memberWeight", read.integer(1, 1_000_000), None, "1 to 1000000",
        "This member's share under strategy `weighted`; refused without `assignors`. Default: the number of cores of"
        " the driver's machine that the reader process may use (not the application's cores).", field="member_weight",
    ),
    OptionSpec(
        "memberRedundancy", read.integer(1, 1000), 2, "1 to 1000",
        "To how many members strategy `redundant` gives a partition: one is active, the others are standby. Refused"
        " without `assignors`.", field="member_redundancy",
    ),
    OptionSpec(
        "metricsPath", read.local_path, None, "a path on the driver's machine",
        "Append one JSON line per event of the member to this file: state, partitions, rebalances and their outcome,"
        " drain times, commits, repeats. Each query needs its own file. The file must not exist yet, or begin with"
        " such a line; it must not be a link. If it cannot be written, the query logs a warning and runs without it.",
        field="metrics_path",
    ),
    OptionSpec(
        "metricsLagIntervalMs", read.integer(0, 2**31 - 1), 30_000, "milliseconds, an integer from 0",
        "With `metricsPath` or `metricsPort`: how often the lag is measured (event `lag`), in parallel to the batches;"
        " 0: never. Refused without one of the two.", field="metrics_lag_interval_s",
    ),
    OptionSpec(
        "metricsPort", read.integer(0, PORT_MAX), None, "0 to 65535",
        "Serve the query's own counters for Prometheus on this port of the driver's machine, at `/metrics`, as long as"
        " the query runs. Each query needs its own port; 0 takes a free one and logs it. A port that stays in use for"
        " 10 s ends the query (`LISTENING_FAILED`). Needs the extra `[metrics]`."
        " See [Watch with Prometheus](../how-to/watch.md#metrics-of-a-query).", field="metrics_port",
    ),
    OptionSpec(
        "metricsAddress", read.text, "127.0.0.1", "127.0.0.1, ::1, localhost, or what the driver permits",
        "Address on which `metricsPort` listens; refused without it. Any other address, such as 0.0.0.0 (all), lets"
        " other machines read the metrics, which have no TLS and no password. So the driver's variable"
        " `GROUPKAFKA_METRICS_ADDRESSES` must name it. See [docs/security.md](../security.md#what-options-may-name).",
        field="metrics_address",
    ),
    OptionSpec(
        "kafkaConsumer.pollTimeoutMs", read.integer(1, 2**31 - 1), 120_000, "milliseconds, an integer from 1",
        "How long an executor waits for the next record of a range before the task fails.", field="poll_timeout_s",
    ),
    OptionSpec(
        "fetchOffset.numRetries", read.integer(0), None, "an integer from 0",
        "How often a failed request for offsets is repeated. Default: as often as fits into 2 minutes (20 s for the"
        " first request).", field="fetch_retries",
    ),
    OptionSpec(
        "fetchOffset.retryIntervalMs", read.integer(1), 100, "milliseconds, an integer from 1",
        "Pause before such a request is repeated.", field="fetch_retry_interval_s",
    ),
    OptionSpec(
        "fastLaneMaxOffsets", read.integer(0), 2_000, "an integer from 0",
        "Largest batch that the driver reads itself, which saves a Spark Python task. With 0 (or `minPartitions`"
        " above 1) the executors read every batch.", field="fast_lane_max_offsets",
    ),
    OptionSpec(
        "kafkaConsumer.prefetchMemoryBytes", read.integer(1024 * 1024, 2**40), 64 * 1024 * 1024,
        "bytes, an integer from 1048576",
        "Approximate limit of fetched records in the memory of a Python worker, or of the driver for small batches. One"
        " response of a broker may exceed it.", field="prefetch_memory_bytes",
    ),
    OptionSpec(
        "tokenProvider", provider_name, None, "msk, gcp, or `package.module:function`",
        "Log in with tokens (SASL OAUTHBEARER) of this provider: `msk` for AWS MSK IAM (extra `[msk]`;"
        " `kafka.sasl.mechanism=AWS_MSK_IAM` sets it, too), `gcp` for Google's Managed Kafka (extra `[gcp]`), or a"
        " function of your own with the contract of confluent-kafka's `oauth_cb`. The driver's variable"
        " `GROUPKAFKA_ALLOW_TOKEN_PROVIDERS` must name a function, and a cloud's provider for brokers that are not the"
        " cloud's. See [Log in](../how-to/log-in.md).",
    ),
    OptionSpec(
        "executor.tokenProvider", provider_name, None, "as `tokenProvider`",
        "The executors' own provider. Needed only if executors have an identity of their own"
        " (`executor.kafka.sasl.*`): then `tokenProvider` is not theirs.",
    ),
    OptionSpec(
        "awsRegion", region_name, None, "a region such as us-east-1",
        "Region of the MSK cluster, if the names of the brokers do not show it (`...kafka.<region>.amazonaws.com`).",
    ),
    OptionSpec(
        "allowedUnsafeSettings", read.unsafe_settings, None, ", ".join(SHOWN_SECRETS),
        "Client settings, comma separated, that are refused unless they are named here: secrets that Spark would show."
        " Only the driver's environment can allow settings that make the client load or run code. See"
        " [docs/security.md](../security.md#what-options-may-name).",
    ),
)  # fmt: skip
