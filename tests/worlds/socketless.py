"""An asyncio transport without a socket: it also takes the place of the socket."""

from __future__ import annotations

import asyncio
from typing import Any


class SocketlessTransport(asyncio.Transport):
    """A transport that records whether its connection reads."""

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
