"""Standard streams that are closed (``>&-``), and output to a pipe whose reader has ended (``| head``)."""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from typing_extensions import override

STANDARD_OUTPUT: Final = "standard output"


def prepare_streams() -> None:
    """Open each closed standard stream, and discard output to standard error after its reader has ended.

    If a stream stayed closed, the next file or connection would get its number. A process never fails because the
    reader of its messages and errors has ended. An ``OSError`` of standard output names it, as that of a file names the
    file: its disk may be full.
    """
    is_open = sys.stdout is not None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
    if is_open:
        sys.stdout = _named(sys.stdout)
    if _is_pipe(sys.stderr):
        buffer = io.BufferedWriter(_DiscardingPipe(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(buffer, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _Named(io.FileIO):
    """The standard output, named in its errors."""

    @override
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def _named(stream: TextIO) -> TextIO:
    """Return the same stream with the same buffering, and with its name in errors."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        raw = _Named(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # without a number
        return stream
    is_buffered = isinstance(stream.buffer, io.BufferedWriter)  # not with PYTHONUNBUFFERED
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if is_buffered else raw,
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _DiscardingPipe(io.FileIO):
    """A pipe that discards all output after its reader has ended."""

    @override
    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def _is_pipe(stream: TextIO) -> bool:
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except OSError:  # also raised by a stream without a file descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def flush_or_discard(stream: TextIO) -> OSError | None:
    """Flush a standard stream. If this fails, return the error, and discard all further output to the stream.

    So Python's own flush at the end of the process succeeds and does not change the exit code.
    """
    try:
        stream.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        return error
    return None


@contextmanager
def discard_unread_output(stream: TextIO) -> Iterator[None]:
    """Flush ``stream`` after the body. If its pipe is closed, end the body, and discard all further output.

    So the exit code of the process depends on its work, and not on the reader of its output.

    Raises:
        OSError: the output failed for another reason.
    """
    try:
        yield
    except BrokenPipeError:
        flush_or_discard(stream)
    else:
        error = flush_or_discard(stream)
        if error is not None and not isinstance(error, BrokenPipeError):
            raise error
