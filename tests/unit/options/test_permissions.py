"""What options may name is decided by the driver's environment: files, variables, code, brokers and addresses."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from pathlib import Path

import pytest

from spark_groupsource.cli.arguments import Connection, client_options
from spark_groupsource.client.settings import base_settings
from spark_groupsource.errors import OptionError
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.options import client_settings
from spark_groupsource.options import permissions as permissions_module
from spark_groupsource.options.client_settings import CODE_SETTINGS, REFUSED_CLIENT_SETTINGS
from spark_groupsource.options.librdkafka_names import settings_table
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import EVERYTHING, OF_THE_PLATFORM, NotPermitted, Permissions, permissions_of
from spark_groupsource.options.secrets import CLIENT_FILES, SECRET_SETTINGS, TRUST_STORES

REQUIRED = {"kafka.bootstrap.servers": "broker:9092", "kafka.group.id": "shop", "subscribe": "orders"}
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
# Settings of librdkafka that take any text, and neither name a place nor run anything.
PLAIN_TEXTS = {
    "client.id", "client.rack", "group.id", "group.instance.id", "group.remote.assignor", "group.protocol.type",
    "topic.blacklist", "broker.version.fallback", "builtin.features", "bootstrap.servers",
    "partition.assignment.strategy", "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list",
    "ssl.ca.certificate.stores", "ssl.engine.id", "sasl.mechanism", "sasl.mechanisms", "sasl.kerberos.service.name",
    "sasl.kerberos.principal", "sasl.oauthbearer.scope", "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.assertion.claim.aud", "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.sub", "share.acknowledgement.mode",
}  # fmt: skip
# Pointers, which librdkafka takes from programs only, and what only producers have.
NO_TEXTS = re.compile(
    r".*_cb|opaque|default_topic_conf|interceptors|ssl_(key|certificate|ca|engine_callback_data)|transactional\.id"
    r"|partitioner|msg_order_cmp"
)


def permitted(**environment: str) -> Permissions:
    return permissions_of(environment)


def parse(permissions: Permissions, **settings: str) -> SourceOptions:
    return parse_options(REQUIRED | settings, permissions=permissions)


def refusal(variable: str, permissions: Permissions, settings: dict[str, str]) -> str:
    """Return the text of the error, which names the variable that would allow it."""
    with pytest.raises(OptionError) as raised:
        base_settings(parse(permissions, **settings), "member")
    assert raised.value.condition.id == "GROUPKAFKA.NOT_PERMITTED"
    assert variable in str(raised.value)
    return str(raised.value)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return a directory with a secret, beside another one with a secret of somebody else."""
    for name in ("secrets", "secrets-of-others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "password").write_text(name)
    return tmp_path / "secrets"


# --- librdkafka's settings, against its own list


@pytest.fixture(scope="module")
def texts() -> frozenset[str]:
    """Return the settings of this librdkafka that take any text."""
    table = settings_table()
    return frozenset(re.findall(r"^([a-z][a-z._]+?) +\| +\S+ +\| +\|", table, re.MULTILINE))


def test_every_text_of_the_client_is_known(texts: frozenset[str]) -> None:
    """A new librdkafka may bring a setting that reads a file, runs code or sends requests: decide what it is."""
    assert len(texts) > 50
    known = PLAIN_TEXTS | CLIENT_FILES | SECRET_SETTINGS | CODE_SETTINGS.keys() | REFUSED_CLIENT_SETTINGS.keys()
    assert {name for name in texts - known - {TOKEN_URL} if not NO_TEXTS.fullmatch(name)} == set()


@pytest.mark.parametrize("name", ["ssl.new.key.location", "sasl.helper.cmd", "wasm.plugin", "https.proxy.url"])
def test_what_a_later_client_may_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_settings, "is_known", lambda _: True)
    refusal("GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", permitted(), {f"kafka.{name}": "x"})
    assert parse(permitted(GROUPKAFKA_ALLOW_UNSAFE_SETTINGS=name), **{f"kafka.{name}": "x"}).client_settings[name]


# --- files


@pytest.mark.parametrize("name", sorted({f"{name}.file" for name in SECRET_SETTINGS} | (CLIENT_FILES - TRUST_STORES)))
@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
def test_files_only_below_the_directories(name: str, prefix: str, secrets: Path) -> None:
    others = permitted(GROUPKAFKA_SECRET_DIRS=str(secrets))
    for path in (secrets.parent / "secrets-of-others" / "password", secrets / ".." / "secrets-of-others" / "password"):
        option = {f"{prefix}{name}": str(path)}
        with pytest.raises(OptionError) as raised:
            reading_client_settings(parse(others, **option).for_reading(), 1024)
        assert raised.value.condition.id == "GROUPKAFKA.NOT_PERMITTED"
        assert f"'{prefix}{name}'" in str(raised.value)
        assert "GROUPKAFKA_SECRET_DIRS" in str(raised.value)
    good = parse(others, **{f"{prefix}{name}": str(secrets / "password")})
    found = reading_client_settings(pickle.loads(pickle.dumps(good.for_reading())), 1024)
    assert found.get(name.removesuffix(".file")) == "secrets" or found[name] == str(secrets / "password")


