"""The conversion of values of the transport port to protobuf messages and back, for both ends of a connection.

Entries are converted as whole lists, and their bytes are not examined. Errors of a peer (unknown statuses, answers for
other entries than requested) become a value or ``MalformedAnswerError``, never a wrong result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import lt
from typing import Final, cast

from bookie.model.availability import EntryRuns
from bookie.model.errors import PermanentError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.runtime.human import counted
from bookie.wire import bookie_pb2 as pb
from bookie.wire.port import (
    AddBatch,
    AddReply,
    BookieInfo,
    CopyReply,
    EntryResult,
    FenceReply,
    InfoReply,
    LacReply,
    ListReply,
    ReadReply,
    Status,
)
from bookie.wire.requests import Copy

CHUNK_BYTES: Final = 1 << 20
"""Size at which a message of a streamed answer is complete. Its last entry may exceed this size."""

_STATUS_TO_WIRE: Final = {
    status: cast(pb.Status, pb.Status.Value(f"STATUS_{status.name}")) for status in Status if status < 100
}
_STATUS_FROM_WIRE: Final = {int(number): status for status, number in _STATUS_TO_WIRE.items()}
_DIGEST_TO_WIRE: Final = {
    DigestType.CRC32: pb.DIGEST_CRC32,
    DigestType.HMAC: pb.DIGEST_HMAC,
    DigestType.CRC32C: pb.DIGEST_CRC32C,
}
_DIGEST_FROM_WIRE: Final = {int(number): digest for digest, number in _DIGEST_TO_WIRE.items()}
_SILENCE_TO_WIRE: Final = {
    Status.UNREACHABLE: pb.SILENCE_UNREACHABLE,
    Status.TIMEOUT: pb.SILENCE_TIMEOUT,
    Status.UNRESOLVED: pb.SILENCE_UNRESOLVED,
}
"""How a bookie reports that another bookie does not answer."""
_SILENCE_FROM_WIRE: Final = {int(number): status for status, number in _SILENCE_TO_WIRE.items()}


class MalformedAnswerError(PermanentError):
    """The answer of a bookie does not match the request (S18)."""


def status_from_wire(number: int) -> Status:
    """Return the status for a number; IO_ERROR for an unknown one of a newer bookie."""
    return _STATUS_FROM_WIRE.get(number, Status.IO_ERROR)


def add_to_wire(request_id: int, batch: AddBatch) -> pb.AddBatch:
    """Return the message of one add."""
    message = pb.AddBatch(
        request_id=request_id,
        ledger_id=batch.ledger_id,
        master_key=batch.master_key,
        is_recovery=batch.is_recovery,
    )
    message.entries.extend(batch.entries)
    return message


def add_from_wire(message: pb.AddBatch) -> AddBatch:
    """Return the batch in a message."""
    return AddBatch(LedgerId(message.ledger_id), message.master_key, list(message.entries), message.is_recovery)


def ack_to_wire(message: pb.AddBatch, reply: AddReply) -> pb.AddAck:
    """Return the answer to ``message``."""
    return pb.AddAck(
        request_id=message.request_id,
        ledger_id=message.ledger_id,
        status=_STATUS_TO_WIRE[reply.status],
        detail=reply.detail,
    )


def ack_from_wire(ack: pb.AddAck) -> AddReply:
    """Return the reply in an ack."""
    return AddReply(status_from_wire(ack.status), ack.detail)


def read_to_wire(reply: ReadReply) -> Iterator[pb.EntryBatch]:
    """Yield the messages of a read's answer, each of about ``CHUNK_BYTES``; the last one has the overall status."""
    results = reply.results
    start = size = 0
    for index, result in enumerate(results):
        size += len(result.packet)
        if size >= CHUNK_BYTES:
            yield _entries_to_wire(results[start : index + 1])
            start, size = index + 1, 0
    yield _final_batch(results[start:], reply)


def reads_to_wire(replies: Iterable[tuple[LedgerId, ReadReply]]) -> Iterator[pb.LedgerBatches]:
    """Yield the messages of the answer about several ledgers, each of about ``CHUNK_BYTES`` plus at most one piece."""
    message, size = pb.LedgerBatches(), 0
    for ledger_id, reply in replies:
        for piece in read_to_wire(reply):
            message.batches.add(ledger_id=ledger_id, piece=piece)
            size += sum(map(len, piece.packets))
            if size >= CHUNK_BYTES:
                yield message
                message, size = pb.LedgerBatches(), 0
    if message.batches:
        yield message


def read_last_to_wire(reply: ReadReply) -> pb.EntryBatch:
    """Return the single message of the answer to a read of the last entry."""
    return _final_batch(reply.results, reply)


def _final_batch(results: Sequence[EntryResult], reply: ReadReply) -> pb.EntryBatch:
    message = _entries_to_wire(results)
    message.is_last = True
    message.status = _STATUS_TO_WIRE[reply.status]
    message.detail = reply.detail
    return message


