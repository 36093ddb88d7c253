"""The keeper of tokens: when it calls its provider, what clients get, and errors; and the clouds' providers offline."""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from spark_groupsource import redaction
from spark_groupsource.client import token_providers, tokens
from spark_groupsource.client.token_providers import Token, Unusable, callback_of, token_of
from spark_groupsource.client.tokens import (
    SETTING,
    TokenKeeper,
    keeper_of,
    new_admin,
    new_consumer,
    provider_trouble,
)
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.options.token_login import TokenLogin
from spark_groupsource.redaction import MASK, masked, masked_foreign

CANARY = "canary-91c4"
LOGIN = TokenLogin("tokenProvider", "my.logins:token", "my.logins:token")
SETTINGS: dict[str, Any] = {
    "bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
    "log_level": 0,
}  # fmt: skip


class Provider:
    """Return tokens of `life_s`, one after the other, or fail."""

    def __init__(self, life_s: float = 100.0) -> None:
        self.life_s = life_s
        self.calls = 0
        self.error: BaseException | None = None
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self, config: str | None) -> tuple[str, float]:
        self.calls += 1
        self.hold.wait()
        if self.error is not None:
            raise self.error
        return f"{CANARY}-{self.calls}-of-{config}", time.time() + self.life_s


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.hold.set()
    made.error = None


def keeper(provider: Callable[[Any], Any], side: str = "the driver") -> TokenKeeper:
    return TokenKeeper(LOGIN, "config", side, lambda: provider)


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# --- the keeper


