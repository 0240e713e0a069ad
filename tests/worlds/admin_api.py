"""A small HTTP server on loopback that replaces the admin API of another program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """A received request."""

    method: str
    path: str
    """The requested path with its query."""
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int = 204
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class AdminApi:
    """The requests to the server, and its answers."""

    reply: Callable[[Asked], Reply] = lambda asked: Reply()
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(reply: Callable[[Asked], Reply] = lambda asked: Reply(), host: str = "127.0.0.1") -> Iterator[AdminApi]:
    """Serve until the end of the block. Requests are answered concurrently."""
    api = AdminApi(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Asked(self.command, self.path, dict(self.headers), body)
            api.asked.append(asked)
            answer = api.reply(asked)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def do_GET(self) -> None:
            self.do_PUT()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        api.url = f"http://{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join(20)
