"""The signals by which a supervisor ends a process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def set_on_stop_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` at SIGTERM or SIGINT while the body runs. Use it in the main thread."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
