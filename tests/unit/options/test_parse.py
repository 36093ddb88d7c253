"""Options: one test per bound and per refusal, and no secret in any text."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from spark_groupsource.errors import GroupKafkaError, OptionError
from spark_groupsource.options.client_settings import (
    REFUSED_CLIENT_SETTINGS,
    GroupProtocol,
    is_sensitive,
    shown_value,
    warn_of_unused,
)
from spark_groupsource.options.model import (
    NoMatchStrategy,
    OnConflict,
    OnPartitionsLost,
    OnSharedState,
    SourceOptions,
    Subscription,
)
from spark_groupsource.options.offset_spec import AtEdge, AtGroup, AtOffset, AtTime, Starting
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import permissions_of
from spark_groupsource.options.table import OPTIONS
from spark_groupsource.options.values import INT64_MAX
from spark_groupsource.redaction import MASK
from spark_groupsource.spark.source import GroupKafkaDataSource
from tests.unit.fakes import tp

CANARY = "canary-7f3a"
EACH = {tp(0): AtOffset(7), tp(1): AtEdge(latest=True), tp(2): AtEdge()}
BY_TIME = Starting(None, {tp(0): AtTime(5)}, "startingOffsetsByTimestamp")
REQUIRED = {"kafka.bootstrap.servers": "broker:9092", "kafka.group.id": "shop", "subscribe": "orders"}
UNSUBSCRIBED = {name: value for name, value in REQUIRED.items() if name != "subscribe"}


def parse(**extra: str) -> SourceOptions:
    return parse_options(REQUIRED | _dotted(extra))


def refusal(raw: dict[str, str]) -> GroupKafkaError:
    with pytest.raises(OptionError) as raised:
        parse_options(raw)
    return raised.value


def refused(**extra: str) -> str:
    return str(refusal(REQUIRED | _dotted(extra)))


def _dotted(extra: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in extra.items()}


# --- what is accepted


def test_defaults() -> None:
    options = parse()
    assert options == SourceOptions(
        bootstrap_servers="broker:9092",
        group_id="shop",
        subscription=Subscription(topics=("orders",)),
        starting=Starting(AtEdge(latest=True)),
        ending=Starting(AtEdge(latest=True), option="endingOffsets"),
        no_match_strategy=NoMatchStrategy.ERROR,
        max_offsets_per_trigger=None,
        min_offsets_per_trigger=None,
        max_trigger_delay_s=900.0,
        max_bytes_per_trigger=None,
        min_partitions=None,
        max_records_per_partition=None,
        fail_on_data_loss=True,
        include_headers=False,
        checkpoint_location=None,
        max_batch_s=None,
        drain_timeout_s=240.0,
        on_partitions_lost=OnPartitionsLost.CONTINUE,
        on_conflict=None,
        on_shared_state=OnSharedState.FAIL,
        metrics_path=None,
        metrics_lag_interval_s=30.0,
        metrics_port=None,
        metrics_address="127.0.0.1",
        poll_timeout_s=120.0,
        fetch_retries=None,
        fetch_retry_interval_s=0.1,
        fast_lane_max_offsets=2_000,
        prefetch_memory_bytes=64 * 1024 * 1024,
        session_timeout_s=45.0,
        heartbeat_interval_s=3.0,
        rebalance_timeout_s=300.0,
        group_protocol=GroupProtocol.CLASSIC,
        assignors=(),
        member_weight=None,
        member_redundancy=2,
        client_settings={
            "isolation.level": "read_uncommitted",
            "partition.assignment.strategy": "cooperative-sticky",
        },
        executor_settings={},
        permissions=permissions_of(os.environ),
    )
    assert (options.read_committed, options.instance_id) == (False, None)


@pytest.mark.parametrize(
    ("name", "value", "attribute", "parsed"),
    [
        ("subscribe", "b, a,,b", "subscription", Subscription(topics=("b", "a"))),
        ("subscribe", "a" * 249, "subscription", Subscription(topics=("a" * 249,))),
        ("startingOffsets", "Earliest", "starting", Starting(AtEdge())),
        ("startingOffsets", " GROUP:other", "starting", Starting(AtGroup("other"))),
        ("startingOffsets", '{"orders":{"0":7,"1":-1,"2":-2}}', "starting", Starting(None, EACH)),
        ("startingOffsets", '{"orders":"earliest"}', "starting", Starting(None, topics={"orders": AtEdge()})),
        ("startingTimestamp", "0", "starting", Starting(AtTime(0), option="startingTimestamp")),
        ("startingOffsetsByTimestamp", '{"orders":{"0":5}}', "starting", BY_TIME),
        ("minOffsetsPerTrigger", "10", "min_offsets_per_trigger", 10),
        ("maxTriggerDelay", "500", "max_trigger_delay_s", 0.5),
        ("maxTriggerDelay", "2 Min", "max_trigger_delay_s", 120.0),
        ("maxTriggerDelay", "1h", "max_trigger_delay_s", 3600.0),
        ("startingOffsetsByTimestampStrategy", "latest", "no_match_strategy", NoMatchStrategy.LATEST),
        ("maxOffsetsPerTrigger", "1", "max_offsets_per_trigger", 1),
        ("maxOffsetsPerTrigger", str(INT64_MAX), "max_offsets_per_trigger", INT64_MAX),
        ("maxBytesPerTrigger", "1", "max_bytes_per_trigger", 1),
        ("fetchOffset.numRetries", "0", "fetch_retries", 0),
        ("metricsPort", "0", "metrics_port", 0),
        ("metricsAddress", "::1", "metrics_address", "::1"),
        ("fetchOffset.retryIntervalMs", "10", "fetch_retry_interval_s", 0.01),
        ("minPartitions", "1", "min_partitions", 1),
        ("minPartitions", str(2**31 - 1), "min_partitions", 2**31 - 1),
        ("maxRecordsPerPartition", " 1 ", "max_records_per_partition", 1),
        ("failOnDataLoss", "FALSE", "fail_on_data_loss", False),
        ("includeHeaders", "true", "include_headers", True),
        ("checkpointLocation", " /tmp/x ", "checkpoint_location", "/tmp/x"),
        ("drainTimeoutMs", "0", "drain_timeout_s", 0.0),
        ("drainTimeoutMs", "300000", "drain_timeout_s", 300.0),
        ("onPartitionsLost", "fail", "on_partitions_lost", OnPartitionsLost.FAIL),
        ("onConflict", "group", "on_conflict", OnConflict.GROUP),
        ("onConflict", "fail", "on_conflict", OnConflict.FAIL),
        ("onSharedState", "warn", "on_shared_state", OnSharedState.WARN),
        ("onSharedState", "allow", "on_shared_state", OnSharedState.ALLOW),
        ("kafkaConsumer.pollTimeoutMs", "1", "poll_timeout_s", 0.001),
        ("kafka.isolation.level", "READ_COMMITTED", "read_committed", True),
        ("kafka.group.instance.id", "one", "instance_id", "one"),
        ("kafka.group.protocol", "consumer", "group_protocol", GroupProtocol.CONSUMER),
        ("assignors", " weighted , range", "assignors", ("weighted", "range")),
        ("assignors", "tests.kafka.strategies:InTurn", "assignors", ("tests.kafka.strategies:InTurn",)),
        ("kafka.session.timeout.ms", "6000", "session_timeout_s", 6.0),
        ("kafka.heartbeat.interval.ms", "500", "heartbeat_interval_s", 0.5),
        ("kafka.max.poll.interval.ms", "60000", "drain_timeout_s", 48.0),
    ],
)
def test_accepted(name: str, value: str, attribute: str, parsed: object) -> None:
    beside = {"metricsAddress": {"metricsPort": "0"}, "minOffsetsPerTrigger": {"maxOffsetsPerTrigger": "10"}}
    assert getattr(parse_options(REQUIRED | beside.get(name, {}) | {name: value}), attribute) == parsed


def test_names_are_case_insensitive() -> None:
    """Spark hands them over in lower case, or as they were written."""
    shouted = {name.upper(): value for name, value in REQUIRED.items()}
    options = parse_options(shouted | {"STARTINGOFFSETS": "earliest", "KAFKA.FETCH.WAIT.MAX.MS": "7"})
    assert options.starting.is_earliest
    assert options.client_settings["fetch.wait.max.ms"] == "7"


def test_sparks_own_path_option_is_ignored() -> None:
    assert parse(path="x") == parse()


def test_client_settings_pass_through() -> None:
    assert parse(kafka__fetch__min__bytes=" 10 ").client_settings["fetch.min.bytes"] == "10"


def test_a_pattern_is_a_subscription() -> None:
    subscription = parse_options(UNSUBSCRIBED | {"subscribePattern": "orders-.*"}).subscription
    assert subscription == Subscription(pattern="orders-.*")
    assert (subscription.option, subscription.value) == ("subscribePattern", "orders-.*")
    assert (parse().subscription.option, parse().subscription.value) == ("subscribe", "orders")


def test_under_the_consumer_protocol_the_assignor_is_the_brokers() -> None:
    settings = parse(kafka__group__protocol="consumer").client_settings
    assert "partition.assignment.strategy" not in settings


# --- strategies


@pytest.mark.parametrize("weight", [1, 1_000_000])
@pytest.mark.parametrize("redundancy", [1, 1_000])
def test_what_a_member_reports_to_strategies(weight: int, redundancy: int) -> None:
    options = parse(assignors="weighted,redundant", memberWeight=str(weight), memberRedundancy=str(redundancy))
    assert (options.member_weight, options.member_redundancy) == (weight, redundancy)
    default = parse(assignors="weighted,redundant")
    assert (default.member_weight, default.member_redundancy) == (None, 2)


def test_a_batch_whose_end_is_not_seen_has_no_longest_time() -> None:
    with pytest.raises(OptionError, match=r"maxBatchMs.*'60000'.*checkpointLocation"):
        parse(maxBatchMs="60000")
    assert parse(maxBatchMs="60000", checkpointLocation="/data/checkpoint").max_batch_s == 60.0


@pytest.mark.parametrize("value", ["user:secret@host:9092", "kafka://user:secret@host:9092", "secret@host:9092"])
@pytest.mark.parametrize("prefix", ["", "executor."])
def test_a_password_in_the_address_of_a_broker_is_masked(value: str, prefix: str) -> None:
    error = refusal(REQUIRED | {f"{prefix}kafka.bootstrap.servers": value})
    assert error.condition.id == "GROUPKAFKA.OPTION_INVALID"
    assert "secret" not in str(error)


@pytest.mark.parametrize("value", ["s3a://key:secret@bucket/metrics.json", "file:/var/log/metrics.json"])
def test_the_path_of_metrics_is_no_uri(value: str) -> None:
    error = refusal(REQUIRED | {"metricsPath": value})
    assert error.condition.id == "GROUPKAFKA.OPTION_INVALID"
    assert "The value is a URI" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("strategies", ["range", "redundant", "sticky,rack-aware"])
def test_a_group_that_changes_its_strategy_keeps_its_other_options(strategies: str) -> None:
    options = parse(assignors=strategies, memberWeight="3", memberRedundancy="4")
    assert (options.member_weight, options.member_redundancy) == (3, 4)


@pytest.mark.parametrize("option", ["kafka.partition.assignment.strategy", "assignors"])
@pytest.mark.parametrize("names", ["range", "roundrobin", "roundrobin,range", "cooperative-sticky"])
def test_strategies_that_librdkafka_has_are_its_setting(option: str, names: str) -> None:
    assert parse_options(REQUIRED | {option: names}).client_settings["partition.assignment.strategy"] == names


def test_under_the_consumer_protocol_the_broker_is_given_a_strategy() -> None:
    settings = parse(kafka__group__protocol="consumer", kafka__group__remote__assignor="range").client_settings
    assert settings["group.remote.assignor"] == "range"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("wieghted", "there is no strategy wieghted (did you mean weighted?); there are co-partitioned, "),
        (
            "weighted,spark_groupsource.assignors.weighted:WeightedAssignor",
            "the group cannot distinguish weighted from spark_groupsource.assignors.weighted:WeightedAssignor",
        ),
        ("range,cooperative-sticky", "cannot offer range (eager protocol only) together with cooperative-sticky"),
    ],
)
def test_strategies_that_cannot_be_used(names: str, reason: str) -> None:
    error = refusal(REQUIRED | {"assignors": names})
    assert error.condition.id == "GROUPKAFKA.ASSIGNORS_UNUSABLE"
    assert f"'{names}'" in str(error)
    assert reason in str(error)


# --- options that do not go together

ASSIGN = 'assign={"orders":[0]}'


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("subscribe=orders", "subscribePattern=x", "only one of these options"),
        ("kafka.group.instance.id=one", ASSIGN, "a query with 'assign' joins no group"),
        ("kafka.partition.assignment.strategy=range", ASSIGN, "a query with 'assign' joins no group"),
        ("assignors=weighted", ASSIGN, "a query with 'assign' joins no group"),
        ("onPartitionsLost=fail", ASSIGN, "a query with 'assign' joins no group"),
        ("maxBatchMs=60000", ASSIGN, "a query with 'assign' joins no group"),
        ("kafka.group.protocol=consumer", "kafka.session.timeout.ms=6000", "under KIP-848 the broker sets"),
        ("kafka.group.protocol=consumer", "kafka.heartbeat.interval.ms=6000", "under KIP-848 the broker sets"),
        ("kafka.group.protocol=consumer", "kafka.partition.assignment.strategy=range", "under KIP-848 the broker sets"),
        ("assignors=weighted", "kafka.group.protocol=consumer", "kafka.group.remote.assignor"),
        ("assignors=weighted", "kafka.partition.assignment.strategy=range", "both set the strategies"),
        ("kafka.group.remote.assignor=uniform", "kafka.group.protocol=classic", "only under KIP-848"),
    ],
)
def test_options_that_cannot_be_used_together(first: str, second: str, reason: str) -> None:
    given = dict(option.split("=", 1) for option in (first, second))
    others = UNSUBSCRIBED if "assign" in given else REQUIRED
    error = refusal(others | {"checkpointLocation": "/data/checkpoint"} | given)
    assert error.condition.id == "GROUPKAFKA.OPTION_CONFLICT"
    assert " and ".join(f"'{name}' (value '{value}')" for name, value in given.items()) in str(error)
    assert reason in str(error)


def test_the_protocol_is_shown_as_it_counts() -> None:
    assert "'kafka.group.protocol' (value 'classic')" in refused(kafka__group__remote__assignor="uniform")
    assert "(value 'consumer')" in refused(assignors="weighted", kafka__group__protocol="Consumer")


@pytest.mark.parametrize(
    ("name", "value", "reason", "remedy"),
    [
        ("memberWeight", "2", "no effect without assignors", "set assignors=weighted, in all queries of the group, or"),
        ("memberRedundancy", "2", "no effect without assignors", "set assignors=redundant, in all queries"),
        ("metricsAddress", "127.0.0.1", "no effect without metricsPort", "set metricsPort, or leave"),
        ("metricsLagIntervalMs", "1000", "no effect without metricsPort", "set metricsPort or metricsPath, or leave"),
        ("groupIdPrefix", "mine", "does not generate group names", "kafka.group.id names the group"),
        ("onConflict", "Checkpoint", "a checkpoint does not win", "set onConflict=fail; to continue from other"),
    ],
)
def test_an_option_that_is_refused_with_what_to_do(name: str, value: str, reason: str, remedy: str) -> None:
    error = refusal(REQUIRED | {name: value})
    assert error.condition.id == "GROUPKAFKA.OPTION_REFUSED"
    assert f"'{name}' (value '{value}') is not supported by this source: " in str(error)
    assert reason in str(error)
    assert remedy in str(error)


# --- what is missing or unknown


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_required(name: str) -> None:
    error = refusal({key: value for key, value in REQUIRED.items() if key != name})
    assert error.condition.id == "GROUPKAFKA.OPTION_MISSING"
    assert f"'{name}'" in str(error)


@pytest.mark.parametrize(
    ("unknown", "suggested"),
    [
        ("subscribePatern", "subscribePattern"),
        ("startingOffset", "startingOffsets"),
        ("failOnDataLos", "failOnDataLoss"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("group.id", "kafka.group.id"),
        ("CHECKPOINTLOCATIONS", "checkpointLocation"),
        ("topics", "subscribe"),
        ("topic", "subscribe"),
    ],
)
def test_an_unknown_option_suggests_the_nearest(unknown: str, suggested: str) -> None:
    error = refusal(REQUIRED | {unknown: CANARY})
    assert error.condition.id == "GROUPKAFKA.OPTION_UNKNOWN"
    assert f"Did you mean '{suggested}'?" in str(error)
    assert CANARY not in str(error)
    assert "Did you mean" not in refused(zzz="1"), "far from all"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, ("options must be specified", "subscribe", "subscribepattern")),
        ({"subscribe": "t", "subscribePattern": "t.*"}, ("only one", "options can be specified")),
        ({"subscribe": "t", "assign": '{"a":[0]}'}, ("only one", "options can be specified")),
        ({"assign": ""}, ("no topicpartitions to assign",)),
        ({"subscribe": ""}, ("no topics to subscribe",)),
        ({"subscribePattern": ""}, ("pattern to subscribe is empty",)),
        (
            REQUIRED | {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
            ("higher than the maxoffsetspertrigger(15)",),
        ),
        ({"endingOffsets": "latest"}, ("ending offset not valid in streaming queries",)),
        (
            {"subscribe": "t", "endingOffsetsByTimestamp": '{"t":{"0":1000}}'},
            ("ending timestamp not valid in streaming queries",),
        ),
        *(
            ({"subscribe": "t", "kafka.bootstrap.servers": "b", f"kafka.{name}": "x"}, ("not supported",))
            for name in ("auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer")
        ),
    ],
)
def test_what_is_wrong_is_reported_in_the_words_of_sparks_own_source(
    raw: dict[str, str], words: tuple[str, ...]
) -> None:
    """As its tests look for them, and in its order: nothing is said of brokers or of the group first."""
    text = str(refusal(raw)).lower()
    assert [word for word in words if word not in text] == []


# --- bounds


@pytest.mark.parametrize(
    "value",
    [
        "b",
        "b:1",
        "b:65535, c ,",
        "10.0.0.1:9092,b-2.kafka_x.example:9092",
        "SASL_SSL://b:9093",
        "[::1]:9092",
        "[fe80::1%eth0]",
    ],
)
def test_brokers(value: str) -> None:
    """All that librdkafka takes, without white space."""
    options = parse_options({"kafka.bootstrap.servers": value, "kafka.group.id": "g", "subscribe": "t"})
    assert options.bootstrap_servers == value.replace(" ", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.bootstrap.servers", " "),
        ("kafka.bootstrap.servers", " , "),
        ("kafka.bootstrap.servers", "http://broker:9092"),
        ("kafka.bootstrap.servers", "broker:abc"),
        ("kafka.bootstrap.servers", "broker:0"),
        ("kafka.bootstrap.servers", "broker:65536"),
        ("kafka.bootstrap.servers", "broker:9092;other:9092"),
        ("kafka.bootstrap.servers", "broker 9092"),
        ("executor.kafka.bootstrap.servers", "broker:abc"),
        ("executor.kafka.bootstrap.servers", "http://broker:9092"),
        ("kafka.group.id", ""),
        ("subscribe", ""),
        ("subscribe", " , "),
        ("subscribe", "a b"),
        ("subscribe", "^a"),
        ("subscribe", "a" * 250),
        ("startingOffsets", "timestamp"),
        ("startingOffsets", '{"orders":{"0":-3}}'),
        ("maxTriggerDelay", "1 week"),
        ("assign", '{"orders":[0],"orders":[1]}'),
        ("assign", '{"orders":[-1]}'),
        ("assign", '{"orders":0}'),
        ("startingTimestamp", "-1"),
        ("startingTimestamp", "1.5"),
        ("startingTimestamp", str(INT64_MAX + 1)),
        ("startingOffsetsByTimestampStrategy", "earliest"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "1e3"),
        ("maxOffsetsPerTrigger", "1_000"),
        ("maxOffsetsPerTrigger", "\u0661"),
        ("maxOffsetsPerTrigger", str(INT64_MAX + 1)),
        ("maxOffsetsPerTrigger", "9" * 5000),
        ("minPartitions", "0"),
        ("minPartitions", str(2**31)),
        ("maxRecordsPerPartition", "0"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", "1"),
        ("checkpointLocation", " "),
        ("assignors", ""),
        ("assignors", "weighted,"),
        ("assignors", "weighted, weighted"),
        ("memberWeight", "0"),
        ("memberWeight", "1000001"),
        ("memberWeight", "1.5"),
        ("memberRedundancy", "0"),
        ("memberRedundancy", "1001"),
        ("drainTimeoutMs", "-1"),
        ("drainTimeoutMs", "300001"),
        ("onPartitionsLost", "ignore"),
        ("onConflict", "newest"),
        ("kafkaConsumer.pollTimeoutMs", "0"),
        ("kafkaConsumer.pollTimeoutMs", str(2**31)),
        ("kafka.session.timeout.ms", "0"),
        ("kafka.session.timeout.ms", "3600001"),
        ("kafka.session.timeout.ms", "6s"),
        ("kafka.heartbeat.interval.ms", "0"),
        ("kafka.heartbeat.interval.ms", "3600001"),
        ("kafka.heartbeat.interval.ms", "45000"),
        ("kafka.max.poll.interval.ms", "0"),
        ("kafka.max.poll.interval.ms", "86400001"),
        ("kafka.max.poll.interval.ms", "44999"),
        ("kafka.group.protocol", "eager"),
        ("kafka.isolation.level", "serializable"),
        ("kafka.partition.assignment.strategy", "sticky"),
        ("kafka.partition.assignment.strategy", ""),
        ("kafka.partition.assignment.strategy", "cooperative-sticky,range"),
    ],
)
def test_refused_value(name: str, value: str) -> None:
    error = refusal(REQUIRED | {name: value})
    assert error.condition.id == "GROUPKAFKA.OPTION_INVALID"
    assert f"'{name}' has the value '" in str(error)


# Java reads the sets of the last three otherwise than Python.
@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "*",
        "a{99999999999999999999}",
        "(" * 5000,
        " ",
        "[a-z&&[^b]]",
        "[[:alpha:]]",
        "[[a]b]",
        "[a[b]]",
        "x[^]a[b]",
    ],
)
def test_a_pattern_that_does_not_compile(pattern: str) -> None:
    assert refusal(UNSUBSCRIBED | {"subscribePattern": pattern}).condition.id == "GROUPKAFKA.OPTION_INVALID"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"subscribePattern": "a(b"},
            "expression. The value does not compile: missing ), unterminated subpattern at position 1.",
        ),
        (
            {"subscribePattern": "[a[b]]"},
            "expression. The value has a set inside a set, which means something else in Java.",
        ),
        ({"startingOffsets": '{"orders":{"0":1,"1":-3}}'}, ". The value has -3 for partition 1 of topic 'orders'."),
        ({"startingOffsets": '{"orders":{"0":1,"1":"2"}}'}, ". The value has \"2\" for partition 1 of topic 'orders'."),
        ({"startingOffsets": '{"orders":{"01":1}}'}, ". The value has \"01\" as a partition of topic 'orders'."),
        ({"startingOffsets": '{"orders":{"0":1},"bills":"newest"}'}, ". The value has \"newest\" for topic 'bills'."),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'},
            ". The value has -1 for partition 0 of topic 'orders'.",
        ),
    ],
)
def test_the_error_says_what_is_wrong_in_a_value(options: dict[str, str], reason: str) -> None:
    others = UNSUBSCRIBED if "subscribePattern" in options else REQUIRED
    assert reason in str(refusal(others | options))


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        (
            {"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "6000"},
            "below kafka.session.timeout.ms (6000)",
        ),
        ({"kafka.max.poll.interval.ms": "60000", "drainTimeoutMs": "60001"}, "0 to kafka.max.poll.interval.ms (60000)"),
        (
            {"kafka.session.timeout.ms": "60000", "kafka.max.poll.interval.ms": "59999"},
            "at least kafka.session.timeout.ms (60000)",
        ),
        ({"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "11"}, "1 to 10; it is higher"),
    ],
)
def test_the_bound_of_a_value_is_another_option(options: dict[str, str], allowed: str) -> None:
    """The last one of the options is refused."""
    *_, (name, value) = options.items()
    assert f"'{name}' has the value '{value}'. Allowed: {allowed}" in str(refusal(REQUIRED | options))


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_s"), [("200", 0.1), ("3000", 1.0), ("6000", 2.0), ("9000", 3.0), ("60000", 3.0)]
)
def test_a_short_session_brings_its_heartbeats(session_ms: str, heartbeat_s: float) -> None:
    options = parse(kafka__session__timeout__ms=session_ms)
    assert options.heartbeat_interval_s == heartbeat_s
    assert options.client_settings.get("heartbeat.interval.ms", "3000") == str(round(heartbeat_s * 1000))


@pytest.mark.parametrize(
    "pattern",
    [
        r"[a\[b]", "[]a]b[c]", r"\[[a]", "[^]]x[a]", r"[\]a][b]", "(?i)orders|refunds",
        # White space is a part of a pattern, as in Spark's own source.
        " orders", "orders ", "orders\\ ", "(?x) orders # all ",
    ],
)  # fmt: skip
def test_a_pattern_that_compiles(pattern: str) -> None:
    assert parse_options(UNSUBSCRIBED | {"subscribePattern": pattern}).subscription.pattern == pattern


# --- refusals


@pytest.mark.parametrize("name", sorted(REFUSED_CLIENT_SETTINGS))
def test_refused_client_setting(name: str) -> None:
    reason, replacement = REFUSED_CLIENT_SETTINGS[name]
    for key in (f"kafka.{name}", f"KAFKA.{name.upper()}"):
        error = refusal(REQUIRED | {key: "true"})
        assert error.condition.id == "GROUPKAFKA.OPTION_REFUSED"
        assert f"'kafka.{name}'" in str(error)
        assert reason in str(error)
        assert replacement in str(error)


# --- names of the Java client


@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
@pytest.mark.parametrize(
    ("name", "value", "own", "taken"),
    [
        ("fetch.max.wait.ms", " 500 ", "fetch.wait.max.ms", "500"),
        ("receive.buffer.bytes", "65536", "socket.receive.buffer.bytes", "65536"),
        ("receive.buffer.bytes", "-1", "socket.receive.buffer.bytes", "0"),
        ("send.buffer.bytes", "-1", "socket.send.buffer.bytes", "0"),
    ],
)
def test_a_setting_of_the_java_client_that_has_an_equal(
    prefix: str, name: str, value: str, own: str, taken: str
) -> None:
    settings = parse_options(REQUIRED | {prefix + name: value}).for_reading().client_settings
    assert settings[own] == taken
    assert name not in settings
    assert parse_options(REQUIRED | {prefix + name: value, prefix + own: taken}).for_reading().client_settings[own] == (
        taken
    )
    error = refusal(REQUIRED | {prefix + name: value, prefix + own: "7"})
    assert error.condition.id == "GROUPKAFKA.OPTION_CONFLICT"
    assert f"'{prefix}{name}' (value '{value.strip()}') and '{prefix}{own}' (value '7')" in str(error)
    error = refusal(REQUIRED | {prefix + name: "-2"})
    assert f"OPTION_INVALID] Option '{prefix}{name}' has the value '-2'. Allowed: an integer from" in str(error)


@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
@pytest.mark.parametrize(
    ("age_ms", "refresh_ms", "kept_ms"),
    [("0", 100, 15_000), ("1", 100, 15_000), ("7000", 7_000, 21_000), (str(INT64_MAX), 3_600_000, 10_800_000)],
)
def test_how_soon_what_is_new_is_noticed(prefix: str, age_ms: str, refresh_ms: int, kept_ms: int) -> None:
    """What the client knows of topics outlives its requests: one that is forgotten looks deleted to a member."""
    settings = parse_options(REQUIRED | {f"{prefix}metadata.max.age.ms": age_ms}).for_reading().client_settings
    assert settings["topic.metadata.refresh.interval.ms"] == str(refresh_ms)
    assert settings["metadata.max.age.ms"] == str(kept_ms)


def test_who_knows_both_settings_of_metadata_means_librdkafkas() -> None:
    both = {"kafka.metadata.max.age.ms": "1", "kafka.topic.metadata.refresh.interval.ms": "9000"}
    settings = parse_options(REQUIRED | both).client_settings
    assert (settings["metadata.max.age.ms"], settings["topic.metadata.refresh.interval.ms"]) == ("1", "9000")
    assert "'kafka.metadata.max.age.ms' has the value 'soon'" in refused(kafka__metadata__max__age__ms="soon")


@pytest.mark.parametrize("name", ["request.timeout.ms", "default.api.timeout.ms"])
def test_what_bounds_the_java_clients_requests_is_ignored(name: str, caplog: pytest.LogCaptureFixture) -> None:
    for prefix in ("kafka.", "executor.kafka."):
        assert name not in parse_options(REQUIRED | {prefix + name: "3000"}).for_reading().client_settings
        assert f"{prefix}{name}=3000 is ignored: kafka.socket.timeout.ms limits the duration of requests" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        ({"kafka.ssl.ca.location": "/ca.pem"}, "security.protocol=plaintext: kafka.ssl.ca.location"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/ca.pem"}, None),
        ({"kafka.security.protocol": "SSL", "kafka.sasl.username": "u"}, "security.protocol=SSL: kafka.sasl.username"),
        ({"kafka.security.protocol": "sasl_ssl", "kafka.sasl.username": "u", "kafka.ssl.ca.location": "/ca.pem"}, None),
        (
            {"kafka.security.protocol": "ssl", "executor.kafka.security.protocol": "sasl_plaintext",
             "executor.kafka.ssl.ca.location": "/ca.pem"},
            "security.protocol=sasl_plaintext: executor.kafka.ssl.ca.location",
        ),
        ({"executor.kafka.security.protocol": "ssl", "kafka.ssl.ca.location": "/ca.pem"}, None),
    ],
)  # fmt: skip
def test_a_login_or_tls_that_is_not_used(
    given: dict[str, str], unused: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    options = parse_options(REQUIRED | given)
    warn_of_unused(options.client_settings, options.executor_settings)
    assert [record.getMessage() for record in caplog.records] == ([f"no effect with {unused}"] if unused else [])


@pytest.mark.parametrize(("value", "taken"), [("0", "1000000"), ("999999", "1000000"), ("1000001", "1000001")])
def test_the_least_answer_of_the_client(value: str, taken: str, caplog: pytest.LogCaptureFixture) -> None:
    assert parse(kafka__fetch__max__bytes=value).client_settings["fetch.max.bytes"] == taken
    assert (f"kafka.fetch.max.bytes={value} is raised to 1000000" in caplog.text) == (value != taken)
    least = parse(kafka__fetch__max__bytes="5000", kafka__message__max__bytes="5000").client_settings
    assert least["fetch.max.bytes"] == "5000"


@pytest.mark.parametrize(
    "name", ["test.mock.num.brokers", "error_cb", "oauth_cb", "logger", "on_commit", "opaque", "default.topic.config"]
)
def test_settings_that_are_no_text_or_replace_the_cluster(name: str) -> None:
    assert refusal(REQUIRED | {f"kafka.{name}": "1"}).condition.id == "GROUPKAFKA.OPTION_REFUSED"


# --- secrets

SENSITIVE = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "ssl.key.pem",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.client.credentials.client.secret",
)


@pytest.mark.parametrize("name", SENSITIVE)
def test_secret_names(name: str) -> None:
    assert is_sensitive(name)
    assert shown_value(name, CANARY) == MASK
    for public in ("sasl.username", "sasl.mechanism", "ssl.ca.location", "bootstrap.servers"):
        assert shown_value(public, "x") == "x"


@pytest.mark.parametrize("name", ["ssl.truststore.password", "sasl.jaas.config"])
def test_a_refused_secret_is_masked(name: str) -> None:
    error = refusal(REQUIRED | {f"kafka.{name}": CANARY})
    assert MASK in str(error)
    assert CANARY not in str(error) + repr(error) + repr(error.parameters)


def test_the_reader_travels_with_its_options() -> None:
    source = GroupKafkaDataSource(REQUIRED)
    reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
    assert repr(reader) == "GroupKafkaStreamReader(group='shop', session=None)"


def test_an_error_travels_between_processes() -> None:
    error = refusal(REQUIRED | {"minPartitions": "0"})
    again: Any = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.condition) == (OptionError, str(error), error.condition)


# --- the table


def test_every_option_is_documented_once() -> None:
    names = [spec.name.lower() for spec in OPTIONS]
    assert len(set(names)) == len(names)
    for spec in OPTIONS:
        assert spec.allowed, spec.name
        assert spec.doc.endswith("."), spec.name


def test_every_default_is_a_value_that_its_own_option_takes() -> None:
    for spec in OPTIONS:
        if spec.default is not None:
            written = spec.shown_default or getattr(spec.default, "value", spec.default)
            assert spec.parse(str(written)) == spec.default


@pytest.mark.parametrize("name", ["kafka.group.id", "Kafka.Group.Id", "kafka.group.instance.id"])
@pytest.mark.parametrize("value", [" shop", "shop ", "shop\t", "shop\n", "\u00a0shop", "sh\0op", " ", ""])
def test_a_name_that_the_client_would_change_is_refused(name: str, value: str) -> None:
    """librdkafka removes white space at the beginning, and what follows a zero byte: another group has that name."""
    raw = REQUIRED | {"kafka.group.instance.id": "a"}
    text = str(refusal({key: given for key, given in raw.items() if key != name.lower()} | {name: value}))
    assert f"'{name.lower()}' has the value '{value}'. Allowed: a" in text


def test_white_space_inside_of_a_name_is_a_part_of_it() -> None:
    options = parse(kafka__group__id="the shop", kafka__group__instance__id="a\tb")
    assert (options.group_id, options.instance_id) == ("the shop", "a\tb")


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("value", ["group: other", "group:other ", "group:other\n"])
def test_another_groups_name_is_kept_or_refused(name: str, value: str) -> None:
    error = refusal(REQUIRED | {name: value})
    assert error.condition.id == "GROUPKAFKA.OPTION_INVALID"
    assert f"'{name}' has the value '{value}'" in str(error)