def test_a_refused_login_names_its_own_provider_only(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another query of the process has a provider that fails."""
    monkeypatch.setattr(tokens, "_keepers", {})
    monkeypatch.setattr(tokens, "_FIRST_S", 0.2)
    monkeypatch.setattr(tokens, "callback_of", lambda login, extensions: provider)
    provider.error = OSError("no route")
    with pytest.raises(GroupKafkaError, match="no route"):
        keeper_of(LOGIN, None, None, "the driver").current()
    other = dataclasses.replace(LOGIN, value="other.logins:token", provider="other.logins:token")
    assert [provider_trouble(login) for login in (other, None)] == ["", ""]
    assert "no route" in provider_trouble(LOGIN)


def test_one_call_serves_all_clients(provider: Provider) -> None:
    kept = keeper(provider)
    assert {kept.current().value for _ in range(10)} == {f"{CANARY}-1-of-config"}
    assert provider.calls == 1


def test_a_token_is_replaced_before_it_expires(provider: Provider) -> None:
    provider.life_s = 0.5
    kept = keeper(provider)
    clients = [new_consumer(SETTINGS | {"group.id": "g", SETTING: kept}), new_admin(SETTINGS | {SETTING: kept})]
    seen = set()
    wait_for(lambda: seen.add(kept.latest().value) or len(seen) >= 4)
    assert kept.current()
    clients[0].close()


def test_a_failing_provider_keeps_its_last_token(provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    """And recovers, which is logged; one line per kind of failure."""
    provider.life_s = 1.0
    kept = keeper(provider)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    with caplog.at_level("INFO", "spark_groupsource"):
        provider.error = OSError("no connection")
        wait_for(lambda: "the token provider fails" in caplog.text)
        assert kept.latest().value
        wait_for(kept.trouble)
        assert kept.trouble() == (
            "the token provider my.logins:token of option 'tokenProvider' (value 'my.logins:token') fails:"
            " OSError: no connection"
        )
        wait_for(lambda: provider.calls >= 3)
        provider.error = None
        wait_for(lambda: "works again" in caplog.text)
    assert kept.trouble() == ""
    assert caplog.text.count("the token provider fails") == 1
    assert CANARY not in caplog.text
    consumer.close()


def test_an_expired_token_is_waited_for(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client of a running query waits as long as it would for rejected credentials."""
    provider.life_s = 0.2
    kept = keeper(provider)
    assert kept.current()
    provider.error = OSError("no connection")
    time.sleep(0.3)
    threading.Timer(0.5, lambda: setattr(provider, "error", None)).start()
    assert kept.current().value.startswith(CANARY)
    monkeypatch.setattr(tokens, "_EXPIRED_S", 0.5)
    provider.error = OSError("no connection")
    time.sleep(0.3)
    with pytest.raises(GroupKafkaError, match=r"TOKEN_PROVIDER_FAILED.*OSError: no connection"):
        kept.current()


def test_refused_logins_may_pass_while_a_token_is_late(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the token has been expired for too long, or clients have had time to connect with the next one."""
    monkeypatch.setattr(tokens, "_RECONNECT_S", 60.0)
    provider.life_s = 0.5
    kept = keeper(provider)
    assert not kept.recovers()
    assert kept.current()
    assert not kept.recovers()
    provider.error = OSError("no connection")
    wait_for(kept.recovers)
    monkeypatch.setattr(tokens, "_EXPIRED_S", 0.0)
    assert not kept.recovers()
    monkeypatch.setattr(tokens, "_EXPIRED_S", 60.0)
    provider.life_s, provider.error = 200.0, None
    assert kept.current()
    assert kept.recovers()
    monkeypatch.setattr(tokens, "_RECONNECT_S", 0.1)
    wait_for(lambda: not kept.recovers())


@pytest.mark.parametrize("side", ["the driver", "an executor"])
def test_a_first_failure_is_repeated_and_reported(
    side: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "_FIRST_S" if side == "the driver" else "_FIRST_EXECUTOR_S"
    monkeypatch.setattr(tokens, limit, 60.0)
    provider.error = PermissionError(f"denied: client_secret={CANARY}, token={CANARY}")

    def repeated(config: str | None) -> tuple[str, float]:
        if provider.calls:
            monkeypatch.setattr(tokens, limit, 0.0)
        return provider(config)

    with pytest.raises(GroupKafkaError) as raised:
        keeper(repeated, side).current()
    assert provider.calls >= 2
    text = str(raised.value)
    for part in ("TOKEN_PROVIDER_FAILED", "'tokenProvider'", "my.logins:token", "PermissionError: denied", side):
        assert part in text
    assert CANARY not in text


class Mute(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


def test_an_error_without_a_text_is_reported(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_FIRST_S", 0.2)
    provider.error = Mute()
    with pytest.raises(GroupKafkaError, match=r"TOKEN_PROVIDER_FAILED.*: Mute"):
        keeper(provider).current()


def test_a_provider_that_hangs_is_reported(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_FIRST_HANGS_S", 1.0)
    provider.hold.clear()
    with pytest.raises(GroupKafkaError, match=r"it has not returned for [1-9]\d* s"):
        keeper(provider).current()


def test_a_provider_that_cannot_be_imported_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_FIRST_S", 60.0)
    monkeypatch.setattr(tokens, "_FIRST_HANGS_S", 60.0)
    login = TokenLogin("tokenProvider", "no.such:thing", "no.such:thing")
    kept = TokenKeeper(login, None, "the driver", lambda: callback_of(login))
    started = time.monotonic()
    with pytest.raises(GroupKafkaError, match=r"TOKEN_PROVIDER_UNUSABLE.*ModuleNotFoundError.*all executors"):
        kept.current()
    assert time.monotonic() - started < tokens._FIRST_S, "it was waited for"


def test_the_thread_ends_when_nobody_needs_tokens(provider: Provider) -> None:
    provider.life_s = 0.2
    kept = keeper(provider)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    wait_for(lambda: provider.calls >= 3)
    consumer.close()
    thread = kept._thread
    wait_for(lambda: kept._thread is None)
    assert thread is not None
    wait_for(lambda: not thread.is_alive())
    calls = provider.calls
    assert kept.current().value
    assert provider.calls > calls


def test_expired_tokens_are_not_remembered_for_ever(provider: Provider) -> None:
    provider.life_s = 0.2
    kept = keeper(provider)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    wait_for(lambda: provider.calls >= 8)
    latest = kept.latest().value
    assert masked(f"it is {latest}") == f"it is {MASK}"
    assert len([known for known in redaction._known if known.startswith(CANARY)]) <= 8
    consumer.close()


def test_a_token_that_is_issued_again_and_again_stays_masked() -> None:
    calls: list[object] = []

    def provider(config: object) -> tuple[str, float]:
        calls.append(config)
        return f"{CANARY}-same", time.time() + 0.2

    kept = keeper(provider)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    wait_for(lambda: len(calls) >= 8)
    assert masked(f"it is {kept.latest().value}") == f"it is {MASK}"
    consumer.close()


# --- clients of confluent-kafka


@pytest.mark.parametrize("make", [lambda s: new_consumer(s | {"group.id": "g"}), new_admin])
def test_the_token_is_set_right_after_construction(make: Callable[[dict[str, Any]], Any], provider: Provider) -> None:
    """Not by a callback, whose first call takes a second. The field that holds the client's handle is checked."""
    kept = keeper(provider)
    kept.current()
    times_s = []
    for _ in range(3):  # the machine may stand still in one of them
        started = time.monotonic()
        client = make(SETTINGS | {SETTING: kept})
        times_s.append(time.monotonic() - started)
        assert tokens._handle_of(client)
        assert isinstance(client, (Consumer, AdminClient))
    assert min(times_s) < 1.0


def test_a_closed_client_gets_no_token(provider: Provider) -> None:
    kept = keeper(provider)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    admin = new_admin(SETTINGS | {SETTING: kept})
    assert len(kept._clients) == 2
    consumer.close()
    other = new_admin(SETTINGS | {SETTING: kept})
    assert set(kept._clients) == {id(admin), id(other)}
    admin.__exit__(None, None, None)
    assert list(kept._clients) == [id(other)]
    del other
    kept._is_needed()
    assert not kept._clients


def test_a_client_that_gets_no_token_is_not_kept(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is destroyed, and the next token would be set on it."""
    kept = keeper(provider)

    def refuse(handle: int, token: Token) -> None:
        raise OSError("no library")

    monkeypatch.setattr(tokens, "_set_token", refuse)
    with pytest.raises(OSError, match="no library"):
        kept.add_handle(1)
    assert not kept._handles


def test_without_a_known_handle_the_client_calls_for_tokens(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slower, but right."""
    monkeypatch.setattr(tokens, "_handle_of", lambda _: None)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: keeper(provider)})
    assert type(consumer) is Consumer
    assert provider.calls == 1
    consumer.close()


def test_a_client_without_a_provider_is_a_plain_one() -> None:
    assert type(new_consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})) is Consumer


