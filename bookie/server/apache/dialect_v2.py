"""Version 2 on one connection: the codec between fixed layouts and requests (docs/formats.md#version-2).

Outcomes without a code in version 2 become an I/O error; see ``bookie.wire.apache.statuses``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from bookie.model.ids import EntryId, LedgerId
from bookie.server.apache.dialect_v3 import AUTH_DISABLED
from bookie.server.apache.requests import Add, AddKind, BatchRead, Dialect, ImmediateAnswer, Read, Request
from bookie.wire.apache import v2
from bookie.wire.apache.framing import LENGTH_SIZE, framed
from bookie.wire.apache.statuses import EBADVERSION_V2, EOK_V2, EUA_V2, v2_of_status
from bookie.wire.port import Status


class DialectV2(Dialect):
    """Version 2 of the protocol."""

    def __init__(self, *, may_serve: bool = True) -> None:
        """Without ``may_serve``, adds and reads are refused, because the connection must use TLS."""
        self._may_serve = may_serve

    @override
    def decode(self, body: bytes) -> Request:
        request = v2.decode_request(body)
        if isinstance(request, v2.AuthV2):
            return ImmediateAnswer(v2.encode_response(v2.AuthV2(AUTH_DISABLED, b"", request.version)))
        if not self._may_serve:
            return ImmediateAnswer(_refused(request, EUA_V2))
        if not v2.VERSION_MIN <= request.version <= v2.VERSION:
            return ImmediateAnswer(_refused(request, EBADVERSION_V2))
        if isinstance(request, v2.AddV2):
            kind = AddKind(self, LedgerId(request.ledger_id), request.master_key, request.is_recovery)
            return Add(kind, request.entry, framed(_added(request, EOK_V2)))
        if request.is_fencing and not request.master_key:
            return ImmediateAnswer(_refused(request, EUA_V2))
        fence_key = request.master_key if request.is_fencing else None
        ledger = LedgerId(request.ledger_id)
        if isinstance(request, v2.ReadV2):
            return Read(self, request.version, ledger, EntryId(request.entry_id), fence_key)
        return BatchRead(
            request.version,
            ledger,
            EntryId(request.start_entry_id),
            request.request_id,
            request.count_max,
            request.bytes_max,
            fence_key,
        )

    @override
    def refused(self, accepted: bytes, status: Status) -> bytes:
        answer = v2.decode_response(accepted[LENGTH_SIZE:])
        assert isinstance(answer, v2.AddedV2)
        return framed(v2.encode_response(replace(answer, code=v2_of_status(status))))

    @override
    def was_read(self, read: Read, status: Status, packet: bytes, known_lac: int | None) -> Sequence[bytes]:
        """Return the answer to a read. Version 2 has no field for a last add confirmed."""
        found = packet if status is Status.OK else b""
        head = v2.encode_response(v2.EntryV2(v2_of_status(status), read.ledger_id, read.entry_id, b"", read.tag))
        return (len(head) + len(found)).to_bytes(LENGTH_SIZE, "big") + head, found


def batch_answer(read: BatchRead, status: Status, entries: Sequence[bytes]) -> bytes:
    """Return the answer to a batch read, which has entries only if it is OK."""
    found = tuple(entries) if status is Status.OK else ()
    return v2.encode_response(
        v2.BatchV2(v2_of_status(status), read.ledger_id, read.first, read.request_id, found, read.tag)
    )


def _refused(request: v2.AddV2 | v2.ReadV2 | v2.BatchReadV2, code: int) -> bytes:
    if isinstance(request, v2.BatchReadV2):
        return v2.encode_response(
            v2.BatchV2(code, request.ledger_id, request.start_entry_id, request.request_id, (), request.version)
        )
    if isinstance(request, v2.ReadV2):
        return v2.encode_response(v2.EntryV2(code, request.ledger_id, request.entry_id, b"", request.version))
    return _added(request, code)


def _added(request: v2.AddV2, code: int) -> bytes:
    return v2.encode_response(v2.AddedV2(code, request.ledger_id, request.entry_id, request.version))
