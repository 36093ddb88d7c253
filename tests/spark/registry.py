"""A schema registry on loopback with the paths of Confluent's API that its clients and this project use.

It keeps schemas in memory, checks the login, and can fail or hang on purpose.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

USER_INFO = "reader:canary-7f3a-registry-password"
BASIC = f"Basic {base64.b64encode(USER_INFO.encode()).decode()}"
TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """Schemas by id, and subjects as lists of ids. A context has a registry of its own."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []  # of all requests
        self.logins = {BASIC}  # headers that are accepted
        self.hangs = threading.Event()  # while it is set, requests get no answer
        self.failures: list[int] = []  # statuses of the next answers
        self.failure: Any = {"error_code": 50001, "message": "on purpose"}  # their body; bytes are sent as they are
        self.contexts: dict[str, SchemaRegistry] = {}  # by their names with colons
        self.url = ""

    def register(self, subject: str, schema: object, **more: Any) -> int:
        """Add a version to a subject; return the schema's id. The same schema has the same id."""
        found = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        if found not in self.schemas:
            self.schemas.append(found)
        number = self.schemas.index(found) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def guid(self, number: int) -> str:
        """Return the GUID of a schema."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(self.schemas[number - 1])))

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return status and body of an answer."""
        self.requests.append(f"{method} {path}")
        if self.failures:
            return self.failures.pop(0), self.failure
        for context, registry in self.contexts.items():
            if quote(context, safe="") in path:
                return registry._found(method, path.replace(quote(context, safe=""), ""), body)
        return self._found(method, path, body)

    def _found(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number] if method == "GET" and 0 < int(number) <= len(self.schemas):
                return 200, self.schemas[int(number) - 1]
            case ["schemas", "guids", guid] if guid in (guids := list(map(self.guid, range(1, len(self.schemas) + 1)))):
                return 200, {**self.schemas[guids.index(guid)], "guid": guid}
            case ["subjects", subject, "versions"] if method == "POST":
                more = {key: value for key, value in body.items() if key in ("schemaType", "references") and value}
                number = self.register(subject, body["schema"], **more)
                return 200, {"id": number, "guid": self.guid(number), "subject": subject, "version": 1, **body}
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                index = len(versions) if version == "latest" else int(version)
                number = versions[index - 1]
                return 200, {"subject": subject, "version": index, "id": number, **self.schemas[number - 1]}
        missing = "Schema" if path.startswith("/schemas/") else "Subject"
        return 404, {"error_code": 40401, "message": f"{missing} not found"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing: clients that refuse a certificate end their connections."""


@contextlib.contextmanager
def schema_registry(
    content: SchemaRegistry | None = None, *, host: str = "127.0.0.1", path: str = "", tls: ssl.SSLContext | None = None
) -> Iterator[SchemaRegistry]:
    """Serve a registry for the block: with the schemas of another one, below a path, or with TLS."""
    registry = SchemaRegistry()
    if content is not None:
        registry.schemas, registry.subjects = content.schemas, content.subjects

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            registry.headers.append({name.lower(): value for name, value in self.headers.items()})
            while registry.hangs.is_set():
                time.sleep(0.05)
            if self.headers.get("Authorization") in registry.logins and self.path.startswith(path):
                status, answer = registry.answer(self.command, self.path.removeprefix(path), body)
            else:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{registry.url}/schemas/ids/1")
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    shown = f"[{host}]" if ":" in host else host
    registry.url = f"{'http' if tls is None else 'https'}://{shown}:{server.server_port}{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