def test_extensions_and_principal_reach_the_client(provider: Provider) -> None:
    answer = ("a-token", time.time() + 100, "me", {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})
    kept = keeper(lambda _: answer)
    consumer = new_consumer(SETTINGS | {"group.id": "g", SETTING: kept})
    assert kept(None) == answer
    consumer.close()


# --- what a provider returns


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "it returned None"),
        (CANARY, "it returned str"),
        ((CANARY,), "it returned tuple"),
        ((b"canary-91c4", 2e9), "its token is bytes"),
        (("", 2e9), "its token is an empty text"),
        ((CANARY, "2e9"), "its expiry is str"),
        ((CANARY, 1795616396653), "milliseconds"),
        ((CANARY, 1.0), "expired"),
        ((CANARY, float("nan")), "its expiry is nan"),
        ((f"{CANARY}\udc91", 2e9), "are no text that UTF-8 can encode"),
        ((CANARY, 2e9, "me\udc91"), "are no text that UTF-8 can encode"),
        ((CANARY, 2e9, "me", {"a": "\udc91"}), "are no text that UTF-8 can encode"),
        ((CANARY, 2e9, 5), "principal"),
        ((CANARY, 2e9, "me", ["a"]), "extensions"),
        ((CANARY, 2e9, "me", {"a": 1}), "extensions"),
    ],
)
def test_a_wrong_answer_is_described_without_it(answer: object, reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason) as raised:
        token_of(answer, 1.9e9)
    assert CANARY not in str(raised.value)


def test_a_token_is_not_in_its_repr() -> None:
    assert CANARY not in repr(Token(CANARY, 2e9))


@pytest.mark.parametrize(
    "text",
    [
        f'{{"client_secret": "{CANARY}"}}', f"https://me:{CANARY}@idp/token", f"POST /t?client_assertion={CANARY}&x=1",
        f"Authorization: Bearer {CANARY}", f"X-Amz-Signature={CANARY}", f"X-Amz-Security-Token={CANARY}&b=2",
        f"password = '{CANARY}'", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJjYW5hcnktOTFjNCJ9.canary-91c4",
    ],
)  # fmt: skip
def test_a_foreign_text_is_masked(text: str) -> None:
    assert CANARY not in masked_foreign(text)
    assert MASK in masked_foreign(text)


@pytest.mark.parametrize("text", ["HTTP Error 503: Service Unavailable", "host idp.example.org: Name not known"])
def test_an_ordinary_text_is_not(text: str) -> None:
    assert masked_foreign(text) == text


# --- MSK: the library itself, with fixed credentials; no broker checks the token here


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-session-token")


def msk(region: str, **arguments: str) -> TokenLogin:
    return TokenLogin("kafka.sasl.mechanism", "AWS_MSK_IAM", "msk", region, tuple(sorted(arguments.items())))


def test_a_token_for_msk_is_a_presigned_url(credentials: None) -> None:
    """Of the action, the region and the identity, valid for 15 minutes; without the secret key."""
    now_s = time.time()
    token = token_of(callback_of(msk("eu-west-3"))(None), now_s)
    url = urllib.parse.urlparse(base64.urlsafe_b64decode(token.value + "==").decode())
    query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
    assert (url.scheme, url.netloc) == ("https", "kafka.eu-west-3.amazonaws.com")
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Credential"].startswith("AKIAEXAMPLE/")
    assert query["X-Amz-Credential"].endswith("/eu-west-3/kafka-cluster/aws4_request")
    assert query["X-Amz-Security-Token"] == "a-session-token"
    assert query["X-Amz-Expires"] == "900"
    assert CANARY not in url.query
    assert 890 < token.expires_s - now_s < 910


def test_msk_without_credentials_has_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(LookupError, match="no AWS credentials"):
        callback_of(msk("eu-west-3"))(None)


