"""Version 3 on one connection: the codec between protobuf messages, requests and outcomes.

Answers contain version three, the operation and the txnId of the request. The outcome is in the top-level message, and
also in the part of the operation. Answers without such a part (login, TLS, unknown operations, refusals) have it only
at the top level.

Source: docs/formats.md#version-3, #operations.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from google.protobuf.message import DecodeError
from typing_extensions import override

from bookie.model.ids import NO_ENTRY, EntryId, LedgerId
from bookie.server.apache.fast_reads import success_frames_v3
from bookie.server.apache.requests import (
    Add,
    AddKind,
    Dialect,
    ImmediateAnswer,
    Info,
    ListEntries,
    LongPoll,
    Read,
    ReadLac,
    Request,
    StartTls,
    WriteLac,
)
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache.framing import LENGTH_SIZE, MalformedFrameError, framed
from bookie.wire.apache.statuses import code_of_status
from bookie.wire.port import Status

_REPEATED_BYTES_MAX: Final = 64
"""The largest answer that repeats a header. The fields of one have at most 30 bytes."""
AUTH_DISABLED: Final = "AuthDisabledPlugin"
"""The name that a bookie without a login sends; clients treat it as a success."""
_TOTAL_DISK_CAPACITY: Final = 1
_FREE_DISK_SPACE: Final = 2

_LEDGER_ID: Final = struct.Struct(">q")

_PARTS: Final[Mapping[int, tuple[str, str]]] = {
    pb.READ_ENTRY: ("readRequest", "readResponse"),
    pb.ADD_ENTRY: ("addRequest", "addResponse"),
    pb.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
    pb.READ_LAC: ("readLacRequest", "readLacResponse"),
    pb.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
    pb.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: ("getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
}
"""The parts of answers that have a status of their own."""


class DialectV3(Dialect):
    """Version 3 of the protocol. An object belongs to one connection, because it reuses its answer messages."""

    def __init__(self, *, may_serve: bool = True) -> None:
        """Without ``may_serve``, everything but login and START_TLS is refused, because the connection must use TLS."""
        self._may_serve = may_serve
        self._accepted = _response(pb.ADD_ENTRY, 0, pb.EOK)
        self._accepted.addResponse.status = pb.EOK
        self._decoders: Mapping[int, Callable[[pb.Request], Request]] = {
            pb.READ_ENTRY: self._read,
            pb.ADD_ENTRY: self._add,
            pb.AUTH: _auth,
            pb.WRITE_LAC: _write_lac,
            pb.READ_LAC: _read_lac,
            pb.GET_BOOKIE_INFO: _info,
            pb.START_TLS: _start_tls,
            pb.FORCE_LEDGER: _force,
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER: _list_entries,
        }

    @override
    def decode(self, body: bytes) -> Request:
        """Decode a frame. A message without a required field is malformed unless its operation is unknown."""
        try:
            request = pb.Request.FromString(body)
        except DecodeError as error:
            raise MalformedFrameError("not a message of version 3") from error
        if not request.IsInitialized():
            return _unknown_operation(request)
        operation = request.header.operation
        if not self._may_serve and operation not in (pb.AUTH, pb.START_TLS):
            return ImmediateAnswer(_header_only_refusal(request, pb.EUA))
        if request.header.version != pb.VERSION_THREE:
            return ImmediateAnswer(_refused(request, pb.EBADVERSION))
        if operation in _PARTS and not request.HasField(_PARTS[operation][0]):
            return ImmediateAnswer(_header_only_refusal(request, pb.EBADREQ))
        return self._decoders[operation](request)

    def _add(self, request: pb.Request) -> Request:
        add = request.addRequest
        packet = add.body
        stored_in = _LEDGER_ID.unpack_from(packet)[0] if len(packet) >= _LEDGER_ID.size else add.ledgerId
        is_recovery = add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag")
        kind = AddKind(self, LedgerId(stored_in), add.masterKey, is_recovery)
        accepted = self._accepted
        accepted.header.txnId = request.header.txnId
        accepted.addResponse.ledgerId, accepted.addResponse.entryId = add.ledgerId, add.entryId
        return Add(kind, packet, framed(accepted.SerializeToString()))

    def _read(self, request: pb.Request) -> Request:
        read, txn = request.readRequest, request.header.txnId
        ledger_id, entry_id = LedgerId(read.ledgerId), EntryId(read.entryId)
        flag = read.flag if read.HasField("flag") else None
        if flag == pb.ReadRequest.FENCE_LEDGER:
            if not read.HasField("masterKey"):
                return ImmediateAnswer(_refused(request, pb.EUA))
            return Read(self, txn, ledger_id, entry_id, read.masterKey)
        wants_entry = flag == pb.ReadRequest.ENTRY_PIGGYBACK
        if wants_entry and (entry_id != NO_ENTRY or not read.HasField("previousLAC")):
            return ImmediateAnswer(_refused(request, pb.EBADREQ))
        if read.HasField("previousLAC"):
            wait_s = max(read.timeOut, 0) / 1000
            return LongPoll(self, txn, ledger_id, entry_id, EntryId(read.previousLAC), wait_s, wants_entry)
        return Read(self, txn, ledger_id, entry_id, None)

    @override
    def refused(self, accepted: bytes, status: Status) -> bytes:
        response = pb.Response.FromString(accepted[LENGTH_SIZE:])
        response.status = response.addResponse.status = code_of_status(status)
        return framed(response.SerializeToString())

    @override
    def was_read(self, read: Read, status: Status, packet: bytes, known_lac: int | None) -> Sequence[bytes]:
        if status is Status.OK:
            return success_frames_v3(read.tag, read.ledger_id, read.entry_id, packet, known_lac)
        response = _read_response(read.tag, code_of_status(status), read.ledger_id, read.entry_id)
        return (framed(response.SerializeToString()),)


def polled(poll: LongPoll, entry_id: int, packet: bytes | None, lac: int, updated_ms: int | None) -> bytes:
    """Return the answer to a successful long poll with an entry. Without ``packet``, the entry is not here (yet)."""
    response = _read_response(poll.tag, pb.EOK, poll.ledger_id, entry_id)
    part = response.readResponse
    part.maxLAC = lac
    if packet is not None:
        part.body = packet
    if updated_ms is not None:
        part.lacUpdateTimestamp = updated_ms
    return response.SerializeToString()


def failed_poll_answer(poll: LongPoll, status: Status) -> bytes:
    """Return the answer to a failed long poll."""
    return _read_response(poll.tag, code_of_status(status), poll.ledger_id, poll.entry_id).SerializeToString()


def lac_answer(request: ReadLac, status: Status, explicit: bytes, last_entry: bytes | None) -> bytes:
    """Return the answer to READ_LAC."""
    code = code_of_status(status)
    response = _response(pb.READ_LAC, request.tag, code)
    part = response.readLacResponse
    part.status, part.ledgerId = code, request.ledger_id
    if explicit:
        part.lacBody = explicit
    if last_entry is not None:
        part.lastEntryBody = last_entry
    return response.SerializeToString()


def write_lac_answer(request: WriteLac, status: Status) -> bytes:
    """Return the answer to WRITE_LAC."""
    code = code_of_status(status)
    response = _response(pb.WRITE_LAC, request.tag, code)
    part = response.writeLacResponse
    part.status, part.ledgerId = code, request.ledger_id
    return response.SerializeToString()


def info_answer(request: Info, status: Status, total_bytes: int, free_bytes: int) -> bytes:
    """Return the answer to GET_BOOKIE_INFO, with the requested figures."""
    code = code_of_status(status)
    response = _response(pb.GET_BOOKIE_INFO, request.tag, code)
    part = response.getBookieInfoResponse
    part.status = code
    if status is Status.OK and request.wants_total:
        part.totalDiskCapacity = total_bytes
    if status is Status.OK and request.wants_free:
        part.freeDiskSpace = free_bytes
    return response.SerializeToString()


def list_answer(request: ListEntries, status: Status, encoded: bytes) -> bytes:
    """Return the answer to GET_LIST_OF_ENTRIES; the list is included only with EOK."""
    code = code_of_status(status)
    response = _response(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, request.tag, code)
    part = response.getListOfEntriesOfLedgerResponse
    part.status, part.ledgerId = code, request.ledger_id
    if status is Status.OK:
        part.availabilityOfEntriesOfLedger = encoded
    return response.SerializeToString()


def _auth(request: pb.Request) -> Request:
    """Accept a login: TLS has authenticated the client, or no authentication is needed."""
    response = _response(pb.AUTH, request.header.txnId, pb.EOK)
    response.authResponse.authPluginName, response.authResponse.payload = AUTH_DISABLED, b""
    return ImmediateAnswer(response.SerializeToString())


def _start_tls(request: pb.Request) -> Request:
    accepted = _response(pb.START_TLS, request.header.txnId, pb.EOK)
    accepted.startTLSResponse.SetInParent()
    refused = _response(pb.START_TLS, request.header.txnId, pb.EBADREQ)
    return StartTls(accepted.SerializeToString(), refused.SerializeToString())


def _force(request: pb.Request) -> Request:
    """Answer at once, because every add was durable when it was acknowledged."""
    response = _response(pb.FORCE_LEDGER, request.header.txnId, pb.EOK)
    part = response.forceLedgerResponse
    part.status, part.ledgerId = pb.EOK, request.forceLedgerRequest.ledgerId
    return ImmediateAnswer(response.SerializeToString())


def _write_lac(request: pb.Request) -> Request:
    asked = request.writeLacRequest
    return WriteLac(request.header.txnId, LedgerId(asked.ledgerId), asked.masterKey, asked.body)


def _read_lac(request: pb.Request) -> Request:
    return ReadLac(request.header.txnId, LedgerId(request.readLacRequest.ledgerId))


def _info(request: pb.Request) -> Request:
    wanted = request.getBookieInfoRequest.requested
    return Info(request.header.txnId, bool(wanted & _TOTAL_DISK_CAPACITY), bool(wanted & _FREE_DISK_SPACE))


def _list_entries(request: pb.Request) -> Request:
    return ListEntries(request.header.txnId, LedgerId(request.getListOfEntriesOfLedgerRequest.ledgerId))


def _unknown_operation(request: pb.Request) -> Request:
    """Refuse an unknown operation with the fields of the request. Any other missing field is an error."""
    header = request.header
    if header.HasField("version") and header.HasField("txnId") and not header.HasField("operation"):
        return ImmediateAnswer(_header_only_refusal(request, pb.EBADREQ))
    raise MalformedFrameError("a message of version 3 without a field that it must have")


def _header_only_refusal(request: pb.Request, code: pb.StatusCode) -> bytes:
    """Return a refusal only at the top level, with the request's header, even if the operation is unknown.

    Raises:
        MalformedFrameError: the header has other fields, and is so long that the answer would be large.
    """
    response = pb.Response(header=request.header, status=code)
    response.header.version = pb.VERSION_THREE
    response.header.ClearField("priority")
    encoded = response.SerializePartialToString()
    if len(encoded) > _REPEATED_BYTES_MAX:
        raise MalformedFrameError("a message of version 3 with a header that is too long")
    return encoded


def _refused(request: pb.Request, code: pb.StatusCode) -> bytes:
    """Return a refusal, also in the part of the operation if it has one."""
    operation = request.header.operation
    response = _response(operation, request.header.txnId, code)
    if operation in _PARTS:
        asked_name, answered_name = _PARTS[operation]
        asked, answered = getattr(request, asked_name), getattr(response, answered_name)
        answered.status = code
        for name in ("ledgerId", "entryId"):
            if name in answered.DESCRIPTOR.fields_by_name:
                setattr(answered, name, getattr(asked, name))
    return response.SerializeToString()


def _read_response(txn: int, code: pb.StatusCode, ledger_id: int, entry_id: int) -> pb.Response:
    response = _response(pb.READ_ENTRY, txn, code)
    part = response.readResponse
    part.status, part.ledgerId, part.entryId = code, ledger_id, entry_id
    return response


def _response(operation: pb.OperationType, txn: int, code: pb.StatusCode) -> pb.Response:
    response = pb.Response(status=code)
    header = response.header
    header.version, header.operation, header.txnId = pb.VERSION_THREE, operation, txn
    return response
