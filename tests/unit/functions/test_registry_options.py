"""Which registries and which login the arguments mean."""

from __future__ import annotations

import pickle

import pytest

from spark_groupsource.client.https import TlsFiles
from spark_groupsource.errors import OptionError
from spark_groupsource.functions.registry_options import RegistrySettings, registry_settings
from spark_groupsource.options.permissions import permissions_of

CANARY = "canary-5d21"
URL = "https://registry:8081"
OAUTH = {
    "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.client.id": "me",
    "bearer.auth.client.secret": CANARY, "bearer.auth.issuer.endpoint.url": "https://idp.example.org/token",
}  # fmt: skip
AZURE = {
    "bearer.auth.credentials.source": "OAUTHBEARER_AZURE_IMDS",
    "bearer.auth.issuer.endpoint.query": "api-version=2018-02-01&resource=api://registry",
}
GOOGLE = "https://managedkafka.googleapis.com/v1/projects/p/locations/l/schemaRegistries/r"


def parsed(urls: str, options: dict[str, str] | None = None, **environment: str) -> RegistrySettings:
    return registry_settings(urls, options or {}, permissions_of(environment))


def refused(urls: str, options: dict[str, str] | None = None, **environment: str) -> str:
    with pytest.raises(OptionError, match="What to do") as raised:
        parsed(urls, options, **environment)
    assert CANARY not in str(raised.value)
    assert CANARY not in repr(raised.value.parameters)
    return str(raised.value)


@pytest.mark.parametrize(
    ("urls", "shown"),
    [
        ("http://a:8081", "http://a:8081"),
        ("http://a:8081/", "http://a:8081"),
        (" HTTP://a:8081/apis/ccompat/v7/ ", "http://a:8081/apis/ccompat/v7"),
        ("http://a:1,https://b", "http://a:1, https://b"),
        (" http://a:1 ,, http://b:2,", "http://a:1, http://b:2"),
        ("http://a:1,http://a:1/", "http://a:1"),
        ("http://[::1]:8081,http://[2001:db8::2]", "http://[::1]:8081, http://[2001:db8::2]"),
        ("http://a:8081,\nhttp://b:8081", "http://a:8081, http://b:8081"),
        ("http://a/b%20c/\u00e4(1)", "http://a/b%20c/%C3%A4(1)"),
    ],
)
def test_a_list_of_registries(urls: str, shown: str) -> None:
    assert parsed(urls).shown == shown


@pytest.mark.parametrize(
    "urls",
    [
        "", " , ", "registry:8081", "file:///etc/passwd", "ftp://a", "http://", "http://:8081", "http://a:port",
        "http://a:99999", "http://[::1:8081", "http://a b:1", "http://a:1/x y", "http://a?x=1", "http://a#x",
        "http://a:1;http://b:1", "http://a:1,b:1",
    ],
)  # fmt: skip
def test_what_is_no_list_of_urls_is_refused(urls: str) -> None:
    assert "'schema_registry_url'" in refused(urls)


def shown_or_refused(url: str) -> str:
    """Return what is shown of a URL, or of its refusal."""
    try:
        return parsed(url).shown
    except OptionError as error:
        return str(error)


@pytest.mark.parametrize("character", [",", "/", "#", "?", "@/", "/@", ":x@", "[", ",http://"])
def test_a_password_that_cuts_its_url_is_not_shown(character: str) -> None:
    for url in (f"http://u:12{character}{CANARY}@host:1", f"http://u:{CANARY}{character}@host:1"):
        assert CANARY not in shown_or_refused(url)


def test_each_url_has_its_own_user() -> None:
    settings = parsed("http://u%40x:p%2Cw%2f@a:1,http://b:2,https://v:q:r@[::1]:3/p,http://w@c")
    assert [(url.base, url.user_info) for url in settings.urls] == [
        ("http://a:1", "u@x:p,w/"), ("http://b:2", ""), ("https://[::1]:3/p", "v:q:r"), ("http://c", "w:"),
    ]  # fmt: skip


def test_the_user_of_the_option_is_for_all_urls() -> None:
    settings = parsed("http://a,http://b", {"basic.auth.user.info": f"u:{CANARY}\n"})
    assert [url.user_info for url in settings.urls] == [f"u:{CANARY}"] * 2


