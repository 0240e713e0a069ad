"""One TCP connection to a bookie: requests are sent in batches, and answers may arrive in any order (S18).

An answer counts only for the request with its transaction id, its operation and its ledger (and entry, if it contains
one); transaction ids are never used twice. Answers without a matching request are dropped. Bytes that are not a message
end the connection, and requests in flight get the reason. An answer that is too long is an I/O error of its own
request only. Deadlines and the meaning of requests are left to the callers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError
from typing_extensions import override

from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import FRAME_BYTES_MAX, FrameSplitter, MalformedFrameError, framed
from bookie.wire.apache.statuses import status_of_code
from bookie.wire.apache.stream import IN_FLIGHT_MAX, ConnectionLostError, Stream
from bookie.wire.apache.too_long import decode_answer_ids, too_long_detail
from bookie.wire.port import Status

_log = logging.getLogger(__name__)

_LOGIN_OPTIONS_HINT: Final = "give --sasl-username and --sasl-password-file"
_TLS_OPTIONS_HINT: Final = "give --tls-ca, and --tls-cert with --tls-key if it asks for certificates"
LOGIN_DEMANDED: Final = f"the bookie demands a login: {_LOGIN_OPTIONS_HINT}"
TLS_DEMANDED: Final = f"the bookie demands TLS: {_TLS_OPTIONS_HINT}"
TLS_OR_LOGIN_DEMANDED: Final = (
    f"the bookie demands TLS ({_TLS_OPTIONS_HINT}) or a login ({_LOGIN_OPTIONS_HINT}), or both"
)
"""Bookies refuse a client without TLS and login in the same way, whichever of the two they demand."""
CERTIFICATE_REFUSED: Final = (
    f"this client's certificate is not enough for the bookie (--tls-cert and --tls-key), or {LOGIN_DEMANDED}"
)

_PARTS: Final = {
    pb.READ_ENTRY: "readResponse",
    pb.ADD_ENTRY: "addResponse",
    pb.AUTH: "authResponse",
    pb.WRITE_LAC: "writeLacResponse",
    pb.READ_LAC: "readLacResponse",
    pb.GET_BOOKIE_INFO: "getBookieInfoResponse",
    pb.START_TLS: "startTLSResponse",
    pb.FORCE_LEDGER: "forceLedgerResponse",
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerResponse",
}
"""The field with the content in the answer to each operation."""
_STATUSES_WITH_CONTENT: Final = (pb.EOK, pb.ENOLEDGER, pb.ENOENTRY)
"""Statuses about a ledger, which the content of the answer must name."""
_OPERATIONS_WITHOUT_STATUS: Final = (pb.AUTH, pb.START_TLS)
"""Operations whose content has no status: the outcome is the status of the answer, even without content."""


@dataclass(frozen=True, slots=True)
class ApacheAnswer:
    """The outcome of a request. ``content`` is the operation's part of the answer; None if there is only a status."""

    status: Status
    content: Any = field(default=None, repr=False)
    detail: str = ""
    """The reason, if known on this side."""


STORED_ANSWER: Final = ApacheAnswer(Status.OK)
"""The answer to an add if its bytes are the expected ones; any other answer is parsed."""


class AnswerWaiter(Protocol):
    """The recipient of an answer. Exactly one of these methods is called, once."""

    __slots__ = ()

    def answered(self, answer: ApacheAnswer) -> None:
        """Receive the answer."""
        ...

    def lost(self, error: ConnectionLostError) -> None:
        """Receive the reason why there will be no answer."""
        ...


@dataclass(slots=True)
class ExpectedAnswer:
    """The fields that an answer must match, apart from its transaction id. None: the answer need not have the field."""

    operation: int
    ledger_id: int | None
    entry_id: int | None
    waiter: AnswerWaiter