def test_the_arguments_for_msk_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def record(name: str) -> Callable[..., tuple[str, int]]:
        def run(*args: Any, **more: Any) -> tuple[str, int]:
            called.append((name, args, more))
            return "t", 2_000_000_000_000

        return run

    names = ("generate_auth_token_from_role_arn", "generate_auth_token_from_profile")
    signer = SimpleNamespace(**{name: record(name) for name in names})
    monkeypatch.setattr(token_providers, "_extra", lambda *_: signer)
    assert callback_of(msk("r", awsRoleArn="arn", awsRoleSessionName="s"))(None) == ("t", 2e9)
    callback_of(msk("r", awsProfileName="p"))(None)
    assert called == [(names[0], ("r", "arn"), {"sts_session_name": "s"}), (names[1], ("r", "p"), {})]


# --- GCP: the form of the token; no broker checks it here


def test_a_token_for_gcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The access token is the third part of what looks like a JWT."""
    import google.auth

    expiry = datetime.utcfromtimestamp(int(time.time())) + timedelta(hours=1)
    mine = SimpleNamespace(
        refresh=lambda _: None, token="ya29.access", expiry=expiry, service_account_email="me@x.iam.gserviceaccount.com"
    )
    monkeypatch.setattr(google.auth, "default", lambda scopes: (mine, "project"))
    monkeypatch.delenv("GOOGLE_MANAGED_KAFKA_AUTH_PRINCIPAL", raising=False)
    token = token_of(callback_of(TokenLogin("tokenProvider", "gcp", "gcp"))(None), time.time())
    head, claims, access = (base64.urlsafe_b64decode(part + "==") for part in token.value.split("."))
    assert json.loads(head) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    assert json.loads(claims)["sub"] == "me@x.iam.gserviceaccount.com"
    assert access == b"ya29.access"
    assert 3590 < token.expires_s - time.time() < 3610


# --- extras


@pytest.mark.parametrize(("provider", "module", "extra"), [
    ("msk", "aws_msk_iam_sasl_signer", "'.[msk]'"), ("gcp", "google.auth", "'.[gcp]'"),
])  # fmt: skip
def test_without_its_extra_a_provider_names_it(
    provider: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    login = TokenLogin("tokenProvider", provider, provider, "us-east-1")
    with pytest.raises(Unusable) as raised:
        callback_of(login)
    assert extra in raised.value.remedy
    with pytest.raises(GroupKafkaError) as error:
        TokenKeeper(login, None, "the driver", lambda: callback_of(login)).current()
    assert str(error.value).count(extra) == 1


@pytest.mark.parametrize(("name", "reason", "remedy"), [
    ("no_such_module:token", "No module named 'no_such_module'", "install no_such_module on the driver"),
    ("groupkafka_test_exits:token", "SystemExit: 3", "install groupkafka_test_exits on the driver"),
    ("json:no_such_function", "no attribute 'no_such_function'", "name a function of json"),
    ("json:__name__", "no function but str", "name a function of json"),
])  # fmt: skip
def test_the_remedy_for_a_function_fits_what_is_missing(
    name: str, reason: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groupkafka_test_exits.py").write_text("import sys; sys.exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Unusable, match=reason) as raised:
        callback_of(TokenLogin("tokenProvider", name, name))
    assert remedy in raised.value.remedy


def test_no_extra_is_imported_when_it_is_not_used() -> None:
    """Not by any client's module, and not by options that name other logins."""
    code = """
import sys
import spark_groupsource.spark.source, spark_groupsource.spark.assembly, spark_groupsource.executor.clients.choose
import spark_groupsource.membership.backends.librdkafka, spark_groupsource.cli.main
from spark_groupsource.client.settings import base_settings
from spark_groupsource.options.parse import parse_options
base_settings(parse_options({"subscribe": "t", "kafka.group.id": "g", "kafka.bootstrap.servers": "b:1"}), "member")
print([name for name in ("boto3", "botocore", "google.auth", "aws_msk_iam_sasl_signer", "requests", "kafka")
       if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- a token that is refused


def test_a_refused_token_is_replaced_at_once(provider: Provider) -> None:
    mine = keeper(provider)
    first = mine.current()
    second = mine.renewed(first)
    assert (first.value[-11:], second.value[-11:]) == ("1-of-config", "2-of-config")
    assert mine.current() is second
    assert mine.renewed(first) is second, "another client has had it renewed"
    assert provider.calls == 2


def test_a_refused_token_stays_if_there_is_no_other(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = keeper(provider)
    first = mine.current()
    provider.error = OSError("down")
    assert mine.renewed(first) is first
    assert provider.calls == 2
    monkeypatch.setattr(tokens, "_FIRST_HANGS_S", 0.2)
    provider.hold.clear()
    assert mine.renewed(first) is first