def _entries_to_wire(results: Sequence[EntryResult]) -> pb.EntryBatch:
    message = pb.EntryBatch()
    message.entry_ids.extend([result.entry_id for result in results])
    message.packets.extend([result.packet for result in results])
    if any(result.status is not Status.OK for result in results):
        message.statuses.extend([_STATUS_TO_WIRE[result.status] for result in results])
    return message


def entries_from_wire(message: pb.EntryBatch) -> list[EntryResult]:
    """Return the results in a message of a read's answer.

    Raises:
        MalformedAnswerError: the parallel lists differ in length.
    """
    count = len(message.entry_ids)
    if len(message.packets) != count or len(message.statuses) not in (0, count):
        raise MalformedAnswerError(
            f"{count} entry ids came with {len(message.packets)} packets and {len(message.statuses)} statuses"
        )
    statuses = map(status_from_wire, message.statuses) if message.statuses else [Status.OK] * count
    return list(map(_entry_result, message.entry_ids, statuses, message.packets))


def _entry_result(entry_id: int, status: Status, packet: bytes) -> EntryResult:
    return EntryResult(EntryId(entry_id), status, packet if status is Status.OK else b"")


def read_last_from_wire(message: pb.EntryBatch) -> ReadReply:
    """Return the reply in the answer to a read of the last entry.

    Raises:
        MalformedAnswerError: an OK answer without exactly one result.
    """
    results = entries_from_wire(message)
    status = status_from_wire(message.status)
    if status is Status.OK and len(results) != 1:
        raise MalformedAnswerError(f"{len(results)} results came for the last entry")
    return ReadReply(status, tuple(results), message.detail)


def fence_to_wire(reply: FenceReply) -> pb.FenceResponse:
    """Return the message of a fence's answer."""
    response = pb.FenceResponse(status=_STATUS_TO_WIRE[reply.status], detail=reply.detail)
    if reply.last_entry is not None:
        response.last_entry.CopyFrom(_one_to_wire(reply.last_entry))
    return response


def fence_from_wire(response: pb.FenceResponse) -> FenceReply:
    """Return the reply in a fence's answer."""
    last = _one_from_wire(response.last_entry) if response.HasField("last_entry") else None
    return FenceReply(status_from_wire(response.status), last, response.detail)


def lac_to_wire(reply: LacReply) -> pb.LacResponse:
    """Return the message of an answer about the last add confirmed: one message, even with two large entries."""
    response = pb.LacResponse(status=_STATUS_TO_WIRE[reply.status], detail=reply.detail, explicit_lac=reply.explicit)
    if reply.last_entry is not None:
        response.last_entry.CopyFrom(_one_to_wire(reply.last_entry))
    if reply.entry is not None:
        response.entry.CopyFrom(_one_to_wire(reply.entry))
    return response


def lac_from_wire(response: pb.LacResponse, expected: EntryId | None = None) -> LacReply:
    """Return the reply in an answer about the last add confirmed; ``expected`` is the only entry allowed in it.

    Raises:
        MalformedAnswerError: the answer has another entry, or one with a status other than OK.
    """
    last = _one_from_wire(response.last_entry) if response.HasField("last_entry") else None
    entry = _one_from_wire(response.entry) if response.HasField("entry") else None
    if entry is not None and (entry.entry_id != expected or entry.status is not Status.OK):
        raise MalformedAnswerError(f"entry {entry.entry_id} came along ({entry.status.name}), expected was {expected}")
    return LacReply(status_from_wire(response.status), response.explicit_lac, last, entry, response.detail)


def write_lac_to_wire(reply: AddReply) -> pb.WriteLacResponse:
    """Return the message of the answer to an explicit LAC."""
    return pb.WriteLacResponse(status=_STATUS_TO_WIRE[reply.status], detail=reply.detail)


def write_lac_from_wire(response: pb.WriteLacResponse) -> AddReply:
    """Return the reply in the answer to an explicit LAC."""
    return AddReply(status_from_wire(response.status), response.detail)


def _one_to_wire(result: EntryResult) -> pb.OneEntry:
    return pb.OneEntry(entry_id=result.entry_id, status=_STATUS_TO_WIRE[result.status], packet=result.packet)


def _one_from_wire(message: pb.OneEntry) -> EntryResult:
    return _entry_result(message.entry_id, status_from_wire(message.status), message.packet)


def list_to_wire(reply: ListReply) -> Iterator[pb.EntryList]:
    """Yield the messages of a listing's answer; the last one has the overall status."""
    for piece in reply.entries.encoded() if reply.entries or reply.status is Status.OK else ():
        yield pb.EntryList(availability=piece)
    yield pb.EntryList(is_last=True, status=_STATUS_TO_WIRE[reply.status], detail=reply.detail)


def lists_to_wire(replies: Iterable[tuple[LedgerId, ListReply]]) -> Iterator[pb.LedgerLists]:
    """Yield the messages of an answer that lists several ledgers, each of at most ``CHUNK_BYTES`` plus a piece."""
    lists: list[pb.LedgerList] = []
    size = 0
    for ledger_id, reply in replies:
        for piece in list_to_wire(reply):
            lists.append(pb.LedgerList(ledger_id=ledger_id, piece=piece))
            size += len(piece.availability)
            if size > CHUNK_BYTES:
                yield pb.LedgerLists(lists=lists)
                lists, size = [], 0
    if lists:
        yield pb.LedgerLists(lists=lists)


