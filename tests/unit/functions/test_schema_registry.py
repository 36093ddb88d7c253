"""The client of schema registries: which one of a list answers, logins, TLS, and errors."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spark_groupsource.client import tokens
from spark_groupsource.errors import AccessError, KafkaUnavailableError, OptionError
from spark_groupsource.functions import from_confluent_avro, schema_registry
from spark_groupsource.functions.registry_options import registry_settings
from spark_groupsource.functions.schema_registry import Registry, SchemaNotFound
from spark_groupsource.options.permissions import EVERYTHING
from tests.realkafka.oidc import CLIENT_ID, TokenServer
from tests.realkafka.security import Authority
from tests.spark.registry import USER_INFO, SchemaRegistry
from tests.spark.registry import schema_registry as serving

DEAD = "http://127.0.0.1:1"
LOGIN = {"basic.auth.user.info": USER_INFO}
PASSWORD = USER_INFO.partition(":")[2]


class Time:
    """The clock of the client: pauses are written down only, and `past_s` can be added."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []
        self.past_s = 0.0

    def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)

    def monotonic(self) -> float:
        return time.monotonic() + self.past_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Return the clock of a process that knows nothing."""
    monkeypatch.setattr(schema_registry, "_answered_last", {})
    monkeypatch.setattr(tokens, "_keepers", {})
    found = Time()
    monkeypatch.setattr(schema_registry, "time", found)
    return found


@pytest.fixture
def one() -> Iterator[SchemaRegistry]:
    """Return a registry with one schema."""
    with serving() as found:
        found.register("s", "first")
        yield found


@pytest.fixture
def two(one: SchemaRegistry) -> Iterator[SchemaRegistry]:
    """Return a second registry with the same schemas."""
    with serving(one) as found:
        yield found


def client(urls: str, options: dict[str, str] | None = None) -> Registry:
    return Registry(registry_settings(urls, LOGIN if options is None else options, EVERYTHING))


def read(client: Registry) -> float:
    """Read the schema; return the seconds that this took."""
    started_s = time.monotonic()
    assert client.by_id(1) == {"schema": "first"}
    return time.monotonic() - started_s


# --- a list


def test_the_next_one_is_asked_at_once(one: SchemaRegistry, clock: Time) -> None:
    for urls in (f"{DEAD},{one.url}", f"{one.url}/,{DEAD}", f" ,{DEAD}, http://127.0.0.1:2 ,{one.url}"):
        read(client(urls))
    assert clock.pauses_s == []


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_one_that_fails_is_none_that_answers(
    one: SchemaRegistry, two: SchemaRegistry, clock: Time, status: int
) -> None:
    one.failures = [status]
    read(client(f"{one.url},{two.url}"))
    assert (len(one.requests), len(two.requests), clock.pauses_s) == (1, 1, [])


def test_all_are_asked_before_the_pause(one: SchemaRegistry, two: SchemaRegistry, clock: Time) -> None:
    one.failures, two.failures = [500, 500], [503]
    read(client(f"{one.url},{two.url}"))
    assert (len(one.requests), len(two.requests), clock.pauses_s) == (2, 2, [0.5])


def test_one_that_answers_without_a_schema_is_none(one: SchemaRegistry, clock: Time) -> None:
    with serving() as other:
        other.schemas = [{"page": "of a proxy"}]
        read(client(f"{other.url},{one.url}"))
    assert clock.pauses_s == []


def test_one_that_hangs_costs_its_timeout_once_per_process(
    one: SchemaRegistry, two: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "_TIMEOUT_S", 1.0)
    one.hangs.set()
    urls = f"{one.url},{two.url}"
    mine = client(urls)
    assert read(mine) >= 1.0
    read(mine)
    read(client(urls))
    assert len(one.headers) == 1, "it was asked again"
    # In a task: another process, which knows nothing.
    monkeypatch.setattr(schema_registry, "_answered_last", {})
    assert read(Registry(mine.settings_for_tasks())) >= 1.0, "the process has forgotten"
    one.hangs.clear()


def test_tasks_begin_with_the_one_that_has_answered(
    one: SchemaRegistry, monkeypatch: pytest.MonkeyPatch, clock: Time
) -> None:
    mine = client(f"{DEAD},{one.url}")
    assert mine.settings_for_tasks().shown == f"{DEAD}, {one.url}"
    mine.by_id(1)
    settings = mine.settings_for_tasks()
    assert settings.shown == f"{one.url}, {DEAD}"
    monkeypatch.setattr(schema_registry, "_answered_last", {})
    one.requests.clear()
    read(Registry(settings))
    assert clock.pauses_s == []


def test_the_others_are_asked_when_the_last_one_fails(one: SchemaRegistry, two: SchemaRegistry) -> None:
    mine = client(f"{one.url},{two.url}")
    one.failures = [503]
    mine.by_id(1)
    mine.by_id(1)
    two.failures = [503]
    mine.by_id(1)
    assert (len(one.requests), len(two.requests)) == (2, 3)


def test_an_unknown_schema_is_an_answer(one: SchemaRegistry, two: SchemaRegistry) -> None:
    with pytest.raises(SchemaNotFound, match="Schema not found"):
        client(f"{DEAD},{one.url},{two.url}").by_id(7)
    assert (len(one.requests), len(two.requests)) == (1, 0)


OTHER_404 = [b"default backend - 404", b"", b"[40403]", {"error_code": 404, "message": "HTTP 404 Not Found"},
             {"error_code": "x"}, {"status": 404}]  # fmt: skip


@pytest.mark.parametrize("body", OTHER_404)
def test_a_404_that_is_not_the_registrys_is_no_answer(
    one: SchemaRegistry, two: SchemaRegistry, clock: Time, body: Any
) -> None:
    one.failures, one.failure = [404] * 9, body
    read(client(f"{one.url},{two.url}"))
    assert clock.pauses_s == []
    with pytest.raises(KafkaUnavailableError, match=r"HTTP 404: .*check the URL's path"):
        client(one.url).by_id(1)


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_404_of_a_registry_is_an_answer(one: SchemaRegistry, code: int) -> None:
    one.failures, one.failure = [404], {"error_code": code}
    with pytest.raises(SchemaNotFound):
        client(one.url).by_id(1)


def test_a_registry_without_guids_does_not_end_a_query(one: SchemaRegistry) -> None:
    one.failures, one.failure = [404], {"error_code": 404, "message": "HTTP 404 Not Found"}
    with pytest.raises(SchemaNotFound):
        client(one.url).by_id(UUID(int=5))


@pytest.mark.parametrize("status", [401, 403, 302, 400])
def test_a_refusal_is_an_answer(one: SchemaRegistry, two: SchemaRegistry, status: int) -> None:
    one.failures = [status]
    with pytest.raises(KafkaUnavailableError, match=f"HTTP {status}") as raised:
        client(f"{one.url},{two.url}").by_id(1)
    assert f"at {one.url}, {two.url} does" in str(raised.value)
    assert f"{one.url}: HTTP {status}" in str(raised.value)
    assert two.requests == []


def test_the_error_has_all_urls_and_no_password(one: SchemaRegistry) -> None:
    one.failures = [500] * 4
    dead = DEAD.replace("//", f"//reader:{PASSWORD}@")
    with pytest.raises(KafkaUnavailableError) as raised:
        client(f"{dead},{one.url.replace('//', f'//reader:{PASSWORD}@')}", {}).by_version("s")
    text = str(raised.value)
    assert f"at {DEAD}, {one.url} does not answer /subjects/s/versions/latest" in text
    assert f"{DEAD}: URLError" in text
    assert f"{one.url}: HTTP 500: on purpose" in text
    assert PASSWORD not in text
    assert len(one.requests) == 4


# --- addresses


@pytest.mark.parametrize("path", ["/apis/ccompat/v7", "/"])
def test_a_path(path: str) -> None:
    with serving(path=path.rstrip("/")) as registry:
        registry.register("s", "first")
        read(client(registry.url + "/"))
        assert registry.requests == ["GET /schemas/ids/1"]


def test_an_ipv6_address() -> None:
    try:
        with serving(host="::1") as registry:
            registry.register("s", "first")
            read(client(registry.url))
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_each_registry_gets_its_own_user(one: SchemaRegistry, two: SchemaRegistry) -> None:
    first = one.url.replace("//", "//someone:else@")
    one.logins = {"Basic c29tZW9uZTplbHNl"}
    one.failures = [503]
    read(client(f"{first},{two.url.replace('//', f'//{USER_INFO}@')}", {}))
    assert one.headers[0]["authorization"] == "Basic c29tZW9uZTplbHNl"
    without = client(f"{DEAD.replace('//', f'//{USER_INFO}@')},{two.url}", {})
    with pytest.raises(KafkaUnavailableError, match="HTTP 401"):
        without.by_id(1)
    assert "authorization" not in two.headers[-1], "a password is for the address that has it"


# --- tokens


@pytest.fixture
def endpoint() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


def oauth(endpoint: TokenServer, **more: str) -> dict[str, str]:
    return {
        "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.client.id": CLIENT_ID,
        "bearer.auth.client.secret": endpoint.secret, "bearer.auth.scope": "registry",
        "bearer.auth.issuer.endpoint.url": endpoint.token_url, "bearer.auth.logical.cluster": "lsrc-1",
        "bearer.auth.identity.pool.id": "pool-1", **more,
    }  # fmt: skip


def accept(registry: SchemaRegistry, endpoint: TokenServer) -> None:
    """Let the registry accept the newest token."""
    registry.logins = {f"Bearer {endpoint.issued[-1]}"}


def test_a_token_that_is_refused_is_renewed_once(one: SchemaRegistry, endpoint: TokenServer) -> None:
    mine = client(one.url, oauth(endpoint))
    with pytest.raises(KafkaUnavailableError, match="HTTP 401"):
        mine.by_id(1)
    assert (len(one.headers), len(endpoint.issued)) == (2, 2)
    accept(one, endpoint)
    read(mine)
    read(client(one.url, oauth(endpoint)))
    sent = one.headers[-1]
    assert (sent["target-sr-cluster"], sent["confluent-identity-pool-id"]) == ("lsrc-1", "pool-1")
    assert len(endpoint.issued) == 2, "clients of one login share a token"
    one.logins = set()
    endpoint.status = 503
    with pytest.raises(KafkaUnavailableError, match="HTTP 401"):
        mine.by_id(1)
    assert len(endpoint.issued) == 2


def test_an_expired_token_is_not_sent(one: SchemaRegistry, endpoint: TokenServer) -> None:
    endpoint.lifetime_s = 1.0
    mine = client(one.url, oauth(endpoint))
    for _ in range(2):
        with pytest.raises(KafkaUnavailableError, match="HTTP 401"):
            mine.by_id(1)
        time.sleep(1.2)
    sent = [headers["authorization"].removeprefix("Bearer ") for headers in one.headers]
    assert sent[2] not in sent[:2]


def test_an_endpoint_that_fails_is_named_without_the_secret(one: SchemaRegistry, endpoint: TokenServer) -> None:
    options = oauth(endpoint) | {"bearer.auth.client.secret": "canary-3b-wrong-secret"}
    with pytest.raises(AccessError, match="TOKEN_PROVIDER_FAILED") as raised:
        client(one.url, options).by_id(1)
    text = str(raised.value)
    assert f"{endpoint.token_url} answers HTTP 401: invalid_client" in text
    assert "'bearer.auth.credentials.source' (value 'OAUTHBEARER')" in text
    assert "canary" not in text
    assert one.requests == []


def test_a_function_of_the_user(one: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def token(config: str | None) -> tuple[str, float]:
        calls.append(config)
        return f"token-{len(calls)}\n", time.time() + 60

    monkeypatch.setattr("tests.unit.functions.test_schema_registry.provided", token)
    one.logins = {"Bearer token-2"}
    read(client(one.url, {"tokenProvider": "tests.unit.functions.test_schema_registry:provided"}))
    assert calls == [None, None]
    monkeypatch.setattr("tests.unit.functions.test_schema_registry.provided", lambda _: ("canary\nx", 2e9))
    monkeypatch.setattr(tokens, "_keepers", {})
    with pytest.raises(KafkaUnavailableError, match="characters that a header cannot have") as raised:
        client(one.url, {"tokenProvider": "tests.unit.functions.test_schema_registry:provided"}).by_id(1)
    assert "canary" not in str(raised.value)


def provided(config: str | None) -> tuple[str, float]:
    """Stand in for a provider's function, which tests replace."""
    raise NotImplementedError