def test_a_link_out_of_the_directory_is_not_followed(secrets: Path) -> None:
    (secrets / "link").symlink_to(secrets.parent / "secrets-of-others" / "password")
    (secrets / "folder").symlink_to(secrets.parent / "secrets-of-others")
    for path in (secrets / "link", secrets / "folder" / "password"):
        for name in ("sasl.password.file", "ssl.key.location"):
            text = refusal(
                "GROUPKAFKA_SECRET_DIRS", permitted(GROUPKAFKA_SECRET_DIRS=str(secrets)), {f"kafka.{name}": str(path)}
            )
            assert "link" in text


def test_a_link_into_the_directory_does_not_count(secrets: Path) -> None:
    """Its owner could let it lead elsewhere between the look at it and the client's."""
    (secrets.parent / "link").symlink_to(secrets / "password")
    refusal(
        "GROUPKAFKA_SECRET_DIRS", permitted(GROUPKAFKA_SECRET_DIRS=str(secrets)),
        {"kafka.ssl.key.location": str(secrets.parent / "link")},
    )  # fmt: skip


def test_a_secret_of_kubernetes(secrets: Path) -> None:
    """`<name>` leads to `..data/<name>`, and `..data` to a directory that is replaced when the secret changes."""
    (secrets / "..2026_01").mkdir()
    (secrets / "..2026_01" / "token").write_text("from-kubernetes")
    (secrets / "..data").symlink_to("..2026_01")
    (secrets / "token").symlink_to("..data/token")
    options = parse(
        permitted(GROUPKAFKA_SECRET_DIRS=str(secrets)), **{"kafka.sasl.password.file": str(secrets / "token")}
    )
    assert base_settings(options, "member")["sasl.password"] == "from-kubernetes"


