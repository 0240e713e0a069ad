"""A server on loopback with the answers of ZooKeeper's admin server, or with wrong ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.deadlines import STATE_S


@dataclass
class Answer:
    """The answer of the server."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"last_zxid": "0x200000005"})
    sent: int | None = None
    """How many bytes of the body are sent; None: all."""
    then: threading.Event | None = None
    """The server pauses after ``sent`` bytes until this is set. If ``sent`` is 0, it pauses before the headers."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """The paths and authorizations of the received requests."""


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer.asked.append((self.path, self.headers.get("Authorization")))
            if answer.then is not None and answer.sent == 0:
                answer.then.wait(STATE_S)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.sent])
            self.wfile.flush()
            if answer.then is not None:
                answer.then.wait(STATE_S)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
