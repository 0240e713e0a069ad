"""Standard streams that are closed (``>&-``), and output to a pipe that nobody reads any more (``| head``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def open_closed_streams() -> None:
    """Replace each closed standard stream by an empty one, so that no file or connection gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives


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