class Version3Connection(Stream):
    """A connection that speaks version 3. Belongs to one event loop."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, in_flight_max: int = IN_FLIGHT_MAX) -> None:
        super().__init__(FrameSplitter(frame_bytes_max, self._too_long), in_flight_max)
        self.frame_bytes_max = frame_bytes_max
        self._next_id = 1
        self._expected: dict[int, ExpectedAnswer] = {}
        self._stored: dict[bytes, int] = {}
        """Transaction ids of adds by the bytes of their successful answer."""
        self._is_refused_after_tls = False
        self.is_encrypted = False
        self.is_logged_in = False
        """True if the bookie accepted our login, or needs none."""
        self.is_logging_in = False
        """Whether a login is under way. A refusal of our identity is then the answer to one request; at other times it
        closes the connection."""
        self.is_without_lists = False
        """Whether the bookie answers other requests and leaves lists of entries unanswered (``listing``)."""

    @property
    def transport(self) -> asyncio.Transport:
        """The connection's own transport; only for a handshake that replaces it."""
        assert self._transport is not None
        return self._transport

    def secured(self, transport: asyncio.Transport) -> None:
        """Continue over ``transport``, which encrypts."""
        self._transport = transport
        self.is_encrypted = True

    @property
    def is_between_frames(self) -> bool:
        """Whether all received bytes have been consumed."""
        return self._splitter.is_between_frames

    # The methods for callers

    async def ask(
        self, operation: int, request: pb.Request, ledger_id: int | None = None, entry_id: int | None = None
    ) -> ApacheAnswer:
        """Send one request and wait for its answer. ``request`` needs a header only for a priority.

        Raises:
            ConnectionLostError: the connection ended before the answer came.
        """
        await self.ready()
        waiter = FutureWaiter()
        txn_id, frame = self.prepare(request, ExpectedAnswer(operation, ledger_id, entry_id, waiter))
        self.send([frame])
        try:
            return await waiter.future
        finally:
            self.forget([txn_id])

    def prepare(self, request: pb.Request, expected: ExpectedAnswer) -> tuple[int, bytes]:
        """Give ``request`` the next transaction id, and expect its answer. The caller must send its frame at once."""
        txn_id = self.take_ids(1)
        header = request.header
        header.version = pb.VERSION_THREE
        header.operation = expected.operation  # type: ignore[assignment]
        header.txnId = txn_id
        self._expected[txn_id] = expected
        return txn_id, framed(request.SerializeToString())

    def take_ids(self, count: int) -> int:
        """Reserve ``count`` consecutive transaction ids and return the first."""
        first = self._next_id
        self._next_id += count
        return first

    def expect_stored(self, txn_id: int, expected: ExpectedAnswer, answer: bytes) -> None:
        """Expect the answer to an add; ``answer`` is its body after a success."""
        self._expected[txn_id] = expected
        self._stored[answer] = txn_id

    def forget_stored(self, adds: Iterable[tuple[int, bytes]]) -> None:
        """Drop later answers to these adds, given as pairs of transaction id and ``answer``."""
        adds = list(adds)
        for _, answer in adds:
            self._stored.pop(answer, None)
        self.forget(txn_id for txn_id, _ in adds)

    def forget(self, txn_ids: Iterable[int]) -> None:
        """Drop later answers to these requests."""
        for txn_id in txn_ids:
            self._expected.pop(txn_id, None)
        self._may_go.set()

    # The methods for the stream

    @property
    def _in_flight(self) -> int:
        return len(self._expected)

    def _fail_all(self, why: str) -> None:
        expected = list(self._expected.values())
        self._expected.clear()
        self._stored.clear()
        for one in expected:
            one.waiter.lost(ConnectionLostError(why))

    def _too_long(self, head: bytes, frame_bytes: int) -> None:
        operation, txn_id = decode_answer_ids(head)
        expected = self._expected.get(txn_id)
        if expected is not None and expected.operation == operation:
            del self._expected[txn_id]
            detail = too_long_detail(frame_bytes, self.frame_bytes_max)
            expected.waiter.answered(ApacheAnswer(Status.IO_ERROR, detail=detail))

    def _receive(self, body: bytes) -> None:
        added = self._stored.pop(body, None)
        if added is not None:
            known = self._expected.pop(added, None)
            if known is not None:
                known.waiter.answered(STORED_ANSWER)
            return
        response = pb.Response()
        try:
            response.ParseFromString(body)
        except DecodeError as error:
            raise MalformedFrameError(f"{len(body)} bytes that cannot be parsed") from error
        if not response.IsInitialized():
            raise MalformedFrameError("a required field is missing or has an unknown value")
        operation, txn_id = response.header.operation, response.header.txnId
        expected = self._expected.get(txn_id)
        if expected is None or expected.operation != operation:
            # A late answer to START_TLS: the certificate alone is not enough for the bookie. A login may be enough.
            self._is_refused_after_tls |= operation == pb.START_TLS and response.status != pb.EOK
            _log.debug("answer dropped", extra={"txn_id": txn_id, "operation": operation})
            return
        part = _PARTS[operation]
        content = getattr(response, part) if response.HasField(part) else None
        code: int = response.status
        if operation not in _OPERATIONS_WITHOUT_STATUS:
            if content is None:
                if not self._is_refusal(code):
                    return
            elif not _is_answer_to(expected, content):
                _log.debug("answer dropped", extra={"txn_id": txn_id, "operation": operation})
                return
            elif content.status != code:
                code = pb.EIO  # the answer contradicts itself: it is neither a success nor "never stored" (S6)
        del self._expected[txn_id]
        expected.waiter.answered(ApacheAnswer(status_of_code(code), content))

    def _is_refusal(self, code: int) -> bool:
        """Return whether an answer without content refuses the request. Refusing the client ends the connection."""
        if code in _STATUSES_WITH_CONTENT:
            raise MalformedFrameError(f"an answer with status {code} names no operation")
        if code == pb.EUA and not self.is_logging_in:  # of the client; the refusal of a ledger's password has content
            self.end(self._demanded_security)
            return False
        return True

    @property
    def _demanded_security(self) -> str:
        """The requirement of a bookie that refused a client, as far as it can be determined."""
        if self._is_refused_after_tls:
            return CERTIFICATE_REFUSED
        if self.is_encrypted:
            return LOGIN_DEMANDED
        return TLS_DEMANDED if self.is_logged_in else TLS_OR_LOGIN_DEMANDED


class FutureWaiter(AnswerWaiter):
    """A waiter that completes a future."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[ApacheAnswer] = asyncio.get_running_loop().create_future()

    @override
    def answered(self, answer: ApacheAnswer) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    @override
    def lost(self, error: ConnectionLostError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # a waiting caller gets it; without one it is dropped


def _is_answer_to(expected: ExpectedAnswer, content: Any) -> bool:
    if expected.ledger_id is not None and content.ledgerId != expected.ledger_id:
        return False
    return expected.entry_id is None or bool(content.entryId == expected.entry_id)
