"""Define every error: one condition (id, message template, advice) per kind of failure.

Each exception carries its condition and the parameters of the message.

Invariant: no parameter holds the value of a sensitive option. Code that builds an error passes option values through
`client_settings.shown_value`. A `reason` can contain text of the Kafka client, so this module masks it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from spark_groupsource.redaction import masked

LOG = logging.getLogger("spark_groupsource.losses")


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the catalogue: stable id, message template, advice, and whether it may pass.

    `may_pass`: the same call may succeed later without a change by the user.
    """

    id: str
    template: str
    advice: str
    may_pass: bool = False


class GroupKafkaError(Exception):
    """Base of every error this package raises on purpose.

    `condition` is the catalogue row; the text reads `[ID] message What to do: advice`.
    """

    def __init__(self, condition: Condition, **parameters: object) -> None:
        if isinstance(parameters.get("reason"), str):
            parameters["reason"] = masked(str(parameters["reason"]))
        self.condition = condition
        self.parameters = parameters
        message = condition.template.format(**parameters)
        advice = condition.advice.format(**parameters)
        # A reason at the message's end may come from the Kafka client, with or without a full stop.
        message = message.rstrip(". ")
        super().__init__(f"[{condition.id}] {message}{'' if message.endswith('?') else '.'} What to do: {advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the condition and the parameters, since Spark sends exceptions between processes."""
        return partial(type(self), self.condition, **self.parameters), ()


class OptionError(GroupKafkaError):
    """An option is missing, unknown, malformed, out of range or refused."""


class OffsetFormatError(GroupKafkaError):
    """An offset or commit metadata read from storage does not have a format that this package writes."""


class KafkaUnavailableError(GroupKafkaError):
    """The cluster cannot be reached or does not answer in time."""


class AccessError(GroupKafkaError):
    """The cluster rejects the client's credentials, or its rights do not suffice."""


class MembershipError(GroupKafkaError):
    """The group does not accept the member, or has removed it."""


class DataLossError(GroupKafkaError):
    """Records that the group has not read are missing on the broker (promise P8)."""


class CommandError(GroupKafkaError):
    """A command of the command line is refused."""


class ReadError(GroupKafkaError):
    """An executor cannot read an offset range of a partition."""


# --- options

OPTION_MISSING = Condition(
    "GROUPKAFKA.OPTION_MISSING",
    "Option '{option}' is required: {meaning}",
    "set .option('{option}', ...) on the reader.",
)
OPTION_UNKNOWN = Condition(
    "GROUPKAFKA.OPTION_UNKNOWN",
    "Option '{option}' is not known.{suggestion}",
    "check the spelling: docs/reference/options.md lists every option. Client settings start with 'kafka.' and have"
    " librdkafka's names (its CONFIGURATION.md lists them; docs/from-spark-kafka.md has those of Java's that differ)."
    " Leave out what only the Java client has.",
)
OPTION_INVALID = Condition(
    "GROUPKAFKA.OPTION_INVALID",
    "Option '{option}' has the value '{value}'. Allowed: {allowed}.",
    "set an allowed value; leave the option out only if its default is what you want.",
)
OPTION_REFUSED = Condition(
    "GROUPKAFKA.OPTION_REFUSED",
    "Option '{option}' (value '{value}') is not supported by this source: {reason}",
    "{replacement}",
)
OPTION_CONFLICT = Condition(
    "GROUPKAFKA.OPTION_CONFLICT",
    "Options {options} cannot be used together: {reason}",
    "keep one of them.",
)
CLIENT_REFUSED_OPTION = Condition(
    "GROUPKAFKA.CLIENT_REFUSED_OPTION",
    "The Kafka client refuses option '{option}' with the value '{value}': {reason}",
    "use a property and value of librdkafka's configuration reference (it differs from the Java client's)."
    " docs/security.md has what TLS and logins need.",
)
CLIENT_LACKS_RESOURCES = Condition(
    "GROUPKAFKA.CLIENT_LACKS_RESOURCES",
    "The system refuses a Kafka client of this process a thread, or the memory for it: {reason}",
    "raise the limit of address space or of processes (a container's limit on pids counts threads, too). Each Python"
    " worker gets spark.executor.pyspark.memory divided by the executor's cores: give it 1 GB or more, or leave that"
    " setting out.",
    may_pass=True,
)
SECRET_UNREADABLE = Condition(
    "GROUPKAFKA.SECRET_UNREADABLE",
    "Option '{option}' names the {kind} '{value}', which {side} on host '{host}' cannot read: {reason}",
    "{remedy}",
)
TOKEN_PROVIDER_UNUSABLE = Condition(
    "GROUPKAFKA.TOKEN_PROVIDER_UNUSABLE",
    "Option '{option}' (value '{value}') names a token provider that {side} on host '{host}' cannot use: {reason}",
    "{remedy}",
)
TOKEN_PROVIDER_FAILED = Condition(
    "GROUPKAFKA.TOKEN_PROVIDER_FAILED",
    "Option '{option}' (value '{value}') names the token provider {provider}, which returned no token to {side} on host"
    " '{host}': {reason}",
    "make the provider work on that host; its own error is quoted above. docs/how-to/log-in.md shows how to try it"
    " alone.",
    may_pass=True,
)
NOT_PERMITTED = Condition(
    "GROUPKAFKA.NOT_PERMITTED",
    "Option '{option}' has the value '{value}', which this driver does not permit in options: {reason}",
    "{remedy}",
)
LISTENING_FAILED = Condition(
    "GROUPKAFKA.LISTENING_FAILED",
    "Option '{option}': the metrics cannot be served on address '{address}', port {port}: {reason}",
    "choose a port that no other program uses (each query needs its own; 0 takes a free one and logs it), and an"
    " address of this machine.",
)
METRICS_NOT_INSTALLED = Condition(
    "GROUPKAFKA.METRICS_NOT_INSTALLED",
    "Option '{option}' needs the package prometheus_client: {reason}",
    "install it where the driver runs (in groupkafka's checkout: pip install '.[metrics]').",
)
SCHEMA_FIXED = Condition(
    "GROUPKAFKA.SCHEMA_FIXED",
    "The source has a fixed schema, but the reader was given another one: {given}",
    "leave .schema(...) out and cast the columns key and value after the read. A table in SQL needs exactly these"
    " columns: {columns}",
)
WRITING_UNSUPPORTED = Condition(
    "GROUPKAFKA.WRITING_UNSUPPORTED",
    "The format 'groupkafka' only reads, and the query writes to it.",
    "write with Spark's own format 'kafka' and its options kafka.bootstrap.servers and topic; it needs Spark's Kafka"
    " package.",
)
PLAN_NOT_RUN = Condition(
    "GROUPKAFKA.PLAN_NOT_RUN",
    "Spark asked for another batch before it ran the one that was planned last. Before Spark 4.2 it does that with"
    " spark.sql.streaming.triggerAvailableNowWrapper.enabled, and with a query that reads no column and no row of the"
    " source if option checkpointLocation is not set",
    "leave that setting out (Trigger.AvailableNow then runs one batch), set option checkpointLocation, or use Spark"
    " 4.2.",
)
SPARK_TOO_OLD = Condition(
    "GROUPKAFKA.SPARK_TOO_OLD",
    "{what} needs PySpark {least} or newer, and this is {version}",
    "use a newer Spark. docs/spark-versions.md has what each version lacks.",
)
READ_LIMIT_UNSUPPORTED = Condition(
    "GROUPKAFKA.READ_LIMIT_UNSUPPORTED",
    "Spark limits the batch by {limit}, which is not supported by this source.",
    "leave that limit out, and use option maxOffsetsPerTrigger.",
)

# --- stored offsets

OFFSET_MALFORMED = Condition(
    "GROUPKAFKA.OFFSET_MALFORMED",
    "The stored {what} is not valid: {reason}",
    "the checkpoint (option checkpointLocation, and the writer's) is damaged or belongs to another source: restore it,"
    " or start the query with a new checkpoint location, and with Spark's file sink a new folder; it then continues"
    " from the group's committed offsets.",
)
OFFSET_TOO_NEW = Condition(
    "GROUPKAFKA.OFFSET_TOO_NEW",
    "The stored {what} has format version {version}; this release reads versions up to {newest}.",
    "run the release that wrote it, or a newer one. docs/how-to/upgrade.md has the way back to an older one.",
)
OFFSET_OF_SPARKS_SOURCE = Condition(
    "GROUPKAFKA.OFFSET_OF_SPARKS_SOURCE",
    "The checkpoint belongs to a query of Spark's own Kafka source (format 'kafka').",
    "run 'groupkafka adopt --from-checkpoint ...', which commits the offsets of that query to the"
    " group; then start the query with a new checkpointLocation, and with Spark's file sink a new folder"
    " (docs/from-spark-kafka.md).",
)

# --- cluster

BROKER_UNREACHABLE = Condition(
    "GROUPKAFKA.BROKER_UNREACHABLE",
    "No broker of option 'kafka.bootstrap.servers' ('{servers}') answered within {timeout_s:.0f} s: {reason}",
    "check host, port, network and kafka.security.protocol: groupkafka doctor tries each broker. A query that is"
    " started again continues from its last completed batch.",
    may_pass=True,
)
AUTHENTICATION_FAILED = Condition(
    "GROUPKAFKA.AUTHENTICATION_FAILED",
    "The brokers of option 'kafka.bootstrap.servers' ('{servers}') reject the client's credentials ({login}): {reason}",
    "check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*, and executor.kafka.* if given.",
)
TOPIC_UNKNOWN = Condition(
    "GROUPKAFKA.TOPIC_UNKNOWN",
    "Option '{option}' has the value '{value}', but topic '{topic}' does not exist.",
    "create the topic, or correct the option.",
)
TOPIC_ACCESS_DENIED = Condition(
    "GROUPKAFKA.TOPIC_ACCESS_DENIED",
    "The client ({login}) may not read or describe topic '{topic}' (option '{option}', value '{value}').",
    "grant READ on the topic, which includes DESCRIBE: kafka-acls.sh --add --allow-principal '{principal}' --operation"
    " Read {resources} --bootstrap-server ... --command-config ... (docs/security.md).",
)
GROUP_ACCESS_DENIED = Condition(
    "GROUPKAFKA.GROUP_ACCESS_DENIED",
    "The client ({login}) may not use the group of option 'kafka.group.id' ('{group}').",
    "grant READ on the group: kafka-acls.sh --add --allow-principal '{principal}' --operation Read --group '{group}'"
    " --bootstrap-server ... --command-config ... (docs/security.md).",
)
OTHER_GROUP_ACCESS_DENIED = Condition(
    "GROUPKAFKA.OTHER_GROUP_ACCESS_DENIED",
    "The client may not read the offsets of group '{group}'.",
    "grant DESCRIBE on that group to the client's principal.",
)
CLUSTER_REQUEST_FAILED = Condition(
    "GROUPKAFKA.CLUSTER_REQUEST_FAILED",
    "The request {request} failed: {reason}",
    "see the brokers' logs; a restart of the query continues from the last completed batch.",
    may_pass=True,
)

# --- group

SESSION_TIMEOUT_REFUSED = Condition(
    "GROUPKAFKA.SESSION_TIMEOUT_REFUSED",
    "The broker refuses option 'kafka.session.timeout.ms' with the value '{value}'.",
    "choose a value between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.",
)
GROUP_PROTOCOL_CONFLICT = Condition(
    "GROUPKAFKA.GROUP_PROTOCOL_CONFLICT",
    "Group '{group}' has members that have no protocol in common with this one (kafka.group.protocol='{protocol}',"
    " kafka.partition.assignment.strategy='{strategy}'): {reason}",
    "give all members the same kafka.group.protocol and a strategy in common (option assignors), or use another"
    " kafka.group.id (always if this one is a share group's); 'groupkafka group --group {group} ...' shows the members'"
    " protocols.",
)
REMOTE_ASSIGNOR_UNKNOWN = Condition(
    "GROUPKAFKA.REMOTE_ASSIGNOR_UNKNOWN",
    "Option 'kafka.group.remote.assignor' has the value '{value}', which the broker does not have: {reason}",
    "use one of the broker's group.consumer.assignors (default: uniform and range).",
)
ASSIGNORS_UNUSABLE = Condition(
    "GROUPKAFKA.ASSIGNORS_UNUSABLE",
    "Option 'assignors' has the value '{value}', which cannot be used: {reason}",
    "name strategies of docs/assignors.md, or package.module:Class of a module that the driver's Python can import."
    " Do not mix eager strategies (range, roundrobin, sticky) with cooperative ones (cooperative-sticky) in one list.",
)
ASSIGNORS_NOT_INSTALLED = Condition(
    "GROUPKAFKA.ASSIGNORS_NOT_INSTALLED",
    "Option 'assignors' has the value '{value}', which needs the client kafka-python: {reason}",
    "install kafka-python>=3.0.12,<3.1 on the driver (in groupkafka's checkout: pip install '.[assignors]').",
)
NO_COMMON_STRATEGY = Condition(
    "GROUPKAFKA.NO_COMMON_STRATEGY",
    "Group '{group}' has members that have no assignment strategy in common with this one, which offers {offered};"
    " {others}",
    "add a strategy that all members have to option assignors (to change the strategy, list the new and the old one"
    " until all queries list both), or use another kafka.group.id;"
    " 'groupkafka group --group {group} ...' shows the members' strategies.",
)
ASSIGNMENT_REFUSED = Condition(
    "GROUPKAFKA.ASSIGNMENT_REFUSED",
    "The assignment strategy of group '{group}' cannot assign partitions: {reason}",
    "remove the cause above, or set another strategy with option 'assignors' in all queries of the group"
    " (docs/assignors.md).",
)
INSTANCE_ID_IN_USE = Condition(
    "GROUPKAFKA.INSTANCE_ID_IN_USE",
    "Option 'kafka.group.instance.id' has the value '{value}', but another live member of group '{group}' uses it:"
    " {reason}",
    "give every query of the group its own kafka.group.instance.id.",
)
ASSIGN_GROUP_IN_USE = Condition(
    "GROUPKAFKA.ASSIGN_GROUP_IN_USE",
    "Group '{group}' has members, so its coordinator rejects commits of a query with option 'assign': {reason}",
    "give the query a kafka.group.id of its own, or use 'subscribe'.",
)
ASSIGN_OVERTAKEN = Condition(
    "GROUPKAFKA.ASSIGN_OVERTAKEN",
    "Option 'assign': the commit of offset {offset} of partition {partition} would move group '{group}' back from"
    " offset {held}, which another driver has committed to the same group.",
    "stop one of the two queries, or give it a kafka.group.id of its own. To continue with this query, start it again:"
    " it continues from the group's offset.",
)
COMMIT_TOO_LARGE = Condition(
    "GROUPKAFKA.COMMIT_TOO_LARGE",
    "The coordinator of group '{group}' does not accept {what} of {size} bytes: {reason}",
    "raise {setting} on the brokers (Kafka's default is enough).",
)
MEMBER_FAILED = Condition(
    "GROUPKAFKA.MEMBER_FAILED",
    "The member of group '{group}' cannot continue: {reason}",
    "remove the cause above (for example, the group has its maximum number of members), see the brokers' logs;"
    " a restart of the query continues from the last completed batch.",
)
PARTITIONS_LOST = Condition(
    "GROUPKAFKA.PARTITIONS_LOST",
    "This member of group '{group}' lost {count} partitions without a handover. Option 'onPartitionsLost' has the value"
    " 'fail'. Partitions: {partitions}.",
    "start the query again with its checkpoint: no record is lost, the batch in flight may be read twice. If it should"
    " go on by itself after a loss, set onPartitionsLost=continue; if its process was only slow, raise"
    " kafka.session.timeout.ms (under KIP-848 the group's consumer.session.timeout.ms).",
)
NO_ASSIGNMENT = Condition(
    "GROUPKAFKA.NO_ASSIGNMENT",
    "Group '{group}' assigned {partitions} within {timeout_s:.0f} s (member state {state}).",
    "check the group's other members ('groupkafka group --group {group} ...'): there may be one whose batch takes long,"
    " one that may not read the topic, or another source of the same query, which needs a group of its own. Check the"
    " coordinator's log. Start the query again.",
    may_pass=True,
)
MEMBER_NOT_ANSWERING = Condition(
    "GROUPKAFKA.MEMBER_NOT_ANSWERING",
    "The query's group member did not answer the internal request '{command}' within {timeout_s:.0f} s (member state"
    " {state}).",
    "check whether the group's coordinator is reachable (groupkafka doctor), and start the query again: it continues"
    " from the last completed batch.",
    may_pass=True,
)
# `run_until_stopped` looks for it in the text of MEMBER_LEFT.
NOTHING_REPEATED = "Its last batch is complete and committed."
MEMBER_LEFT = Condition(
    "GROUPKAFKA.MEMBER_LEFT",
    "The member of group '{group}' has left the group: {cause}. {repeats}",
    "start the query again; it continues from the last completed batch. To stop it without this error, wait for it with"
    " run_until_stopped instead of awaitTermination (docs/how-to/stop.md).",
    may_pass=True,
)
OWNER_BY_CONNECT = Condition(
    "GROUPKAFKA.OWNER_BY_CONNECT",
    "run_when_owner is not supported with Spark Connect: its queries run in the server, which runs on when this program"
    " ends or loses its lock; the next owner would start a second copy",
    "run the program with a driver of its own (spark-submit, or SparkSession.builder.master(...)).",
)
CONFLICT = Condition(
    "GROUPKAFKA.CONFLICT",
    "Another program has changed the group's offsets: they are not those of this query's checkpoint. Option"
    " 'onConflict' has the value 'fail'. Details: {details}.",
    "to continue from the group's offsets, leave onConflict=fail out: what lies between is skipped if the group is"
    " ahead, and read again if it is behind. To continue elsewhere, stop all queries of the group and move it with"
    " groupkafka reset (docs/how-to/reset.md).",
)
CHECKPOINT_BEHIND = Condition(
    "GROUPKAFKA.CHECKPOINT_BEHIND",
    "This query has committed more to the group than its checkpoint holds: an older copy of the checkpoint was"
    " restored, or one is used twice, or async progress tracking wrote it late (then set onConflict=group), or an older"
    " version has decided a conflict. Details: {details}.",
    "if the sink lacks what lies between, stop all queries of the group and run groupkafka reset --bootstrap-servers"
    " SERVERS --group GROUP --to checkpoint LOCATION --execute: it is read again. If the sink has it, start the query"
    " with a new checkpointLocation, and with a new folder or query name where the sink goes by the numbers of batches."
    " For a query with state see docs/how-to/reset.md first.",
)

SHARED_STATE = Condition(
    "GROUPKAFKA.SHARED_STATE",
    "{problem} Option 'onSharedState' has the value 'fail'. Group '{group}': {details}.",
    "state does not move with partitions, so choose one: (1) stop one of the two queries; to have one ready when the"
    " other ends, let run_when_owner start it with the same checkpoint; (2) give each query a kafka.group.id of its own"
    " (each then reads all); (3) set onSharedState=allow if the queries' results are merged later. If a checkpoint is"
    " lost or was left behind, stop all queries of the group and run groupkafka reset"
    " (docs/how-to/scale.md#queries-with-state).",
)

# --- data

DATA_LOST = Condition(
    "GROUPKAFKA.DATA_LOST",
    "Unread records are missing on the broker, or may be missing. Option 'failOnDataLoss' has the value 'true'."
    " Ranges: {ranges}.",
    "to go on without these records, start the query with failOnDataLoss=false: it reports this loss and any other, and"
    " reads a recreated topic from its beginning. Set it back when a batch is complete. A query that moves to another"
    " cluster needs a new checkpoint, and startingOffsets=earliest or the offsets of your choice. Raise the topic's"
    " retention.",
)
READ_STALLED = Condition(
    "GROUPKAFKA.READ_STALLED",
    "Partition {topic}-{partition} returned no record for {timeout_s:.0f} s at offset {offset} (range [{start},"
    " {end})): {reason}",
    "check the partition's leader, and the brokers' quotas for this client (docs/how-to/lag.md); raise"
    " kafkaConsumer.pollTimeoutMs if the brokers are slow.",
    may_pass=True,
)
READ_FAILED = Condition(
    "GROUPKAFKA.READ_FAILED",
    "Partition {topic}-{partition} cannot be read at offset {offset}: {reason}",
    "see the broker's log. Spark tries the task again on a cluster, and with local[N,4]. If the query has ended, start"
    " it again.",
    may_pass=True,
)
BATCH_TOO_LARGE = Condition(
    "GROUPKAFKA.BATCH_TOO_LARGE",
    "Partition {topic}-{partition} cannot be read at offset {offset}: {reason}. Option '{option}' has the value"
    " '{value}', which also limits the uncompressed size of a zstd batch in bytes.",
    "leave the option out, which allows {largest} bytes; or set at least three times the uncompressed size of the"
    " largest batch.",
)
HEADER_NAME_UNREADABLE = Condition(
    "GROUPKAFKA.HEADER_NAME_UNREADABLE",
    "The record at {topic}-{partition} offset {offset} has a header whose name is not UTF-8. Without the C extension of"
    " groupkafka its headers cannot be read.",
    "read with the C extension: install a wheel of groupkafka, or a C compiler before you install it, and leave the"
    " variable GROUPKAFKA_GATHER unset. Or leave option includeHeaders out.",
)
TOO_MANY_HEADERS = Condition(
    "GROUPKAFKA.TOO_MANY_HEADERS",
    "The record at {topic}-{partition} offset {offset} has more than 100,000 headers, or they are damaged. The Kafka"
    " client does not read them.",
    "leave option includeHeaders out. To skip the record, delete the partition's records up to it with"
    " kafka-delete-records.sh and start the query with failOnDataLoss=false, which reports unread records that were"
    " deleted.",
)
TIMESTAMP_IMPOSSIBLE = Condition(
    "GROUPKAFKA.TIMESTAMP_IMPOSSIBLE",
    "The record at {topic}-{partition} offset {offset} has the timestamp {value} ms, which is outside the range of a"
    " Spark timestamp.",
    "correct its producer. To skip the record, delete the partition's records up to it with kafka-delete-records.sh and"
    " start the query with failOnDataLoss=false, which reports unread records that were deleted.",
)

EXECUTOR_PACKAGE_MISSING = Condition(
    "GROUPKAFKA.EXECUTOR_PACKAGE_MISSING",
    "The Python of an executor{python} has no package '{package}'.",
    "install groupkafka there, with its dependencies. Executors start the path in PYSPARK_DRIVER_PYTHON, or else in "
    "PYSPARK_PYTHON, of the driver's environment; no Spark setting and no --py-files changes that (docs/deploying.md).",
)
EXECUTOR_VERSION_DIFFERS = Condition(
    "GROUPKAFKA.EXECUTOR_VERSION_DIFFERS",
    "The Python of an executor ({python}) has version {there} of groupkafka, and the driver has {here}.",
    "install the same version on the driver and all executors, and start the query again: it goes on at its"
    " checkpoint. `groupkafka doctor --master ...` shows the version on each executor.",
)

# --- the command line

GROUP_UNKNOWN = Condition(
    "GROUPKAFKA.GROUP_UNKNOWN",
    "Group '{group}' has no committed offsets on '{servers}'.",
    "check --group and --bootstrap-servers; a group's first query commits its start positions when it joins.",
)
GROUP_NOT_FOUND = Condition(
    "GROUPKAFKA.GROUP_NOT_FOUND",
    "Group '{group}' does not exist on '{servers}': it has no members and no committed offsets.",
    "check --group and --bootstrap-servers; brokers delete a group without members after offsets.retention.minutes.",
)
GROUP_NOT_ADDRESSABLE = Condition(
    "GROUPKAFKA.GROUP_NOT_ADDRESSABLE",
    "The offsets of group '{group}' cannot be read: librdkafka removes white space at the beginning of the name, so the"
    " answer would be about another group.",
    "name groups without white space at the beginning; kafka-consumer-groups.sh of Kafka shows this group.",
)
GROUP_NOT_OF_CONSUMERS = Condition(
    "GROUPKAFKA.GROUP_NOT_OF_CONSUMERS",
    "The members of group '{group}' are not consumers: {reason}",
    "check --group; only the command 'group' can show such a group.",
)
COMMAND_UNSUPPORTED = Condition(
    "GROUPKAFKA.COMMAND_UNSUPPORTED",
    "The brokers '{servers}' do not support the request {request}, which this command needs.",
    "use a real Kafka broker; the embedded broker supports queries and the command lag.",
)
STOP_NO_QUERY = Condition(
    "GROUPKAFKA.STOP_NO_QUERY",
    "No query that can be asked to stop runs with the checkpoint '{location}'.",
    "check the location, and that the query runs and its source has option checkpointLocation.",
)
STOP_UNREACHABLE = Condition(
    "GROUPKAFKA.STOP_UNREACHABLE",
    "The checkpoint '{location}' cannot be read or written: {reason}.",
    "give the location as the source has it, and the right to write there.",
)
STOP_UNCLEAN = Condition(
    "GROUPKAFKA.STOP_UNCLEAN",
    "Not all members have left cleanly: {runs}.",
    "no answer has two causes: the batch in flight takes longer than --wait, and the query still stops after it; or the"
    " process was killed, and nothing more happens. Otherwise check the log of the query's reader.",
    may_pass=True,
)
GROUP_HAS_MEMBERS = Condition(
    "GROUPKAFKA.GROUP_HAS_MEMBERS",
    "Group '{group}' has live members, which would continue from their own positions: {members}.",
    "stop all queries of the group first. A killed member, or one with a kafka.group.instance.id, stays until"
    " its session timeout (kafka.session.timeout.ms, 45 s; under KIP-848 the broker's): wait, and repeat the command."
    " 'groupkafka group --group {group} ...' shows the members.",
    may_pass=True,
)
COMMAND_TOPIC_UNKNOWN = Condition(
    "GROUPKAFKA.COMMAND_TOPIC_UNKNOWN",
    "Group '{group}': these topics do not exist: {topics}.",
    "check --topic and --bootstrap-servers.",
)
NO_INITIAL_OFFSET = Condition(
    "GROUPKAFKA.NO_INITIAL_OFFSET",
    "The group's initial offset is not known for these partitions, because no query of this source has read them yet:"
    " {partitions}.",
    "reset these topics with --topic and --to earliest, latest or a time.",
)
ORIGIN_UNUSABLE = Condition(
    "GROUPKAFKA.ORIGIN_UNUSABLE",
    "The offsets of {origin} cannot be used: {reason}",
    "{instead}.",
)
GROUP_HAS_OFFSETS = Condition(
    "GROUPKAFKA.GROUP_HAS_OFFSETS",
    "Group '{group}' already has other offsets of these partitions: {partitions}.",
    "choose a new group. Or write a savepoint, and add --overwrite to replace these offsets: checkpoints of the group's"
    " older queries then do not count any more, as after a reset.",
)
OFFSETS_BEHIND_END = Condition(
    "GROUPKAFKA.OFFSETS_BEHIND_END",
    "The offsets of {origin} are greater than the end of the log. The topic was deleted and recreated, or its log was"
    " truncated, so it is unknown which of its records were read. Partitions: {partitions}.",
    "name only the other topics with --topic; the query then reads this topic from its beginning.",
)
SAVEPOINT_EMPTY = Condition(
    "GROUPKAFKA.SAVEPOINT_EMPTY",
    "Group '{group}' has no offset of a topic that exists, so nothing was written to '{path}'.",
    "keep the savepoint that you have; the queries of the group commit offsets of recreated topics when they run.",
)
SAVEPOINT_INVALID = Condition(
    "GROUPKAFKA.SAVEPOINT_INVALID",
    "File '{path}' is not a savepoint: {reason}",
    "name a file that the command 'savepoint' wrote.",
)
SAVEPOINT_MISMATCH = Condition(
    "GROUPKAFKA.SAVEPOINT_MISMATCH",
    "The offsets in '{path}' cannot be applied: {reason}",
    "offsets are valid only in the group, cluster and topic that they were read from: choose another savepoint, leave"
    " the topic out with --topic, or reset to earliest, latest or a time.",
)
FILE_FAILED = Condition(
    "GROUPKAFKA.FILE_FAILED",
    "File '{path}' cannot be {verb}: {reason}",
    "check the path and its permissions.",
)
NO_PYSPARK_ARCHIVE = Condition(
    "GROUPKAFKA.NO_PYSPARK_ARCHIVE",
    "There is no archive of PySpark to change: '{path}' does not exist.",
    "set SPARK_HOME to Spark's folder, or run the command with the Python in which PySpark is installed.",
)
OTHER_PYSPARK_ARCHIVE = Condition(
    "GROUPKAFKA.OTHER_PYSPARK_ARCHIVE",
    "'{path}' is PySpark {archived}, but PySpark {installed} is installed here.",
    "set SPARK_HOME to the folder of PySpark {installed}, or install PySpark {archived}.",
)
ARCHIVE_NOT_IMPORTED = Condition(
    "GROUPKAFKA.ARCHIVE_NOT_IMPORTED",
    "PySpark cannot be imported from '{path}' with {python}: {reason}",
    "install what is missing into this Python, or run the command with the Python that Spark starts.",
)
SEVERAL_GROUPS = Condition(
    "GROUPKAFKA.SEVERAL_GROUPS",
    "The metrics files are of several groups: {groups}.",
    "name the files of one group's queries.",
)
COMMAND_EXTRA_MISSING = Condition(
    "GROUPKAFKA.COMMAND_EXTRA_MISSING",
    "Command '{command}' needs the Python package '{package}', which is not installed.",
    "install the extra '{extra}' (in groupkafka's checkout: pip install '.[{extra}]').",
)
CONFIG_MALFORMED = Condition(
    "GROUPKAFKA.CONFIG_MALFORMED",
    "Line {line} of '{path}' is not of the form name=value, with a name of letters, digits, '.', '_' and '-', and"
    " without a backslash at its end.",
    "write each client property on one line; a secret that ends with a backslash goes into its own file"
    " (sasl.password.file=...); lines that begin with # are comments.",
)
COMMIT_REFUSED = Condition(
    "GROUPKAFKA.COMMIT_REFUSED",
    "The group's coordinator rejected offsets ({reason}). Partitions: {partitions}.",
    "check the group's offsets (those of the other partitions were committed), and repeat the command.",
)
COMMIT_UNANSWERED = Condition(
    "GROUPKAFKA.COMMIT_UNANSWERED",
    "The offsets were sent to the coordinator of group '{group}', but the answer is missing or unclear: they may have"
    " been committed. {reason}",
    "check the group's offsets ('groupkafka group --group {group} ...'), and repeat the command if they are wrong.",
    may_pass=True,
)

# --- functions on columns

AVRO_EXTRA_MISSING = Condition(
    "GROUPKAFKA.AVRO_EXTRA_MISSING",
    "from_confluent_avro needs a package that is not installed: {reason}",
    "install the extra 'avro' on the driver and on executors (in groupkafka's checkout: pip install '.[avro]').",
)
AVRO_SCHEMA_UNUSABLE = Condition(
    "GROUPKAFKA.AVRO_SCHEMA_UNUSABLE",
    "The schema of {source} gives no column type: {reason}",
    "check subject, or set reader_schema to a schema that Spark has types for; it may leave fields out.",
)
AVRO_RECORD_INVALID = Condition(
    "GROUPKAFKA.AVRO_RECORD_INVALID",
    "A record that begins with the bytes {start} is not readable as Confluent's Avro: {reason}",
    "check that the column is the record's value or key as its producer serialized it (argument 'headers' reads the"
    " schema's id from a record header), or set option 'mode' to PERMISSIVE, which makes such records null.",
)
SCHEMA_REGISTRY_FAILED = Condition(
    "GROUPKAFKA.SCHEMA_REGISTRY_FAILED",
    "The schema registry at {url} does not answer {path}: {reason}",
    "check schema_registry_url, the credentials in options, and that driver and executors reach the registry.",
    may_pass=True,
)


def report_loss(lost: Iterable[tuple[object, str]], *, fail: bool, group: str) -> None:
    """Report data loss: raise `DataLossError` if `fail` (option failOnDataLoss), else log a warning.

    The driver, the executors and the batch read report all losses here. `lost` has each range with the reason of its
    loss; a reason may be empty. Without a range nothing is reported.
    """
    by_reason: dict[str, list[str]] = {}
    for item, reason in lost:
        by_reason.setdefault(reason, []).append(str(item))
    if not by_reason:
        return
    ranges = "; ".join(", ".join(items) + (f": {why}" if why else "") for why, items in by_reason.items())
    if fail:
        raise DataLossError(DATA_LOST, ranges=ranges)
    LOG.warning("data lost and skipped, failOnDataLoss=false: group=%s %s", group or "none", ranges)


@contextmanager
def file_errors(path: object, verb: str) -> Iterator[None]:
    """Raise `CommandError` for an OSError: a command's file cannot be read, written or changed (`verb`)."""
    try:
        yield
    except OSError as error:
        raise CommandError(FILE_FAILED, path=path, verb=verb, reason=error.strerror or str(error)) from None
