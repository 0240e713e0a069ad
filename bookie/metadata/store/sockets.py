"""Sockets on which kazoo's thread waits: the connection to the server, and the wake-up for new requests.

The thread competes with the event loop for the interpreter, and may lose it for milliseconds at each system call. kazoo
makes about twenty calls for each request and its reply, most of them to check whether a socket is ready. Here, a socket
reads ahead, and a read or write is tried without a check, so a request and its reply need about five calls.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from typing_extensions import Buffer, override

READ_AHEAD_BYTES: Final = 64 * 1024
"""Maximum number of bytes read ahead from a socket. Replies that arrive together are read together."""

_T = TypeVar("_T", bound="Receiver")


class WakeUp:
    """kazoo's wake-up channel, one byte per queued request as with its socket pair. Safe between threads.

    A socket pair holds only about 280 such bytes on Linux. Then ``send`` blocks the event loop, permanently if kazoo is
    waiting to reconnect. Here the bytes are counted, and an eventfd is set while there are any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # after a close in one thread, the descriptor may belong to another file
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._count = 0

    @property
    def is_set(self) -> bool:
        """Whether there is a byte to receive."""
        return self._count > 0

    def fileno(self) -> int:
        """Return the descriptor, readable while ``is_set``."""
        return self._fd

    def send(self, data: bytes) -> int:
        """Add the bytes of ``data``.

        Raises:
            ValueError: it is closed.
        """
        with self._lock:
            if not self._count:
                os.eventfd_write(self._fd, 1)
            self._count += len(data)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Take one byte.

        Raises:
            BlockingIOError: there is none.
            ValueError: it is closed.
        """
        with self._lock:
            if self._count <= 1:
                os.eventfd_read(self._fd)
                self._count = 0
            else:
                self._count -= 1
        return b"\0"

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


class _ReadAheadSocket(socket.socket):
    """A socket that reads ahead, and that kazoo uses without a check: kazoo waits and tries again if it was not ready.

    kazoo does so only after the two TLS errors, so a plain socket raises them too.
    """

    _ahead: memoryview = memoryview(b"")
    """Received bytes not yet returned to kazoo."""
    is_tried_to_receive = False
    """Whether to read at once: the socket was readable, and nothing was read since."""
    is_tried_to_send = True
    """Whether to write at once: the buffer had room at the last write."""

    @override
    def recv(self, bufsize: int = 1024, flags: int = 0, /) -> bytes:
        """Return up to ``bufsize`` bytes; none at the end of the stream.

        Raises:
            SSLWantReadError: nothing has arrived.
        """
        if not self._ahead:
            self.is_tried_to_receive = False
            arrived = self._receive(max(bufsize, READ_AHEAD_BYTES), flags)
            if len(arrived) <= bufsize:
                return arrived
            self._ahead = memoryview(arrived)
        taken, self._ahead = bytes(self._ahead[:bufsize]), self._ahead[bufsize:]
        return taken

    def _receive(self, size: int, flags: int) -> bytes:
        try:
            return super().recv(size, flags)
        except BlockingIOError as error:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "nothing has arrived") from error

    @override
    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Send the beginning of ``data``, and return the number of bytes sent.

        Raises:
            SSLWantWriteError: there is no room.
        """
        try:
            return super().send(data, flags)
        except BlockingIOError as error:
            self.is_tried_to_send = False
            raise ssl.SSLWantWriteError(ssl.SSL_ERROR_WANT_WRITE, "there is no room to send") from error
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self.is_tried_to_send = False
            raise

    def pending(self) -> int:
        """Return the number of bytes available without a system call. Called by kazoo."""
        return len(self._ahead)


class PlainSocket(_ReadAheadSocket):
    """A connection without TLS."""

    @classmethod
    def of(cls, connected: socket.socket) -> PlainSocket:
        """Take over the descriptor of ``connected``, which is unusable afterwards."""
        timeout_s = connected.gettimeout()
        taken = cls(connected.family, connected.type, connected.proto, connected.detach())
        taken.settimeout(timeout_s)
        return taken


class TlsSocket(_ReadAheadSocket, ssl.SSLSocket):
    """Reports why the server ended the connection: in TLS 1.3, a refusal shows only at the client's first read."""

    refused: Callable[[str], None]
    """Called with the alert of a server that does not accept this side."""

    @override
    def _receive(self, size: int, flags: int) -> bytes:
        try:
            return super()._receive(size, flags)
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                self.refused(error.reason)
            raise

    @override
    def pending(self) -> int:
        """Count decrypted bytes as well: otherwise a reply in them would not be read until the next one arrives."""
        return super().pending() + ssl.SSLSocket.pending(self)


Receiver = socket.socket | WakeUp


def wait_receivable(receivers: Sequence[Receiver], timeout_s: float | None) -> list[Receiver]:
    """Return the receivers ready to read, once there is one; none after ``timeout_s`` (None: no limit).

    Every ready receiver is in the result. A socket of this module may be returned although it is not ready: its read
    then raises an error, and the next call waits for it.

    Raises:
        ValueError: one is closed.
    """
    ready = [each for each in receivers if _is_receivable(each)]
    asked = [each for each in receivers if each not in ready and not (ready and isinstance(each, WakeUp))]
    if asked:
        for each in _poll(asked, select.POLLIN | select.POLLPRI, 0 if ready else timeout_s):
            if isinstance(each, _ReadAheadSocket):
                each.is_tried_to_receive = True
            ready.append(each)
    return ready


def wait_sendable(senders: Sequence[socket.socket], timeout_s: float | None) -> list[socket.socket]:
    """Return the senders ready to write, like ``wait_receivable``.

    Raises:
        ValueError: one is closed.
    """
    ready: list[socket.socket] = [
        each for each in senders if isinstance(each, _ReadAheadSocket) and each.is_tried_to_send
    ]
    if ready:
        return ready
    for each in _poll(senders, select.POLLOUT, timeout_s):
        if isinstance(each, _ReadAheadSocket):
            each.is_tried_to_send = True
        ready.append(each)
    return ready


def _is_receivable(each: Receiver) -> bool:
    if isinstance(each, WakeUp):
        return each.is_set
    return isinstance(each, _ReadAheadSocket) and (each.is_tried_to_receive or each.pending() > 0)


def _poll(asked: Sequence[_T], events: int, timeout_s: float | None) -> list[_T]:
    poll = select.poll()
    for each in asked:
        poll.register(each, events)
    found = dict(poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000)))
    return [each for each in asked if each.fileno() in found]