def test_a_fixed_token(one: SchemaRegistry) -> None:
    one.logins = {"Bearer fixed"}
    read(client(one.url, {"bearer.auth.token": "fixed\n"}))
    read(client(one.url, {"bearer.auth.token": "fixed", "bearer.auth.credentials.source": "STATIC_TOKEN"}))


# --- TLS


def server_context(authority: Authority) -> ssl.SSLContext:
    identity = authority.identity("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_clients_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    mine = authority.identity("reader", password=PASSWORD)
    tls = {"ssl.ca.location": str(authority.certificate)} | LOGIN
    with_certificate = tls | {
        "ssl.certificate.location": str(mine.certificate), "ssl.key.location": str(mine.key),
        "ssl.key.password": PASSWORD,
    }  # fmt: skip
    with serving(tls=server_context(authority)) as registry:
        registry.register("s", "first")
        read(client(f"{DEAD},{registry.url}", with_certificate))
        with pytest.raises(KafkaUnavailableError, match=r"ssl|SSL|reset|closed"):
            client(registry.url, tls).by_id(1)
        with pytest.raises(KafkaUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            client(registry.url, LOGIN).by_id(1)


def test_a_renewed_certificate_is_used(tmp_path: Path, clock: Time) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path / "other", "ca")
    old, new = other.identity("reader"), authority.identity("reader")
    options = LOGIN | {
        "ssl.ca.location": str(authority.certificate), "ssl.certificate.location": str(old.certificate),
        "ssl.key.location": str(old.key),
    }  # fmt: skip
    with serving(tls=server_context(authority)) as registry:
        registry.register("s", "first")
        mine = client(registry.url, options)
        with pytest.raises(KafkaUnavailableError):
            mine.by_id(1)
        old.certificate.write_bytes(new.certificate.read_bytes())
        old.key.write_bytes(new.key.read_bytes())
        clock.past_s = 60
        read(mine)


def test_files_are_checked_before_a_request(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for option in ("ssl.ca.location", "ssl.certificate.location"):
        with pytest.raises(OptionError, match=rf"'{option}' has the value '{missing}'.*No such file"):
            from_confluent_avro("value", "https://registry.invalid", subject="s", options={option: missing})
