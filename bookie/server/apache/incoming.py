"""Decoding of a client's bytes to requests, in its version of the protocol.

The version is determined for each frame, as in Apache's bookies: after the first frame that is not version 3, the
connection permanently uses version 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie.server.apache.dialect_v2 import DialectV2
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.server.apache.fast_adds import take_adds_v2, take_adds_v3
from bookie.server.apache.frames import FrameBlocks
from bookie.server.apache.grouping import AddGroups
from bookie.server.apache.requests import Add, ImmediateAnswer, Other, Request, StartTls
from bookie.wire.apache.framing import LENGTH_SIZE, MalformedFrameError, framed

_REQUESTS_MAX: Final = 256
"""The most requests other than adds that are decoded at once. A piece of the stream may have thirty thousand."""


class Fresh:
    """Requests from one piece of the stream.

    Attributes:
        adds: the adds, in groups.
        answers: the answer frames of requests that need no storage.
        others: all other requests.
    """

    __slots__ = ("adds", "answers", "others")

    def __init__(self) -> None:
        self.adds = AddGroups()
        self.answers: list[bytes] = []
        self.others: list[Other] = []

    @property
    def is_full(self) -> bool:
        """Whether no more may be decoded at once."""
        return self.adds.is_full or len(self.others) + len(self.answers) >= _REQUESTS_MAX

    @property
    def is_empty(self) -> bool:
        """Whether there is no request."""
        return not (self.adds.groups or self.answers or self.others)

    def put(self, request: Add | Other) -> None:
        """Add a request."""
        if isinstance(request, Add):
            self.adds.add(request.kind, [request.packet], [request.accepted])
        elif isinstance(request, ImmediateAnswer):
            self.answers.append(framed(request.answer))
        else:
            self.others.append(request)


class IncomingRequests:
    """The decoder of one connection."""

    def __init__(self, frame_bytes_max: int, *, may_serve: bool) -> None:
        """Prepare for the first bytes. ``may_serve`` is passed to the dialects."""
        self.frames = FrameBlocks(frame_bytes_max)
        self.must_be_over = False
        """True after START_TLS was answered, when cleartext is refused."""
        self.may_serve = may_serve
        """False as long as the connection must be encrypted first."""
        self._v3, self._v2 = DialectV3(may_serve=may_serve), DialectV2(may_serve=may_serve)
        self._is_v2 = False

    def secured(self) -> None:
        """Serve all requests from now on, because everything that is received now was encrypted."""
        self._v3, self._v2, self.may_serve = DialectV3(), DialectV2(), True
        self.must_be_over = False

    def feed(self, data: bytes) -> Iterator[Fresh | StartTls]:
        """Yield the requests in the frames that ``data`` completes, START_TLS separately after earlier ones.

        The rest of ``data`` is decoded only when the next value is requested. The caller must request all of them
        before it calls this again.

        Raises:
            MalformedFrameError: a frame is malformed, or cleartext followed START_TLS.
        """
        fresh = Fresh()
        for block, start in self.frames.feed(data):
            start = self._take_adds(block, start, fresh.adds)
            while True:
                if fresh.is_full:
                    yield fresh
                    fresh = Fresh()
                    start = self._take_adds(block, start, fresh.adds)
                    continue
                if (end := self.frames.frame_end(block, start)) is None:
                    break
                self._refuse_clear_text()
                request = self._decode(block[start + LENGTH_SIZE : end])
                if isinstance(request, StartTls):
                    yield fresh
                    fresh = Fresh()
                    yield request
                else:
                    fresh.put(request)
                start = self._take_adds(block, end, fresh.adds)
            self.frames.keep(block, start)
        if self.frames.rest_bytes:
            self._refuse_clear_text()
        yield fresh

    def _take_adds(self, block: bytes, start: int, adds: AddGroups) -> int:
        """Decode adds in the usual form, up to the first other frame, and return the start of that frame."""
        if not self.may_serve:
            return start
        if self._is_v2:
            return take_adds_v2(block, start, self.frames.frame_bytes_max, self._v2, adds)
        return take_adds_v3(block, start, self.frames.frame_bytes_max, self._v3, adds)

    def _decode(self, body: bytes) -> Request:
        if not self._is_v2:
            try:
                return self._v3.decode(body)
            except MalformedFrameError:
                self._is_v2 = True
        return self._v2.decode(body)

    def _refuse_clear_text(self) -> None:
        if self.must_be_over:
            raise MalformedFrameError("the client continued in plaintext after START_TLS")
