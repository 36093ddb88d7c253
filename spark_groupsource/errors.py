"""The error catalogue: one condition, one template, one advice, one factory.

An error is made of a condition and its parameters, and the exception carries both.

Invariant: no parameter of a template ever holds the value of a sensitive option; whoever builds an error
passes values through `client_settings.shown_value`. A `reason` comes from elsewhere: it is masked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_groupsource.redaction import masked


class Retry(Enum):
    """Whether the same call may succeed later without anybody changing anything."""

    NO = "no"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Condition:
    """One row of the catalogue: a stable id, the message template, what to do, and whether waiting may help."""

    id: str
    template: str
    advice: str
    retry: Retry = Retry.NO


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
        # A reason at the message's end comes from elsewhere, with or without a full stop.
        message = message.rstrip(". ")
        super().__init__(f"[{condition.id}] {message}{'' if message.endswith('?') else '.'} What to do: {advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Spark pickles exceptions between processes: rebuild from the condition, not from the text."""
        return (_rebuild, (type(self), self.condition, self.parameters))


def _rebuild(kind: type[GroupKafkaError], condition: Condition, parameters: dict[str, object]) -> GroupKafkaError:
    return kind(condition, **parameters)


class OptionError(GroupKafkaError):
    """An option is missing, unknown, malformed, out of range or refused."""


class OffsetFormatError(GroupKafkaError):
    """An offset or commit metadata that was read back is not what this package writes."""


class KafkaUnavailableError(GroupKafkaError):
    """The cluster cannot be reached or does not answer in time."""


class AccessError(GroupKafkaError):
    """The cluster refuses the identity or its rights."""


class MembershipError(GroupKafkaError):
    """The group does not take the member, or takes it no longer."""


class DataLossError(GroupKafkaError):
    """Records that the group has not read are gone from the broker (promise P8)."""


class CommandError(GroupKafkaError):
    """A command of the command line is refused."""


class ReadError(GroupKafkaError):
    """An executor cannot read a range of a partition."""


# --- options

OPTION_MISSING = Condition(
    "GROUPKAFKA.OPTION_MISSING",
    "Option '{option}' is required: {meaning}",
    "set .option('{option}', ...) on the reader.",
)
OPTION_UNKNOWN = Condition(
    "GROUPKAFKA.OPTION_UNKNOWN",
    "Option '{option}' is not known.{suggestion}",
    "check the spelling; client settings start with 'kafka.', and docs/reference/options.md lists every option.",
)
OPTION_INVALID = Condition(
    "GROUPKAFKA.OPTION_INVALID",
    "Option '{option}' has the value '{value}', allowed is: {allowed}.",
    "set an allowed value or leave the option out.",
)
OPTION_REFUSED = Condition(
    "GROUPKAFKA.OPTION_REFUSED",
    "Option '{option}' (value '{value}') is not supported here: {reason}",
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
    "use a property and value of librdkafka's configuration reference (it differs from the Java client's).",
)
SECRET_UNREADABLE = Condition(
    "GROUPKAFKA.SECRET_UNREADABLE",
    "Option '{option}' names the {kind} '{value}', which cannot be read by {side} on host '{host}': {reason}",
    "{remedy}",
)
NOT_PERMITTED = Condition(
    "GROUPKAFKA.NOT_PERMITTED",
    "Option '{option}' has the value '{value}', which options may not name on this driver: {reason}",
    "{remedy}",
)
SCHEMA_FIXED = Condition(
    "GROUPKAFKA.SCHEMA_FIXED",
    "The source has a fixed schema and was given another: {given}",
    "leave .schema(...) out and cast the columns key and value after the read.",
)
READ_LIMIT_UNSUPPORTED = Condition(
    "GROUPKAFKA.READ_LIMIT_UNSUPPORTED",
    "The read limit {limit} is not supported by this source.",
    "use option maxOffsetsPerTrigger.",
)

# --- stored offsets

OFFSET_MALFORMED = Condition(
    "GROUPKAFKA.OFFSET_MALFORMED",
    "The stored {what} is not valid: {reason}",
    "the checkpoint is damaged or belongs to another source: restore it, or start the query with a new"
    " checkpoint location; it then continues from the group's committed offsets.",
)
OFFSET_TOO_NEW = Condition(
    "GROUPKAFKA.OFFSET_TOO_NEW",
    "The stored {what} has format version {version}; this release reads versions up to {newest}.",
    "run the release that wrote it, or a newer one.",
)
OFFSET_OF_SPARKS_SOURCE = Condition(
    "GROUPKAFKA.OFFSET_OF_SPARKS_SOURCE",
    "The checkpoint is one of a query of Spark's own Kafka source (format 'kafka').",
    "run 'python -m spark_groupsource adopt --from-checkpoint ...' with it, so that the group goes on where that query"
    " has got to, and start the query with a new checkpointLocation.",
)

