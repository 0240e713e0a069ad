"""The script of ``helm test`` for the paths of a process, against a small server."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.chart.rendering import CHART

METRICS: Final = "bkheal_build_info 1\nbkheal_zookeeper_session_connected 1\n"


@contextmanager
def serving(pages: dict[str, str], token: str = "") -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            refused = token and self.headers.get("Authorization") != f"Bearer {token}"
            text = pages.get(self.path, "")
            self.send_response(401 if refused else 200 if text else 503)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def ask(url: str, *paths: str, **env: str) -> subprocess.CompletedProcess[str]:
    script = (CHART / "files" / "tests" / "answers.py").read_text()
    command = [sys.executable, "-c", script, url, *paths]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


def test_a_process_that_answers_passes() -> None:
    with serving({"/livez": "ok", "/metrics": METRICS}, token="t") as url:
        assert ask(url, "/livez", "/metrics", TOKEN="t").returncode == 0


def test_a_process_that_is_not_ready_fails() -> None:
    with serving({"/livez": "ok"}) as url:
        done = ask(url, "/livez", "/readyz")
    assert done.returncode != 0
    assert "503" in done.stderr


def test_metrics_without_the_expected_series_fail() -> None:
    with serving({"/metrics": "up 1\n"}) as url:
        done = ask(url, "/metrics")
    assert done.returncode != 0
    assert "has no bkheal_build_info" in done.stderr


def test_a_refused_token_fails() -> None:
    with serving({"/metrics": METRICS}, token="t") as url:
        assert ask(url, "/metrics", TOKEN="other").returncode != 0
