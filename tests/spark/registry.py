"""A schema registry on loopback with the paths of Confluent's API that its clients and this project use.

It keeps schemas in memory, checks user and password, and can fail on purpose.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

USER_INFO = "reader:canary-7f3a-registry-password"
TYPE = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """Schemas by id, and subjects as lists of ids."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.failures: list[int] = []  # statuses of the next answers
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

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and body of an answer."""
        self.requests.append(f"{method} {path}")
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "on purpose"}
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number] if method == "GET" and 0 < int(number) <= len(self.schemas):
                return 200, self.schemas[int(number) - 1]
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects", subject, "versions"] if method == "POST":
                more = {key: value for key, value in body.items() if key in ("schemaType", "references") and value}
                return 200, {"id": self.register(subject, body["schema"], **more)}
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                versions = self.subjects[subject]
                index = len(versions) if version == "latest" else int(version)
                number = versions[index - 1]
                return 200, {"subject": subject, "version": index, "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 40401, "message": "Subject not found"}


@contextlib.contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Serve a registry for the block."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else {}
            if self.headers.get("Authorization") == f"Basic {base64.b64encode(USER_INFO.encode()).decode()}":
                status, answer = registry.answer(self.command, self.path, body)
            else:
                status, answer = 401, {"error_code": 401, "message": "Unauthorized"}
            data = json.dumps(answer).encode()
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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