# --- cluster

BROKER_UNREACHABLE = Condition(
    "GROUPKAFKA.BROKER_UNREACHABLE",
    "No broker of option 'kafka.bootstrap.servers' ('{servers}') answered within {timeout_s:.0f} s: {reason}",
    "check host, port, network and kafka.security.protocol.",
    Retry.LATER,
)
AUTHENTICATION_FAILED = Condition(
    "GROUPKAFKA.AUTHENTICATION_FAILED",
    "The brokers of option 'kafka.bootstrap.servers' ('{servers}') refuse the client's identity: {reason}",
    "check kafka.security.protocol, kafka.sasl.* and kafka.ssl.*, and executor.kafka.* if given.",
)
TOPIC_UNKNOWN = Condition(
    "GROUPKAFKA.TOPIC_UNKNOWN",
    "Option '{option}' has the value '{value}', but topic '{topic}' does not exist.",
    "create the topic, or correct the option.",
)
TOPIC_ACCESS_DENIED = Condition(
    "GROUPKAFKA.TOPIC_ACCESS_DENIED",
    "The client may not read or describe topic '{topic}' (option '{option}', value '{value}').",
    "grant READ and DESCRIBE on the topic to the client's principal.",
)
GROUP_ACCESS_DENIED = Condition(
    "GROUPKAFKA.GROUP_ACCESS_DENIED",
    "The client may not use the group of option 'kafka.group.id' ('{group}').",
    "grant READ on the group to the client's principal.",
)
OTHER_GROUP_ACCESS_DENIED = Condition(
    "GROUPKAFKA.OTHER_GROUP_ACCESS_DENIED",
    "The client may not read the offsets of group '{group}'.",
    "grant DESCRIBE on that group to the client's principal.",
)
CLUSTER_REQUEST_FAILED = Condition(
    "GROUPKAFKA.CLUSTER_REQUEST_FAILED",
    "{request} failed: {reason}",
    "see the brokers' logs; a restart of the query continues from the last completed batch.",
    Retry.LATER,
)

# --- group

