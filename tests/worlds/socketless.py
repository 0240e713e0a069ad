"""A transport of asyncio without a socket, which counts as its own socket."""

from __future__ import annotations

import asyncio
from typing import Any


class SocketlessTransport(asyncio.Transport):
    """Notes whether its connection reads."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, *_: int) -> None:
        pass

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass
