"""Wait for the HTTP answers of a started process."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.deadlines import STATE_S

ANSWER_S: Final = 30.0
"""The timeout of one request."""
_AGAIN_S: Final = 0.2


def wait_for_answer(url: str, process: subprocess.Popen[Any], log: Path) -> str:
    """Wait until ``url`` is served, and return its text."""
    deadline = time.monotonic() + STATE_S
    while True:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(url, timeout=ANSWER_S) as got,
        ):
            text: str = got.read().decode()
            return text
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{url} did not answer:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(_AGAIN_S)


def wait_for_line(pattern: str, process: subprocess.Popen[Any], log: Path) -> None:
    """Wait until the process has printed a line with this beginning."""
    deadline = time.monotonic() + STATE_S
    while not re.search(f"^{pattern}", reported := log.read_text(errors="replace"), re.MULTILINE):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it did not print {pattern!r}:\n{reported[-3000:]}")
        time.sleep(_AGAIN_S)
