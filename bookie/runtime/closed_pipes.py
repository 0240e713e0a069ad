"""Output to a pipe that nobody reads any more, such as that of ``bkheal audit run | head``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def unread_is_discarded(stream: TextIO) -> Iterator[None]:
    """Write to ``stream`` in the body, and flush it at the end. If its pipe is closed, everything else is discarded.

    So the exit code of the process is that of its work, and not that of the output.
    """
    try:
        yield
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())  # also for what Python writes at the end of the process
        os.close(null)
