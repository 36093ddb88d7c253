"""Which token provider the options name, what they may not be combined with, and what the driver must permit."""

from __future__ import annotations

import pickle

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.executor.pool import pool_key
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import EVERYTHING, Permissions, permissions_of

MSK = "b-1.shop.ab12cd.c2.kafka.us-east-1.amazonaws.com:9098,b-2.shop.ab12cd.c2.kafka.us-east-1.amazonaws.com:9098"
SERVERLESS = "boot-ab12.c1.kafka-serverless.eu-west-3.amazonaws.com:9098"
CHINA = "b-1.shop.ab12cd.c2.kafka.cn-north-1.amazonaws.com.cn:9098"
GCP = "bootstrap.shop.europe-west1.managedkafka.my-project.cloud.goog:9092"
JAAS = "software.amazon.msk.auth.iam.IAMLoginModule required"
# What the documentation of MSK has for the Java client, and so Spark's users.
AS_SPARK_USERS_WRITE_IT = {
    "kafka.bootstrap.servers": MSK,
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": f"{JAAS};",
    "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
OWN = {
    "kafka.bootstrap.servers": "broker:9092",
    "kafka.security.protocol": "SASL_SSL",
    "tokenProvider": "my.logins:token",
}
NOTHING = permissions_of({})


def parse(options: dict[str, str], permissions: Permissions = NOTHING) -> SourceOptions:
    return parse_options({"subscribe": "orders", "kafka.group.id": "shop"} | options, permissions=permissions)


def refused(options: dict[str, str], permissions: Permissions = NOTHING) -> str:
    with pytest.raises(OptionError) as raised:
        parse(options, permissions)
    return str(raised.value)


@pytest.mark.parametrize(("servers", "region"), [(MSK, "us-east-1"), (SERVERLESS, "eu-west-3"), (CHINA, "cn-north-1")])
def test_msk_as_spark_users_write_it(servers: str, region: str) -> None:
    """The region is in the brokers' names, and the token can only reach them: nothing else is needed."""
    options = parse(AS_SPARK_USERS_WRITE_IT | {"kafka.bootstrap.servers": servers})
    assert options.token_login is not None
    assert (options.token_login.provider, options.token_login.region) == ("msk", region)
    assert options.client_settings["sasl.mechanism"] == "OAUTHBEARER"
    assert not [name for name in options.client_settings if "jaas" in name or "handler" in name]
    assert options.for_reading().token_login == options.token_login
    assert pickle.loads(pickle.dumps(options)).token_login == options.token_login


def test_msk_as_users_of_databricks_write_it() -> None:
    """Their platform has the Java classes under names of its own."""
    classes = {"kafka.sasl.jaas.config", "kafka.sasl.client.callback.handler.class"}
    renamed = {name: f"shadedmskiam.{AS_SPARK_USERS_WRITE_IT[name]}" for name in classes}
    options = parse(AS_SPARK_USERS_WRITE_IT | renamed)
    assert options.token_login == parse(AS_SPARK_USERS_WRITE_IT).token_login
    assert not [name for name in options.client_settings if "jaas" in name or "handler" in name]


def test_the_two_ways_to_name_msk_are_one() -> None:
    given = {name: AS_SPARK_USERS_WRITE_IT[name] for name in ("kafka.bootstrap.servers", "kafka.security.protocol")}
    by_option, by_mechanism = parse(given | {"tokenProvider": "MSK"}), parse(AS_SPARK_USERS_WRITE_IT)
    assert by_option.client_settings == by_mechanism.client_settings
    assert by_option.token_login is not None
    assert by_option.token_login.region == "us-east-1"


def test_gcp() -> None:
    options = parse(OWN | {"kafka.bootstrap.servers": GCP, "tokenProvider": "gcp"})
    assert options.token_login is not None
    assert options.token_login.provider == "gcp"


@pytest.mark.parametrize(
    "more",
    [
        {"kafka.bootstrap.servers": "broker:9098", "awsRegion": "us-east-1"},
        {"kafka.bootstrap.servers": f"{MSK},broker:9098"},
        {"kafka.bootstrap.servers": "b-1.kafka.us-east-1.amazonaws.com.evil.org:9098", "awsRegion": "us-east-1"},
        {"executor.kafka.bootstrap.servers": "broker:9098"},
        {"kafka.enable.ssl.certificate.verification": "false"},
        {"executor.kafka.enable.ssl.certificate.verification": "false"},
        {"kafka.ssl.endpoint.identification.algorithm": "none"},
        {"kafka.ssl.ca.location": "/tmp/ca.pem"},
        {"kafka.ssl.ca.pem.env": "KAFKA_CA"},
        {"kafka.sasl.jaas.config": f'{JAAS} awsProfileName="admin";'},
        {"kafka.sasl.jaas.config": f"{JAAS} awsRoleArn='arn:aws:iam::1:role/admin' awsRoleSessionName=mine;"},
    ],
)
def test_the_machines_identity_goes_to_nobody_else(more: dict[str, str]) -> None:
    """Whoever sets options could name a listener of their own, or another identity."""
    options = AS_SPARK_USERS_WRITE_IT | more
    text = refused(options)
    assert "NOT_PERMITTED" in text
    assert "GROUPKAFKA_ALLOW_TOKEN_PROVIDERS" in text
    permitted = parse(options | {"awsRegion": "us-east-1"}, permissions_of({"GROUPKAFKA_ALLOW_TOKEN_PROVIDERS": "msk"}))
    assert permitted.token_login is not None


def test_gcp_goes_to_nobody_else() -> None:
    assert "NOT_PERMITTED" in refused(OWN | {"tokenProvider": "gcp"})


@pytest.mark.parametrize("listed", ["my.logins:token", "my.logins:*", "*"])
def test_a_function_must_be_allowed_by_name(listed: str) -> None:
    text = refused(OWN, permissions_of({"GROUPKAFKA_ALLOW_TOKEN_PROVIDERS": "other:token,msk"}))
    assert "NOT_PERMITTED" in text
    assert "'my.logins:token'" in text
    options = parse(OWN, permissions_of({"GROUPKAFKA_ALLOW_TOKEN_PROVIDERS": listed}))
    assert options.token_login is not None
    assert options.token_login.provider == "my.logins:token"


def test_no_option_allows_a_function() -> None:
    assert "NOT_PERMITTED" in refused(OWN | {"allowedUnsafeSettings": "ssl.key.pem"})


def test_the_arguments_of_the_login_module() -> None:
    line = f'{JAAS} awsRoleArn="arn:aws:iam::1:role/a" awsRoleSessionName="s";'
    login = parse(AS_SPARK_USERS_WRITE_IT | {"kafka.sasl.jaas.config": line}, EVERYTHING).token_login
    assert login is not None
    assert dict(login.arguments) == {"awsRoleArn": "arn:aws:iam::1:role/a", "awsRoleSessionName": "s"}


@pytest.mark.parametrize(
    ("more", "condition", "named"),
    [
        ({"kafka.security.protocol": "SSL"}, "OPTION_INVALID", "kafka.security.protocol"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT"}, "OPTION_INVALID", "SASL_SSL"),
        ({"tokenProvider": "gcp"}, "OPTION_CONFLICT", "tokenProvider"),
        ({"kafka.sasl.oauthbearer.method": "oidc"}, "OPTION_CONFLICT", "kafka.sasl.oauthbearer.method"),
        ({"kafka.sasl.jaas.config": f"{JAAS} awsDebugCreds=true;"}, "OPTION_INVALID", "awsProfileName"),
        ({"kafka.sasl.jaas.config": f"{JAAS} ; other"}, "OPTION_INVALID", "kafka.sasl.jaas.config"),
        ({"kafka.sasl.client.callback.handler.class": "my.Handler"}, "OPTION_REFUSED", "callback.handler"),
        ({"awsRegion": "Ohio"}, "OPTION_INVALID", "awsRegion"),
        ({"tokenProvider": "a function"}, "OPTION_INVALID", "'a function'"),
        ({"kafka.bootstrap.servers": "broker:9098"}, "OPTION_MISSING", "awsRegion"),
    ],
)
def test_what_does_not_fit(more: dict[str, str], condition: str, named: str) -> None:
    text = refused(AS_SPARK_USERS_WRITE_IT | more, EVERYTHING)
    assert condition in text
    assert named in text


def test_other_ways_to_log_in_do_not_fit_a_provider() -> None:
    assert "OPTION_CONFLICT" in refused(OWN | {"kafka.sasl.mechanism": "PLAIN"}, EVERYTHING)
    assert "OPTION_CONFLICT" in refused(OWN | {"kafka.enable.sasl.oauthbearer.unsecure.jwt": "true"}, EVERYTHING)
    assert "OPTION_REFUSED" in refused(OWN | {"awsRegion": "us-east-1"}, EVERYTHING)


# --- executors


def test_executors_with_a_password_of_their_own_have_no_provider() -> None:
    own = {"executor.kafka.sasl.mechanism": "PLAIN", "executor.kafka.sasl.username": "u"}
    options = parse(AS_SPARK_USERS_WRITE_IT | own | {"executor.kafka.sasl.password": "p"})
    assert options.for_reading().token_login is None
    assert options.for_reading().client_settings["sasl.mechanism"] == "PLAIN"


def test_executors_with_a_provider_of_their_own() -> None:
    scram = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u", "kafka.sasl.password": "p"}
    given = OWN | scram | {"executor.tokenProvider": "my.logins:reader"}
    del given["tokenProvider"]
    options = parse(given, EVERYTHING)
    assert options.token_login is None
    reading = options.for_reading()
    assert reading.token_login is not None
    assert (reading.token_login.option, reading.token_login.provider) == ("executor.tokenProvider", "my.logins:reader")
    assert reading.client_settings["sasl.mechanism"] == "OAUTHBEARER"
    assert "sasl.password" not in reading.client_settings


def test_executors_settings_that_are_no_identity_change_nothing() -> None:
    options = parse(AS_SPARK_USERS_WRITE_IT | {"executor.kafka.fetch.min.bytes": "5"})
    assert options.for_reading().token_login == options.token_login
    assert options.for_reading().client_settings["sasl.mechanism"] == "OAUTHBEARER"
    assert options.executor_settings == {"fetch.min.bytes": "5"}


def test_readers_with_different_providers_share_no_client() -> None:
    one, other = (parse(OWN | {"tokenProvider": f"my.logins:{name}"}, EVERYTHING) for name in ("one", "other"))
    assert pool_key(one) != pool_key(other)
