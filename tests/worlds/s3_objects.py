"""The part of S3 that pyarrow's file system uses, on loopback and in memory, for tests without another server.

A test can read and change its objects. The server can deny every request or stay silent.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_XMLNS: Final = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_DATE: Final = "Thu, 01 Jan 2026 00:00:00 GMT"


class S3Objects:
    """A bucket's objects, by key."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.objects: dict[str, bytes] = {}
        self.is_denied = False
        self.answers = threading.Event()
        """The server answers no request while this is not set."""
        self.answers.set()
        self.requests: list[str] = []
        self.endpoint = ""


@contextmanager
def s3_objects(bucket: str) -> Iterator[S3Objects]:
    """Run a server with an empty bucket."""
    state = S3Objects(bucket)

    class Handler(_Handler):
        s3 = state

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield state
        finally:
            state.answers.set()
            server.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    s3: S3Objects

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(60)

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self._body()
        self.s3.answers.wait(60)
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        self.s3.requests.append(f"{self.command} {self.path}")
        if self.s3.is_denied:
            self._error(403, "AccessDenied")
        elif bucket != self.s3.bucket:
            self._error(404, "NoSuchBucket")
        elif not key:
            self._bucket(query, body)
        else:
            self._object(key, query, body)

    def _bucket(self, query: dict[str, str], body: bytes) -> None:
        if self.command == "GET":
            self._list(query)
            return
        if self.command == "POST" and "delete" in query:
            for element in ElementTree.fromstring(body).iter():
                if element.tag.endswith("}Key") or element.tag == "Key":
                    self.s3.objects.pop(element.text or "", None)
            self._answer(200, f"<DeleteResult {_XMLNS}></DeleteResult>".encode())
            return
        self._answer(200, b"")

    def _list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        contents, folders = [], set()
        for key, content in sorted(self.s3.objects.items()):
            if not key.startswith(prefix):
                continue
            head, slash, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if slash:
                folders.add(prefix + head + slash)
            else:
                contents.append((key, content))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<Size>{len(content)}</Size></Contents>"
            for key, content in contents
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders))
        count = len(contents) + len(folders)
        text = f"<ListBucketResult {_XMLNS}><IsTruncated>false</IsTruncated><KeyCount>{count}</KeyCount>{rows}"
        self._answer(200, f"{text}</ListBucketResult>".encode())

    def _object(self, key: str, query: dict[str, str], body: bytes) -> None:
        if self.command == "PUT":
            self.s3.objects[key] = body
            self._answer(200, b"", {"ETag": f'"{md5(body, usedforsecurity=False).hexdigest()}"'})
        elif self.command == "DELETE":
            self.s3.objects.pop(key, None)
            self._answer(204, b"")
        elif key not in self.s3.objects or self.command == "POST":
            self._error(404, "NoSuchKey")
        else:
            self._send(self.s3.objects[key])

    def _send(self, content: bytes) -> None:
        header, status = self.headers.get("Range", ""), 200
        more = {"ETag": '"1"', "Last-Modified": _DATE, "Accept-Ranges": "bytes"}
        if header.startswith("bytes="):
            first, _, last = header.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
            more["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content, status = content[start : end + 1], 206
        self._answer(status, content, more)

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        headers: dict[str, Any] = {"Content-Type": "application/xml", "Content-Length": len(body)}
        for name, value in (headers | (more or {})).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # http.server has answered it
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = _chunked(self.rfile)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _unsigned(body) if "aws-chunked" in self.headers.get("Content-Encoding", "") else body


def _chunked(source: Any) -> bytes:
    found = b""
    while size := int(source.readline().partition(b";")[0], 16):
        found += source.read(size)
        source.readline()
    while source.readline().strip():
        pass
    return found


def _unsigned(body: bytes) -> bytes:
    """Return the content of a body in the encoding ``aws-chunked``."""
    found, rest = b"", body
    while rest:
        line, _, rest = rest.partition(b"\r\n")
        if not (size := int(line.partition(b";")[0], 16)):
            break
        found, rest = found + rest[:size], rest[size + 2 :]
    return found