SESSION_TIMEOUT_REFUSED = Condition(
    "GROUPKAFKA.SESSION_TIMEOUT_REFUSED",
    "The broker refuses option 'kafka.session.timeout.ms' with the value '{value}'.",
    "choose a value between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms.",
)
GROUP_PROTOCOL_CONFLICT = Condition(
    "GROUPKAFKA.GROUP_PROTOCOL_CONFLICT",
    "Group '{group}' already has members that share no protocol with this one (kafka.group.protocol='{protocol}',"
    " kafka.partition.assignment.strategy='{strategy}'): {reason}",
    "give all members the same kafka.group.protocol and a strategy in common (option assignors), or use another"
    " kafka.group.id; 'python -m spark_groupsource group --group {group} ...' shows what the members run.",
)
REMOTE_ASSIGNOR_UNKNOWN = Condition(
    "GROUPKAFKA.REMOTE_ASSIGNOR_UNKNOWN",
    "Option 'kafka.group.remote.assignor' has the value '{value}', which the broker does not have: {reason}",
    "use one of the broker's group.consumer.assignors (uniform and range, unless it is set up otherwise).",
)
ASSIGNORS_UNUSABLE = Condition(
    "GROUPKAFKA.ASSIGNORS_UNUSABLE",
    "Option 'assignors' has the value '{value}', which cannot be used: {reason}",
    "name strategies of docs/assignors.md, or package.module:Class of a module that the driver's Python can import; the"
    " eager and the cooperative ones (range, roundrobin, sticky; cooperative-sticky) go in different lists.",
)
ASSIGNORS_NOT_INSTALLED = Condition(
    "GROUPKAFKA.ASSIGNORS_NOT_INSTALLED",
    "Option 'assignors' has the value '{value}', which needs the client kafka-python: {reason}",
    "install kafka-python 3.0 where the driver runs (the extra of groupkafka[assignors]).",
)
NO_COMMON_STRATEGY = Condition(
    "GROUPKAFKA.NO_COMMON_STRATEGY",
    "Group '{group}' has members that share no assignment strategy with this one, which offers {offered}; {others}",
    "add a strategy that all members have to assignors (to change it, offer the new one and the old one for a while),"
    " or use another kafka.group.id; 'python -m spark_groupsource group --group {group} ...' shows what they run.",
)
ASSIGNMENT_REFUSED = Condition(
    "GROUPKAFKA.ASSIGNMENT_REFUSED",
    "The strategy of group '{group}' cannot assign: {reason}",
    "mend what it names, or set another strategy with option 'assignors' in all queries of the group, as"
    " docs/assignors.md says.",
)
INSTANCE_ID_IN_USE = Condition(
    "GROUPKAFKA.INSTANCE_ID_IN_USE",
    "Option 'kafka.group.instance.id' has the value '{value}', which another live member of group '{group}' uses:"
    " {reason}",
    "give every query of the group its own kafka.group.instance.id.",
)
ASSIGN_GROUP_IN_USE = Condition(
    "GROUPKAFKA.ASSIGN_GROUP_IN_USE",
    "Group '{group}' has members, so its coordinator takes no offsets of a query with option 'assign': {reason}",
    "give the query a kafka.group.id of its own, or use 'subscribe'.",
)
ASSIGN_OVERTAKEN = Condition(
    "GROUPKAFKA.ASSIGN_OVERTAKEN",
    "Option 'assign': the commit of offset {offset} of partition {partition} would take group '{group}' back from"
    " offset {held}, which another driver has committed to the same group.",
    "stop one of the two, or give it a kafka.group.id of its own; if this query is the one to go on, start it again: it"
    " continues from the group's offset.",
)
COMMIT_TOO_LARGE = Condition(
    "GROUPKAFKA.COMMIT_TOO_LARGE",
    "The coordinator of group '{group}' does not take {what}, of {size} bytes: {reason}",
    "raise {setting} on the brokers (Kafka's default is enough).",
)
MEMBER_FAILED = Condition(
    "GROUPKAFKA.MEMBER_FAILED",
    "The member of group '{group}' cannot go on: {reason}",
    "see the brokers' logs; a restart of the query continues from the last completed batch.",
)
PARTITIONS_LOST = Condition(
    "GROUPKAFKA.PARTITIONS_LOST",
    "Group '{group}' took {count} partitions from this member without a handover ({partitions}), and option"
    " 'onPartitionsLost' has the value 'fail'.",
    "raise kafka.session.timeout.ms or kafka.max.poll.interval.ms, or set onPartitionsLost=continue.",
)
NO_ASSIGNMENT = Condition(
    "GROUPKAFKA.NO_ASSIGNMENT",
    "Group '{group}' assigned no partition to this member within {timeout_s:.0f} s (member state {state}).",
    "look at the group's other members ('python -m spark_groupsource group --group {group} ...') and at the"
    " coordinator's log.",
    Retry.LATER,
)
MEMBER_NOT_ANSWERING = Condition(
    "GROUPKAFKA.MEMBER_NOT_ANSWERING",
    "The membership thread did not answer '{command}' within {timeout_s:.0f} s (member state {state}).",
    "look whether the group's coordinator is reachable.",
    Retry.LATER,
)
MEMBER_LEFT = Condition(
    "GROUPKAFKA.MEMBER_LEFT",
    "The member of group '{group}' has left the group: its reader process was sent SIGTERM.",
    "start the query again; it continues from the last completed batch. If you wanted to stop it, send SIGTERM to the"
    " driver only (systemd: KillMode=mixed), which stops the query between two batches (docs/how-to/upgrade.md).",
    Retry.LATER,
)
CONFLICT = Condition(
    "GROUPKAFKA.CONFLICT",
    "The group's offsets and this query's checkpoint disagree: {details}. Option 'onConflict' has the value 'fail'.",
    "set onConflict=checkpoint to follow the checkpoint, or onConflict=group to follow the group.",
)

# --- data

DATA_LOST = Condition(
    "GROUPKAFKA.DATA_LOST",
    "Records that were not read yet are missing on the broker, or may be: {ranges}."
    " Option 'failOnDataLoss' has the value 'true'.",
    "set failOnDataLoss=false to report them and go on (a topic that was recreated is read from its beginning then);"
    " give a query that moves to another cluster a new checkpoint; raise the topic's retention for the future.",
)
READ_STALLED = Condition(
    "GROUPKAFKA.READ_STALLED",
    "Partition {topic}-{partition} gave no record for {timeout_s:.0f} s at offset {offset} (range [{start}, {end}))"
    " {reason}",
    "check the partition's leader; raise kafkaConsumer.pollTimeoutMs if the brokers are slow.",
    Retry.LATER,
)
READ_FAILED = Condition(
    "GROUPKAFKA.READ_FAILED",
    "Partition {topic}-{partition} cannot be read at offset {offset} (range [{start}, {end})): {reason}",
    "see the broker's log; Spark runs the task again.",
    Retry.LATER,
)
TIMESTAMP_IMPOSSIBLE = Condition(
    "GROUPKAFKA.TIMESTAMP_IMPOSSIBLE",
    "The record at {topic}-{partition} offset {offset} has the timestamp {value} ms, which no Spark timestamp"
    " can hold.",
    "remove the record, or correct its producer.",
)