def test_a_secret_that_kubernetes_replaces_meanwhile(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against: 1. the path is resolved; 2. the directory that it led to is replaced; 3. the file is opened."""
    test_a_secret_of_kubernetes(secrets)
    check = Permissions.check_file
    looks: list[str] = []

    def replaced(self: Permissions, path: str) -> str:
        real = check(self, path)
        looks.append(real)
        if len(looks) == 1:
            (secrets / "..2026_02").mkdir()
            (secrets / "..2026_02" / "token").write_text("newer")
            (secrets / "..new").symlink_to("..2026_02")
            (secrets / "..new").replace(secrets / "..data")
            shutil.rmtree(secrets / "..2026_01")
        return real

    monkeypatch.setattr(Permissions, "check_file", replaced)
    options = parse(
        permitted(GROUPKAFKA_SECRET_DIRS=str(secrets)), **{"kafka.sasl.password.file": str(secrets / "token")}
    )
    assert base_settings(options, "member")["sasl.password"] == "newer"
    assert len(looks) == 2


def test_a_directory_may_be_a_link_itself(secrets: Path) -> None:
    """As /var/run is one to /run."""
    (secrets.parent / "run").symlink_to(secrets)
    path = str(secrets.parent / "run" / "password")
    options = parse(permitted(GROUPKAFKA_SECRET_DIRS=str(secrets.parent / "run")), **{"kafka.sasl.password.file": path})
    assert base_settings(options, "member")["sasl.password"] == "secrets"


def test_the_credentials_of_a_systemd_service(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = {"kafka.sasl.password.file": str(secrets / "password")}
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    refusal("GROUPKAFKA_SECRET_DIRS", permitted(), option)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secrets))
    assert base_settings(parse(permitted(), **option), "member")["sasl.password"] == "secrets"


def test_known_directories(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions_module, "DIRECTORIES", (str(secrets),))
    options = parse(permitted(), **{"kafka.sasl.password.file": str(secrets / "password")})
    assert base_settings(options, "member")["sasl.password"] == "secrets"


@pytest.mark.parametrize("folder", OF_THE_PLATFORM)
def test_the_machines_own_tokens_are_given_to_nobody(
    folder: str, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes mounts the token of the pod's account below /var/run/secrets, too; also by a link beside it."""
    monkeypatch.setattr(permissions_module, "DIRECTORIES", (str(secrets),))
    token = secrets / folder / "serviceaccount" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("of the pod")
    (secrets / "link").symlink_to(token)
    for path in (token, secrets / "link"):
        refusal("GROUPKAFKA_SECRET_DIRS", permitted(), {"kafka.sasl.password.file": str(path)})
    chosen = permitted(GROUPKAFKA_SECRET_DIRS=str(token.parent))
    options = parse(chosen, **{"kafka.sasl.password.file": str(token)})
    assert base_settings(options, "member")["sasl.password"] == "of the pod"


def test_only_a_permitted_path_is_known_to_exist(secrets: Path) -> None:
    """The error for a file that is there and for one that is not are the same."""
    permissions = permitted(GROUPKAFKA_SECRET_DIRS=str(secrets))
    there, missing = (secrets.parent / "secrets-of-others" / name for name in ("password", "none"))
    texts = [
        refusal("GROUPKAFKA_SECRET_DIRS", permissions, {f"kafka.{name}": str(path)}).replace(str(path), "")
        for path in (there, missing)
        for name in ("ssl.key.location",)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("path", ["/etc/ssl/certs", "/opt/app/ca.pem", "probe"])
def test_authorities_may_be_anywhere(path: str) -> None:
    """No client sends them to anybody. Nothing else may be there: private keys lie beside them."""
    for name in TRUST_STORES:
        assert base_settings(parse(permitted(), **{f"kafka.{name}": path}), "member")[name] == path
    for name in sorted(CLIENT_FILES - TRUST_STORES):
        refusal("GROUPKAFKA_SECRET_DIRS", permitted(), {f"kafka.{name}": path})


def test_a_client_opens_no_pipe(secrets: Path) -> None:
    """librdkafka would wait for its writer."""
    os.mkfifo(secrets / "pipe")
    with pytest.raises(NotPermitted, match="not a regular file"):
        permitted(GROUPKAFKA_SECRET_DIRS=str(secrets)).check_trust_store(str(secrets / "pipe"))


# --- variables


@pytest.mark.parametrize("name", ["PATH", "AWS_SECRET_ACCESS_KEY", "kafka_password", "MYKAFKA_PASSWORD"])
def test_variables_only_of_the_lists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "secret")
    option = {"kafka.sasl.password.env": name}
    refusal("GROUPKAFKA_SECRET_ENV", permitted(), option)
    for listed in (name, f"OTHER, {name[:4]}*"):
        options = parse(permitted(GROUPKAFKA_SECRET_ENV=listed), **option)
        assert base_settings(options, "member")["sasl.password"] == "secret"


# --- brokers and addresses


@pytest.mark.parametrize(
    ("servers", "is_allowed"),
    [
        ("broker:9092", True),
        ("SASL_SSL://Broker:9092", True),
        ("broker:9093", False),
        ("b1.example.org:9092,b2.example.org", True),
        ("b1.example.org:9092,evil.org:9092", False),
        ("example.org.evil:9092", False),
        ("evilexample.org:9092", False),
        ("any-port:1", True),
    ],
)
def test_a_driver_that_is_limited_to_some_brokers(servers: str, is_allowed: bool) -> None:
    permissions = permitted(GROUPKAFKA_ONLY_BROKERS="broker:9092, *.example.org, any-port")
    for name in ("kafka.bootstrap.servers", "executor.kafka.bootstrap.servers"):
        assert parse(permitted(), **{name: servers})
        if is_allowed:
            assert parse(permissions, **{name: servers})
        else:
            assert f"'{name}'" in refusal("GROUPKAFKA_ONLY_BROKERS", permissions, {name: servers})


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.4", "driver.example.org"])
def test_metrics_are_shown_to_other_machines_only_if_the_driver_permits_it(address: str) -> None:
    assert "other machines could read" in refusal(
        "GROUPKAFKA_METRICS_ADDRESSES", permitted(), {"metricsPort": "0", "metricsAddress": address}
    )
    allowed = permitted(GROUPKAFKA_METRICS_ADDRESSES=f"192.0.2.1,{address}")
    assert parse(allowed, metricsPort="0", metricsAddress=address).metrics_address == address
    assert parse(permitted(), metricsPort="0", metricsAddress="localhost").metrics_address == "localhost"


def test_brokers_have_one_name() -> None:
    with pytest.raises(OptionError, match="OPTION_REFUSED"):
        parse(permitted(), **{"kafka.metadata.broker.list": "evil:9092"})


def test_a_driver_that_is_limited_to_some_token_endpoints() -> None:
    option, url = f"kafka.{TOKEN_URL}", "https://login.example.org/token"
    assert parse(permitted(), **{option: url}).client_settings[TOKEN_URL] == url
    limited = permitted(GROUPKAFKA_ONLY_TOKEN_ENDPOINTS=f"https://other/, {url}")
    assert parse(limited, **{option: url}).client_settings[TOKEN_URL] == url
    refusal("GROUPKAFKA_ONLY_TOKEN_ENDPOINTS", limited, {option: f"{url}/../admin"})


def test_a_driver_that_is_limited_to_some_brokers_sends_secrets_to_no_other_endpoint() -> None:
    limited = {"GROUPKAFKA_ONLY_BROKERS": REQUIRED["kafka.bootstrap.servers"]}
    option, url = f"kafka.{TOKEN_URL}", "https://login.example.org/token"
    refusal("GROUPKAFKA_ONLY_TOKEN_ENDPOINTS", permitted(**limited), {option: url})
    both = permitted(**limited, GROUPKAFKA_ONLY_TOKEN_ENDPOINTS=url)
    assert parse(both, **{option: url}).client_settings[TOKEN_URL] == url


def test_a_machines_own_identity_is_given_to_nobody() -> None:
    option = "kafka.sasl.oauthbearer.metadata.authentication.type"
    assert parse(permitted(), **{option: "none"})
    for kind in ("azure_imds", "aws_iam"):
        refusal("GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", permitted(), {option: kind})


# --- strategies


@pytest.mark.parametrize("listed", ["tests.kafka.strategies:InTurn", "tests.kafka.*", "*"])
def test_strategies_of_others_must_be_allowed_by_name(listed: str) -> None:
    option = {"assignors": "weighted,tests.kafka.strategies:InTurn"}
    text = refusal("GROUPKAFKA_ALLOW_ASSIGNORS", permitted(GROUPKAFKA_ALLOW_ASSIGNORS="other:InTurn"), option)
    assert "'tests.kafka.strategies:InTurn'" in text
    assert parse(permitted(GROUPKAFKA_ALLOW_ASSIGNORS=listed), **option).assignors[1] == "tests.kafka.strategies:InTurn"


def test_a_strategy_that_is_not_allowed_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strategy_that_runs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    refusal("GROUPKAFKA_ALLOW_ASSIGNORS", permitted(), {"assignors": "strategy_that_runs:Class"})
    assert not (tmp_path / "ran").exists()


# --- who decides


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    """Return a file of client properties of somebody who calls the command line."""
    path = tmp_path / "client.properties"
    (tmp_path / "password").write_text("mine")
    path.write_text(
        f"sasl.password.file={tmp_path}/password\nssl.ca.location={tmp_path}/ca.pem\nplugin.library.paths=mine.so\n"
        "sasl.username.env=SOMEBODYS_NAME\n"
    )
    return path


def test_the_command_line_may_name_everything(properties: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMEBODYS_NAME", "me")
    monkeypatch.setenv("GROUPKAFKA_SECRET_DIRS", "")
    options = client_options(Connection("broker:9092", "shop", properties))
    assert options.permissions == EVERYTHING
    settings = base_settings(options, "admin")
    assert (settings["sasl.password"], settings["sasl.username"]) == ("mine", "me")
    assert settings["plugin.library.paths"] == "mine.so"


def test_the_environment_is_the_drivers(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors get its permissions with the reader, and add none by a variable of their own."""
    option = {"kafka.sasl.password.file": str(secrets / "password")}
    monkeypatch.setenv("GROUPKAFKA_SECRET_DIRS", str(secrets))
    sent = pickle.dumps(parse_options(REQUIRED | option).for_reading())
    monkeypatch.setenv("GROUPKAFKA_SECRET_DIRS", "")
    assert reading_client_settings(pickle.loads(sent), 1024)["sasl.password"] == "secrets"
    sent = pickle.dumps(parse_options(REQUIRED | option).for_reading())
    monkeypatch.setenv("GROUPKAFKA_SECRET_DIRS", str(secrets))
    with pytest.raises(OptionError, match="NOT_PERMITTED"):
        reading_client_settings(pickle.loads(sent), 1024)


def test_no_option_permits_anything() -> None:
    """Also none that is named like a variable."""
    for name in ("GROUPKAFKA_SECRET_DIRS", "permissions", "kafka.GROUPKAFKA_SECRET_DIRS"):
        raw = REQUIRED | {name: "/", "kafka.sasl.password.file": "/etc/hostname"}
        with pytest.raises(OptionError):
            base_settings(parse_options(raw, permissions=permitted()), "member")


def test_without_variables() -> None:
    assert permissions_of({}) == Permissions()
    assert permissions_of({"GROUPKAFKA_SECRET_DIRS": "", "GROUPKAFKA_SECRET_ENV": " , "}) == Permissions()
    assert permissions_of({"GROUPKAFKA_SECRET_DIRS": "/a:/b"}).directories == ("/a", "/b")
    # An empty list of brokers is no list: none is allowed.
    assert permissions_of({"GROUPKAFKA_ONLY_BROKERS": ""}).only_brokers == ()
