"""Serves a folder as a bucket of an S3 store whose answers a test can hold. Loopback only.

Enough of S3 for pyarrow: HEAD and GET of an object, and a listing. What is written to it is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_BUCKET = "bucket"
_HOLD_S = 60.0


class SlowStore:
    """A folder as `location`. `hold` holds the next answer that says that a file of this name does not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held_name = ""
        self._is_held = threading.Event()
        self._open = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

            def do_HEAD(self) -> None:
                self._answer(with_body=False)

            def do_GET(self) -> None:
                self._answer(with_body=True)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self._send(200, b"", with_body=True)

            do_POST = do_DELETE = do_PUT

            def _answer(self, *, with_body: bool) -> None:
                parts = urlsplit(self.path)
                key = unquote(parts.path).removeprefix(f"/{_BUCKET}").lstrip("/")
                if key == "" and "list-type" in parse_qs(parts.query):
                    self._send(200, store.listing(parse_qs(parts.query)).encode(), with_body=True)
                    return
                content = store.read(key)
                self._send(404 if content is None else 200, content or b"", with_body=with_body)

            def _send(self, status: int, body: bytes, *, with_body: bool) -> None:
                given = self.headers.get("Range", "")
                size = len(body)
                if status == 200 and given.startswith("bytes="):
                    first, _, last = given.removeprefix("bytes=").partition("-")
                    body, status = body[int(first) : int(last or size) + 1], 206
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Last-Modified", formatdate(usegmt=True))
                self.send_header("ETag", '"0"')
                if status == 206:
                    self.send_header("Content-Range", f"bytes {first}-{int(first) + len(body) - 1}/{size}")
                self.end_headers()
                if with_body:
                    self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def location(self) -> str:
        """Return the location for `checkpointLocation`."""
        port = self._server.server_address[1]
        return f"s3a://{_BUCKET}/{self.folder.name}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"

    def hold(self, name: str) -> None:
        """Hold the next answer that says that this file does not exist, until `release`."""
        self._held_name = f"{self.folder.name}/{name}"

    def wait_held(self) -> None:
        """Wait until the answer is held."""
        assert self._is_held.wait(_HOLD_S), f"nobody has asked for {self._held_name}"

    def release(self) -> None:
        """Let the answer go. It says what was true when it was held."""
        self._open.set()

    def read(self, key: str) -> bytes | None:
        """Return the object, None if there is none."""
        path = self.folder.parent / key
        try:
            return path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            pass
        if key == self._held_name:
            self._held_name = ""
            self._is_held.set()
            self._open.wait(_HOLD_S)
        return None

    def listing(self, query: dict[str, list[str]]) -> str:
        """Return the answer to ListObjectsV2."""
        prefix = query.get("prefix", [""])[0]
        folder = self.folder.parent / prefix
        found = sorted(folder.iterdir()) if prefix.endswith("/") and folder.is_dir() else []
        files = "".join(
            f"<Contents><Key>{escape(prefix + each.name)}</Key><Size>{each.stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for each in found
            if each.is_file()
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(prefix + each.name)}/</Prefix></CommonPrefixes>"
            for each in found
            if each.is_dir()
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult>'
            f"<Name>{_BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(found)}</KeyCount>{files}{folders}</ListBucketResult>"
        )

    def close(self) -> None:
        """End the server."""
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)


@contextmanager
def slow_store(folder: Path) -> Iterator[SlowStore]:
    """Serve a folder."""
    store = SlowStore(folder)
    try:
        yield store
    finally:
        store.close()