EXECUTOR_PACKAGE_MISSING = Condition(
    "GROUPKAFKA.EXECUTOR_PACKAGE_MISSING",
    "The Python of an executor{python} has no package '{package}'.",
    "install groupkafka there, with its dependencies. Executors start the path in PYSPARK_DRIVER_PYTHON, or else in "
    "PYSPARK_PYTHON, of the driver's environment; no Spark setting and no --py-files changes that (docs/deploying.md).",
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
    "check --group and --bootstrap-servers; without members a group is forgotten after offsets.retention.minutes.",
)
GROUP_NOT_OF_CONSUMERS = Condition(
    "GROUPKAFKA.GROUP_NOT_OF_CONSUMERS",
    "The members of group '{group}' are no consumers: {reason}",
    "check --group; only the command 'group' can show such a group.",
)
COMMAND_UNSUPPORTED = Condition(
    "GROUPKAFKA.COMMAND_UNSUPPORTED",
    "The brokers '{servers}' do not know the request {request}, which this command needs.",
    "use a real Kafka broker; on the embedded one queries and the command lag work.",
)
GROUP_HAS_MEMBERS = Condition(
    "GROUPKAFKA.GROUP_HAS_MEMBERS",
    "Group '{group}' has live members, which would go on from where they are: {members}.",
    "stop all queries of the group first. A member that was killed, or that has a kafka.group.instance.id, stays until"
    " its session timeout (kafka.session.timeout.ms, 45 s; under KIP-848 the broker's): wait, and repeat the command."
    " 'python -m spark_groupsource group --group {group} ...' shows the members.",
    Retry.LATER,
)
COMMAND_TOPIC_UNKNOWN = Condition(
    "GROUPKAFKA.COMMAND_TOPIC_UNKNOWN",
    "Topic {topics} does not exist (group '{group}').",
    "check --topic and --bootstrap-servers.",
)
NO_INITIAL_OFFSET = Condition(
    "GROUPKAFKA.NO_INITIAL_OFFSET",
    "The group's initial offset is not known for: {partitions}. It is pinned by the first query of this source that"
    " gets a partition.",
    "reset these topics with --topic and --to earliest, latest or a time.",
)
ORIGIN_UNUSABLE = Condition(
    "GROUPKAFKA.ORIGIN_UNUSABLE",
    "The offsets of {origin} cannot be taken over: {reason}",
    "{instead}.",
)
GROUP_HAS_OFFSETS = Condition(
    "GROUPKAFKA.GROUP_HAS_OFFSETS",
    "Group '{group}' already has offsets of: {partitions}.",
    "choose a new group; or, if these offsets count for nothing, add --overwrite.",
)
OFFSETS_BEHIND_END = Condition(
    "GROUPKAFKA.OFFSETS_BEHIND_END",
    "The offsets of {origin} are behind the end of the log: {partitions}. The topic was deleted and recreated, or its"
    " log was truncated: which records were read cannot be determined.",
    "name the other topics with --topic; the query then starts with this topic's beginning.",
)
SAVEPOINT_INVALID = Condition(
    "GROUPKAFKA.SAVEPOINT_INVALID",
    "File '{path}' is not a savepoint: {reason}",
    "name a file that 'savepoint' has written.",
)
SAVEPOINT_MISMATCH = Condition(
    "GROUPKAFKA.SAVEPOINT_MISMATCH",
    "The savepoint in '{path}' does not fit: {reason}",
    "offsets mean nothing in another group, cluster or topic: choose another savepoint, leave the topic out with"
    " --topic, or reset to earliest, latest or a time.",
)
FILE_FAILED = Condition(
    "GROUPKAFKA.FILE_FAILED",
    "File '{path}' cannot be {verb}: {reason}",
    "check the path and its permissions.",
)
CONFIG_MALFORMED = Condition(
    "GROUPKAFKA.CONFIG_MALFORMED",
    "Line {line} of '{path}' is not of the form name=value, with a name of letters, digits, '.', '_' and '-', and"
    " without a backslash at its end.",
    "write each client property on one line; a secret that ends with a backslash goes into a file of its own"
    " (sasl.password.file=...); lines that begin with # are comments.",
)
COMMIT_REFUSED = Condition(
    "GROUPKAFKA.COMMIT_REFUSED",
    "The group's coordinator did not take the offsets of: {partitions}: {reason}",
    "look at the group's offsets, which the others have reached, and repeat the command.",
)
COMMIT_UNANSWERED = Condition(
    "GROUPKAFKA.COMMIT_UNANSWERED",
    "The offsets were sent to the coordinator of group '{group}', which gave no clear answer: they may have been"
    " taken. {reason}",
    "look at the group's offsets ('python -m spark_groupsource group --group {group} ...'), and repeat the command if"
    " they are not what they should be.",
    Retry.LATER,
)