def list_from_wire(pieces: Sequence[bytes], last: pb.EntryList) -> Generator[None, None, ListReply]:
    """Return the reply in the pieces of a listing's answer, with pauses, because a list may be long.

    A reply other than OK may have entries as well.

    Raises:
        InvalidAvailabilityError: the bytes are not an availability list.
    """
    data = b"".join(pieces)
    status = status_from_wire(last.status)
    entries = (yield from EntryRuns.decoding(data)) if data or status is Status.OK else EntryRuns(())
    return ListReply(status, entries, last.detail)


def copy_to_wire(copy: Copy, incarnation: str) -> pb.CopyRequest:
    """Return the message of a request to copy entries, for the disks of ``incarnation``."""
    return pb.CopyRequest(
        incarnation=incarnation,
        ledger_id=copy.ledger_id,
        master_key=copy.master_key,
        entry_ids=copy.entry_ids,
        source=copy.source,
        digest=_DIGEST_TO_WIRE.get(copy.digest_type, pb.DIGEST_UNSPECIFIED),
        digest_key=copy.digest_key,
    )


def copy_from_wire(message: pb.CopyRequest) -> Copy:
    """Return the request in a message. An unknown digest becomes DUMMY, which is refused."""
    return Copy(
        LedgerId(message.ledger_id),
        cast(list[EntryId], list(message.entry_ids)),
        BookieId(message.source),
        message.master_key,
        _DIGEST_FROM_WIRE.get(message.digest, DigestType.DUMMY),
        message.digest_key,
        message.incarnation,
    )


def copied_to_wire(reply: CopyReply) -> pb.CopyResponse:
    """Return the message of the answer to a request to copy entries."""
    silence = _SILENCE_TO_WIRE.get(reply.source, pb.SILENCE_NONE)
    return pb.CopyResponse(
        status=_STATUS_TO_WIRE[reply.status],
        detail=reply.detail,
        covered=reply.covered,
        stored_bytes=reply.stored_bytes,
        refusals=[
            pb.CopyRefusal(entry_id=each.entry_id, status=_STATUS_TO_WIRE[each.status], detail=each.detail)
            for each in reply.refusals
        ],
        source_status=_STATUS_TO_WIRE.get(reply.source, pb.STATUS_IO_ERROR),
        source_silence=silence,
        source_detail=reply.source_detail,
        read_ms=round(reply.read_s * 1000),
    )


def copied_from_wire(response: pb.CopyResponse, entry_ids: Sequence[EntryId]) -> CopyReply:
    """Return the reply in the answer to a request to copy ``entry_ids``.

    Raises:
        MalformedAnswerError: it covers more, refuses what it does not cover or what it should have stored, or covers
            nothing although nothing failed.
    """
    status, covered = status_from_wire(response.status), response.covered
    source = status_from_wire(response.source_status)
    if response.source_silence != pb.SILENCE_NONE:
        source = _SILENCE_FROM_WIRE.get(response.source_silence, Status.UNREACHABLE)
    refusals = [
        EntryResult(EntryId(each.entry_id), status_from_wire(each.status), detail=each.detail)
        for each in response.refusals
    ]
    refused = [each.entry_id for each in refusals]
    is_in_order = all(map(lt, refused, refused[1:])) and set(refused) <= set(entry_ids[:covered])
    if covered > len(entry_ids) or not is_in_order or any(each.status is Status.OK for each in refusals):
        about = counted(covered, "entry")
        raise MalformedAnswerError(
            f"an answer about {about}, {len(refused)} of them refused, came for a copy of {len(entry_ids)}"
        )
    if status is source is Status.OK and entry_ids and not covered:
        raise MalformedAnswerError("an OK answer to a copy covers no entry")
    return CopyReply(
        status,
        covered,
        response.stored_bytes,
        refusals,
        source,
        response.source_detail,
        response.read_ms / 1000,
        response.detail,
    )


def info_to_wire(reply: InfoReply) -> pb.InfoResponse:
    """Return the message of an info answer."""
    response = pb.InfoResponse(status=_STATUS_TO_WIRE[reply.status], detail=reply.detail)
    if (info := reply.info) is not None:
        response.incarnation = info.incarnation
        response.version = info.version
        response.is_read_only = info.is_read_only
        response.disk_total_bytes = info.disk_total_bytes
        response.disk_free_bytes = info.disk_free_bytes
        response.ledger_count = info.ledger_count or 0
    return response


def info_from_wire(response: pb.InfoResponse) -> InfoReply:
    """Return the reply in an info answer."""
    status = status_from_wire(response.status)
    if status is not Status.OK:
        return InfoReply(status, None, response.detail)
    info = BookieInfo(
        incarnation=response.incarnation,
        version=response.version,
        is_read_only=response.is_read_only,
        disk_total_bytes=response.disk_total_bytes,
        disk_free_bytes=response.disk_free_bytes,
        ledger_count=response.ledger_count,
    )
    return InfoReply(status, info, response.detail)
