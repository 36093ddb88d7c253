"""Tokens over HTTP: what is sent, and what the answers may be."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.client.token_endpoints import azure_imds, client_credentials
from spark_groupsource.options.token_login import AZURE_IMDS, OIDC, TokenLogin
from tests.realkafka.security import Authority

CANARY = "canary-71aa"


class Endpoint:
    """An HTTP server with one answer, which keeps the requests."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Any = {"access_token": CANARY, "expires_in": 60}
        self.requests: list[tuple[str, str, dict[str, str], str]] = []
        self.url = ""


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    """Serve an endpoint for the block."""
    mine = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            mine.requests.append((self.command, self.path, dict(self.headers), body))
            data = mine.answer if isinstance(mine.answer, bytes) else json.dumps(mine.answer).encode()
            self.send_response(mine.status)
            if mine.status == 302:
                self.send_header("Location", f"{mine.url}/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    mine.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield mine
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        yield found


def fetched(endpoint: Endpoint, path: str = "/token", **more: str) -> tuple[str, float]:
    arguments = {"url": endpoint.url + path, "client_id": "me", "scope": "", **more}
    return client_credentials(TokenLogin("o", "v", OIDC, arguments=tuple(arguments.items())))(CANARY)


def test_client_credentials(endpoint: Endpoint) -> None:
    value, expires_s = fetched(endpoint, scope="a b")
    assert value == CANARY
    assert expires_s == pytest.approx(time.time() + 60, abs=30)
    ((method, path, headers, body),) = endpoint.requests
    assert (method, path) == ("POST", "/token")
    assert body == "grant_type=client_credentials&scope=a+b"
    assert headers["Authorization"] == f"Basic {base64.b64encode(f'me:{CANARY}'.encode()).decode()}"


def test_azures_metadata_service(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    endpoint.answer = {"access_token": CANARY, "expires_in": "60", "expires_on": "1"}
    login = TokenLogin("o", "v", AZURE_IMDS, arguments=(("url", f"{endpoint.url}/imds?resource=a://b"),))
    assert azure_imds(login)(None)[1] == pytest.approx(time.time() + 60, abs=30)
    ((method, path, headers, _),) = endpoint.requests
    assert (method, path, headers["Metadata"]) == ("GET", "/imds?resource=a://b", "true")


def test_an_answer_without_an_expiry(endpoint: Endpoint) -> None:
    endpoint.answer = {"access_token": CANARY}
    assert fetched(endpoint)[1] == pytest.approx(time.time() + 300, abs=30)


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (401, {"error": "invalid_client", "error_description": "no such client"}, "HTTP 401: no such client"),
        (400, {"error": "invalid_scope"}, "HTTP 400: invalid_scope"),
        (503, b"<html>", "HTTP 503: Service Unavailable"),
        (302, {}, "HTTP 302"),
        (200, b"<html>", "JSON"),
        (200, [], "no JSON object"),
        (200, {"token": CANARY}, "no 'access_token'"),
        (200, {"access_token": CANARY, "expires_in": "soon"}, "soon"),
    ],
)
def test_what_is_no_token(endpoint: Endpoint, status: int, answer: Any, said: str) -> None:
    endpoint.status, endpoint.answer = status, answer
    with pytest.raises((OSError, ValueError), match=said) as raised:
        fetched(endpoint, "/token?key=canary-71aa")
    assert CANARY not in str(raised.value)
    assert len(endpoint.requests) == 1, "a redirect is not followed"


def test_an_endpoint_with_a_private_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    identity = authority.identity("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    with serving(context) as endpoint:
        assert fetched(endpoint, ca_location=str(authority.certificate))[0] == CANARY


def test_an_endpoint_that_cannot_be_reached(endpoint: Endpoint) -> None:
    with pytest.raises(OSError, match=r"http://127\.0\.0\.1:1/token cannot be reached"):
        fetched(endpoint, url="http://127.0.0.1:1/token")