@pytest.mark.parametrize(
    ("urls", "options", "said"),
    [
        (f"http://u:{CANARY}@a", {"basic.auth.user.info": f"u:{CANARY}"}, "'schema_registry_url' (with a user)"),
        (f"http://a,http://u:{CANARY}@b", {"bearer.auth.token": CANARY}, "cannot be used together"),
        (URL, {"basic.auth.user.info": f"u:{CANARY}", "bearer.auth.token": CANARY}, "'bearer.auth.token'"),
        (URL, OAUTH | {"bearer.auth.token": CANARY}, "'bearer.auth.credentials.source'"),
        (URL, OAUTH | {"tokenProvider": "gcp"}, "'tokenProvider' and 'bearer.auth.credentials.source'"),
        (URL, {"basic.auth.user.info": CANARY}, "user:password"),
        (URL, {"bearer.auth.token": f"a\n{CANARY}"}, "control characters"),
        (URL, {"bearer.auth.token": f"{CANARY}\u2026"}, "ASCII in tokens"),
        (URL, {"bearer.auth.token": None}, "NoneType"),
        (URL, OAUTH | {"bearer.auth.credentials.source": "OTHER"}, "STATIC_TOKEN, OAUTHBEARER, OAUTHBEARER_AZURE_IMDS"),
        (URL, {"bearer.auth.credentials.source": "CUSTOM"}, "set tokenProvider"),
        (URL, {"bearer.auth.credentials.source": "STATIC_TOKEN"}, "'bearer.auth.token' has the value ''"),
        (URL, OAUTH | {"bearer.auth.client.secret": ""}, "'bearer.auth.client.secret' has the value ''"),
        (URL, OAUTH | {"bearer.auth.credentials.source": ""}, "OAUTHBEARER, because 'bearer.auth.client.id' is set"),
        (URL, OAUTH | {"bearer.auth.issuer.endpoint.query": "a"}, "OAUTHBEARER_AZURE_IMDS, because"),
        (URL, OAUTH | {"bearer.auth.issuer.endpoint.url": f"https://u:{CANARY}@idp/token"}, "URL without a user"),
        (URL, {"bearer.auth.credentials.source": "OAUTHBEARER_AZURE_IMDS"}, "'bearer.auth.issuer.endpoint.query'"),
        (URL, {"tokenProvider": "msk"}, "gcp, or package.module:function"),
        (URL, {"tokenProvider": "no function"}, "gcp, or package.module:function"),
        (URL, {"ssl.key.location": "/k"}, "'ssl.certificate.location' has the value ''"),
        (URL, {"ssl.key.password": CANARY}, "because 'ssl.key.password' is set"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(urls: str, options: dict[str, str], said: str) -> None:
    assert said in refused(urls, options)


def test_a_token_endpoint() -> None:
    settings = parsed(URL, OAUTH | {"bearer.auth.scope": "a b", "ssl.ca.location": "/ca.pem"})
    login = settings.token_login
    assert login is not None
    assert (login.provider, settings.client_secret) == ("oidc", CANARY)
    assert dict(login.arguments) == {
        "url": "https://idp.example.org/token", "client_id": "me", "scope": "a b", "ca_location": "/ca.pem",
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_driver_that_is_limited_to_some_endpoints() -> None:
    only = {"GROUPKAFKA_ONLY_TOKEN_ENDPOINTS": "https://idp.example.org/token"}
    assert parsed(URL, OAUTH, **only).token_login
    other = OAUTH | {"bearer.auth.issuer.endpoint.url": "https://other/token"}
    assert "GROUPKAFKA_ONLY_TOKEN_ENDPOINTS" in refused(URL, other, **only)


def test_the_machines_identity_and_functions_need_a_permission() -> None:
    variable = "GROUPKAFKA_ALLOW_TOKEN_PROVIDERS"
    for options, name in (
        (AZURE, "azure_imds"),
        ({"tokenProvider": "my.logins:token"}, "my.logins:token"),
        ({"tokenProvider": "GCP"}, "gcp"),
    ):
        assert variable in refused(URL, options)
        login = parsed(URL, options, **{variable: name}).token_login
        assert login is not None
        assert login.provider.startswith(name)


def test_googles_token_for_googles_registry_needs_none() -> None:
    login = parsed(GOOGLE, {"tokenProvider": "gcp"}).token_login
    assert login is not None
    assert login.provider == "gcp_access_token"
    for urls, more in (
        (f"{GOOGLE},{URL}", {}),
        (GOOGLE.replace("https", "http"), {}),
        (GOOGLE.replace(".com", ".com.evil.org"), {}),
        (GOOGLE, {"ssl.ca.location": "/ca"}),
    ):
        assert "NOT_PERMITTED" in refused(urls, {"tokenProvider": "gcp"} | more)


def test_confluent_clouds_headers() -> None:
    settings = parsed(URL, OAUTH | {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "p-1,p-2"})
    assert settings.headers == (("target-sr-cluster", "lsrc-1"), ("Confluent-Identity-Pool-Id", "p-1,p-2"))


def test_no_repr_has_a_secret() -> None:
    settings = [
        parsed(f"https://u:{CANARY}@a", {"ssl.certificate.location": "/c", "ssl.key.password": CANARY}),
        parsed(URL, {"basic.auth.user.info": f"u:{CANARY}"}),
        parsed(URL, {"bearer.auth.token": CANARY}),
        parsed(URL, OAUTH),
    ]
    assert [each for each in settings if CANARY in repr(each)] == []
    assert settings[0].tls == TlsFiles("", "/c", "", CANARY)
