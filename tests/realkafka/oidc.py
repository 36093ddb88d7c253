"""A token server for tests (OAuth 2 client credentials, JWKS, and an instance's metadata service), and what brokers
need that check its tokens' signatures.

    with TokenServer() as server, RealKafka(security=OAuth(server)) as kafka:
        ... kafka.secure_servers("SASL_PLAINTEXT") ... server.fetch() ... server.lifetime_s = 3 ... server.status = 503
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.realkafka.security import Security

CLIENT_ID, AUDIENCE = "orders-driver", "kafka"


class TokenServer:
    """Issues tokens that are signed with a key of its own. Attributes may be changed while it runs.

    lifetime_s: of the next tokens. status: the HTTP status of the next answers to requests for tokens.
    """

    def __init__(self, secret: str = "a-secret-of-the-token-server") -> None:
        self.secret = secret
        self.lifetime_s = 300.0
        self.status = 200
        # All tokens that were issued, and when requests for tokens came.
        self.issued: list[str] = []
        self.asked_s: list[float] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        # Tokens that the brokers must refuse: signed with another key.
        self.forges = False
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urllib.parse.urlparse(self.path).path
                if path == "/jwks":
                    self._answer(200, server.jwks())
                elif path == "/imds" and self.headers.get("Metadata") == "true":
                    self._answer(*server.answer())
                else:
                    self._answer(404, {"error": "not_found"})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                self._answer(*server.on_request(self.headers.get("Authorization", ""), urllib.parse.parse_qs(body)))

            def _answer(self, status: int, content: Mapping[str, object]) -> None:
                text = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        """The address, without a path."""
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def token_url(self) -> str:
        """The token endpoint."""
        return f"{self.url}/token"

    def jwks(self) -> dict[str, object]:
        """Return the public key."""
        numbers = self._key.public_key().public_numbers()
        parts = {name: _integer(value) for name, value in (("n", numbers.n), ("e", numbers.e))}
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", **parts}]}

    def on_request(self, authorization: str, body: Mapping[str, list[str]]) -> tuple[int, dict[str, object]]:
        """Answer a request for a token by the client credentials grant."""
        given = f"{body.get('client_id', [''])[0]}:{body.get('client_secret', [''])[0]}"
        if authorization.startswith("Basic "):
            given = base64.b64decode(authorization.removeprefix("Basic ")).decode()
        if body.get("grant_type") != ["client_credentials"] or given != f"{CLIENT_ID}:{self.secret}":
            return 401, {"error": "invalid_client"}
        return self.answer()

    def answer(self) -> tuple[int, dict[str, object]]:
        """Return a new token, or the error that was asked for."""
        self.asked_s.append(time.monotonic())
        if self.status != 200:
            return self.status, {"error": "temporarily_unavailable"}
        return 200, {"access_token": self.token(), "expires_in": round(self.lifetime_s), "token_type": "Bearer"}

    def token(self) -> str:
        """Return a new token."""
        now_s = time.time()
        claims = {
            "iss": self.url, "aud": AUDIENCE, "sub": CLIENT_ID, "iat": now_s, "exp": now_s + self.lifetime_s,
            "jti": uuid.uuid4().hex,
        }  # fmt: skip
        head = {"alg": "RS256", "typ": "JWT", "kid": "one"}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
        key = self._stranger if self.forges else self._key
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        token = f"{text}.{_encoded(signature)}"
        self.issued.append(token)
        return token


def fetch(token_url: str, secret: str) -> tuple[str, float]:
    """Fetch a token as a provider would: (token, expiry in seconds since the epoch). Raises OSError."""
    login = base64.b64encode(f"{CLIENT_ID}:{secret}".encode()).decode()
    request = urllib.request.Request(
        token_url, b"grant_type=client_credentials", {"Authorization": f"Basic {login}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.load(response)
    claims = json.loads(base64.urlsafe_b64decode(answer["access_token"].split(".")[1] + "=="))
    return answer["access_token"], float(claims["exp"])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _integer(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class OAuth(Security):
    """Brokers whose SASL listeners take tokens of a server. `reauth_ms`: how long a login lasts at most, 0: for ever.

    There are no rights to grant: whoever logs in may do everything.
    """

    def __init__(self, server: TokenServer, reauth_ms: int = 0) -> None:
        super().__init__({})
        self._server = server
        self._reauth_ms = reauth_ms

    def prepare(self, run_dir: Path) -> dict[str, object]:
        """See the base class."""
        settings = super().prepare(run_dir)
        kept = {name: value for name, value in settings.items() if name.startswith(("ssl.", "listener.name.ssl."))}
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        for name in ("sasl_plaintext", "sasl_ssl"):
            prefix = f"listener.name.{name}.oauthbearer"
            kept |= {
                f"{prefix}.sasl.jaas.config": module,
                f"{prefix}.sasl.server.callback.handler.class": handler,
                f"{prefix}.connections.max.reauth.ms": self._reauth_ms,
            }
        return kept | {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            # Kafka 4.1.1's default, DefaultJwtValidator, does not check signatures on a broker. The name without a
            # listener counts; with one it is ignored.
            "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator",
            "sasl.oauthbearer.jwks.endpoint.url": f"{self._server.url}/jwks",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": self._server.url,
            # Tokens of a few seconds would be valid for 30 s more.
            "sasl.oauthbearer.clock.skew.seconds": 0,
        }

    def java_options(self) -> list[str]:
        """See the base class. Kafka 4 fetches keys only from addresses that the operator lists."""
        return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._server.url}/jwks"]

    def format_arguments(self) -> list[str]:
        """See the base class."""
        return []
