"""Messages as servers and clients see them: requests of gRPC, answers of gRPC, and answers of Apache's version 3.

The first byte of an input selects the call. The rest are messages, of which many are valid and have hostile values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from auditor.cli.bookie.lines import collection_lines, read_only_lines, scrub_lines
from auditor.cli.bookie.running import collection_document, read_only_document, scrub_document
from bookie.model.availability import EntryRuns
from bookie.model.errors import BkhealError
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.wire import administration_pb2 as admin_pb
from bookie.wire import bookie_pb2 as grpc_pb
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.grpc.codec import (
    ack_from_wire,
    copied_from_wire,
    fence_from_wire,
    info_from_wire,
    lac_from_wire,
    list_from_wire,
    read_last_from_wire,
    write_lac_from_wire,
)
from bookie.wire.grpc.joint_reads import ReadAnswer
from bookie.wire.port import Request
from bookie.wire.requests import Copy, Fence, Info, ListEntries, Read, ReadLac, ReadLast, WaitLac, WriteLac
from tests.fuzzing import administered
from tests.fuzzing.hostile import hostile
from tests.fuzzing.target import Target
from tests.fuzzing.world import AbortedError, ServedBookie, entry, exchanged, frames, listed_inventory

LEDGER: Final = LedgerId(7)
WANTED: Final = [EntryId(number) for number in range(3)]
EXPLICIT: Final = struct.pack(">qq", LEDGER, 3)
AVAILABILITY: Final = EntryRuns.of([0, 1, 2, 5, 7, 9]).encode()

CALLS: Final[Mapping[str, Message]] = {
    "Add": grpc_pb.AddRequest(
        incarnation="uuid",
        batches=[grpc_pb.AddBatch(request_id=1, ledger_id=7, master_key=b"key", entries=[entry(10), entry(11)])],
    ),
    "Read": grpc_pb.ReadRequest(incarnation="uuid", ledger_id=7, entry_ids=[0, 9, 30], fence_key=b"key"),
    "ReadLedgers": grpc_pb.ReadLedgersRequest(
        incarnation="uuid",
        reads=[grpc_pb.LedgerRead(ledger_id=7, entry_ids=[1, 2]), grpc_pb.LedgerRead(ledger_id=8, entry_ids=[0])],
    ),
    "ReadLast": grpc_pb.ReadLastRequest(incarnation="uuid", ledger_id=7),
    "Fence": grpc_pb.FenceRequest(incarnation="uuid", ledger_id=8, master_key=b"key"),
    "ReadLac": grpc_pb.ReadLacRequest(incarnation="uuid", ledger_id=7),
    "WaitLac": grpc_pb.WaitLacRequest(incarnation="uuid", ledger_id=7, beyond=9, wait_ms=100),
    "WriteLac": grpc_pb.WriteLacRequest(incarnation="uuid", ledger_id=7, master_key=b"key", explicit_lac=EXPLICIT),
    "ListEntries": grpc_pb.ListEntriesRequest(incarnation="uuid", ledger_id=7),
    "ListLedgers": grpc_pb.ListLedgersRequest(incarnation="uuid", ledger_ids=[7, 8]),
    "Copy": grpc_pb.CopyRequest(
        incarnation="uuid", ledger_id=7, master_key=b"key", entry_ids=[3, 4], source="bk1:3181",
        digest=grpc_pb.DIGEST_CRC32C,
    ),
    "Info": grpc_pb.InfoRequest(incarnation="uuid"),
}  # fmt: skip
"""One request for each call of the service."""


def _numbered(messages: Sequence[Message]) -> list[bytes]:
    return [bytes([number]) + message.SerializeToString() for number, message in enumerate(messages)]


def _hostile(messages: Sequence[Message]) -> list[bytes]:
    return [
        bytes([number]) + each.SerializeToString()
        for number, message in enumerate(messages)
        for each in hostile(message)
    ]


@cache
def _bookie() -> ServedBookie:
    return ServedBookie()


def _grpc_request(data: bytes) -> object:
    """Pass a request to the servicer of a real bookie, as gRPC does if it can be parsed."""
    method, prototype = list(CALLS.items())[data[0] % len(CALLS)] if data else ("Info", grpc_pb.InfoRequest())
    request = type(prototype)()
    request.ParseFromString(data[1:])
    return _bookie().call(method, request)


def _read(message: Any) -> object:
    answer = ReadAnswer(WANTED, [])
    for each in message.batches:
        answer.add(each.piece)
    return answer.reply()


def _listed(message: Any) -> object:
    pieces = [each.piece for each in message.lists]
    if not pieces:
        return None
    return _result(list_from_wire([piece.availability for piece in pieces], pieces[-1]))


def _result(steps: Generator[None, None, Any]) -> object:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


_PACKETS: Final = [entry(number) for number in WANTED]
_BATCH: Final = grpc_pb.EntryBatch(
    entry_ids=WANTED, statuses=[grpc_pb.STATUS_OK] * 3, packets=_PACKETS, is_last=True, detail="all"
)
_ONE: Final = grpc_pb.OneEntry(entry_id=2, packet=_PACKETS[2])
ANSWERS: Final[Sequence[tuple[Message, Callable[[Any], object]]]] = (
    (grpc_pb.AddResponse(acks=[grpc_pb.AddAck(request_id=1, ledger_id=7, detail="stored")]),
     lambda message: [ack_from_wire(ack) for ack in message.acks]),
    (grpc_pb.LedgerBatches(batches=[grpc_pb.LedgerBatch(ledger_id=7, piece=_BATCH)]), _read),
    (grpc_pb.EntryBatch(entry_ids=[2], packets=[_PACKETS[2]], is_last=True), read_last_from_wire),
    (grpc_pb.FenceResponse(last_entry=_ONE, detail="fenced"), fence_from_wire),
    (grpc_pb.LacResponse(explicit_lac=_PACKETS[0], last_entry=_ONE, entry=_ONE),
     lambda message: lac_from_wire(message, EntryId(2))),
    (grpc_pb.WriteLacResponse(detail="noted"), write_lac_from_wire),
    (grpc_pb.LedgerLists(lists=[
        grpc_pb.LedgerList(ledger_id=7, piece=grpc_pb.EntryList(availability=AVAILABILITY)),
        grpc_pb.LedgerList(ledger_id=7, piece=grpc_pb.EntryList(is_last=True)),
    ]), _listed),
    (grpc_pb.CopyResponse(
        covered=3, stored_bytes=100, read_ms=5,
        refusals=[grpc_pb.CopyRefusal(entry_id=1, status=grpc_pb.STATUS_CORRUPT, detail="damaged")],
    ), lambda message: copied_from_wire(message, WANTED)),
    (grpc_pb.InfoResponse(
        incarnation="uuid", version="1", disk_total_bytes=1000, disk_free_bytes=10, ledger_count=3
    ), info_from_wire),
)  # fmt: skip
"""An answer to each call, and the client's function for it."""


def _grpc_answer(data: bytes) -> object:
    prototype, decode = ANSWERS[(data[0] if data else 0) % len(ANSWERS)]
    answer = type(prototype)()
    answer.ParseFromString(data[1:])
    return decode(answer)


_STATES: Final[Sequence[tuple[Message, Callable[[Any], object]]]] = (
    (admin_pb.ScrubState(
        phase=admin_pb.ScrubState.RUNNING, begun_ms=5, finished_ms=6, ledger_id=7, entry_id=3, unrepaired_count=1,
        unrepaired=[admin_pb.DamagedLedger(ledger_id=7, entry_ids=[3])],
    ), lambda message: scrub_lines(scrub_document(message))),
    (admin_pb.CollectionState(begun_ms=5, finished_ms=6, known=3, stopped="why"),
     lambda message: collection_lines(collection_document(message))),
    (admin_pb.ReadOnlyState(is_read_only=True, reasons=["operator"], asked_by="olga", asked_ms=5),
     lambda message: read_only_lines(read_only_document(message))),
    (admin_pb.InventoryBatch(
        ledgers=[
            admin_pb.InventoryLedger(ledger_id=7, availability=AVAILABILITY, is_complete=True),
            admin_pb.InventoryLedger(ledger_id=8, availability=AVAILABILITY, is_complete=True),
        ],
        is_last=True,
    ), listed_inventory),
)  # fmt: skip
"""A bookie's reports to operators, and the commands' functions for them."""


def _administration(data: bytes) -> object:
    prototype, show = _STATES[(data[0] if data else 0) % len(_STATES)]
    answer = type(prototype)()
    answer.ParseFromString(data[1:])
    return show(answer)


def _response(operation: Any, number: int, status: Any = pb.EOK, **parts: Message) -> pb.Response:
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=number)
    return pb.Response(header=header, status=status, **parts)  # type: ignore[arg-type]


def _entry_read(number: int, entry_id: int, found: int, **more: Any) -> pb.Response:
    part = pb.ReadResponse(status=pb.EOK, ledgerId=7, entryId=entry_id, body=entry(found), **more)
    return _response(pb.READ_ENTRY, number, readResponse=part)


def _lac_read(number: int) -> pb.Response:
    part = pb.ReadLacResponse(status=pb.EOK, ledgerId=7, lacBody=entry(1), lastEntryBody=entry(2))
    return _response(pb.READ_LAC, number, readLacResponse=part)


_NO_ENTRY: Final = _response(
    pb.READ_ENTRY, 1, pb.ENOENTRY, readResponse=pb.ReadResponse(status=pb.ENOENTRY, ledgerId=7, entryId=-1)
)
EXCHANGES: Final[Sequence[tuple[Request[Any], Sequence[pb.Response]]]] = (
    (Read(LEDGER, WANTED), [_entry_read(number + 1, number, number) for number in WANTED]),
    (ReadLast(LEDGER), [_entry_read(1, -1, 9, maxLAC=8, lacUpdateTimestamp=5)]),
    (Fence(LEDGER, b"key"), [
        _NO_ENTRY,
        _response(pb.FORCE_LEDGER, 2, forceLedgerResponse=pb.ForceLedgerResponse(status=pb.EOK, ledgerId=7)),
    ]),
    (ReadLac(LEDGER), [_lac_read(1)]),
    (WaitLac(LEDGER, EntryId(8), 1.0), [_entry_read(1, 9, 9, maxLAC=9), _lac_read(2)]),
    (WriteLac(LEDGER, b"key", EXPLICIT), [
        _response(pb.WRITE_LAC, 1, writeLacResponse=pb.WriteLacResponse(status=pb.EOK, ledgerId=7)),
    ]),
    (ListEntries(LEDGER), [
        _response(
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER, 1,
            getListOfEntriesOfLedgerResponse=pb.GetListOfEntriesOfLedgerResponse(
                status=pb.EOK, ledgerId=7, availabilityOfEntriesOfLedger=AVAILABILITY
            ),
        ),
    ]),
    (Info(), [
        _response(
            pb.GET_BOOKIE_INFO, 1,
            getBookieInfoResponse=pb.GetBookieInfoResponse(
                status=pb.EOK, totalDiskCapacity=1000, freeDiskSpace=10
            ),
        ),
    ]),
)  # fmt: skip
"""Requests over version 3, and the answers to the messages sent for each of them."""
_UNSENT: Final = Copy(LEDGER, WANTED, BookieId("bk1:3181"), b"key", DigestType.CRC32C)
"""Used for an empty input: a request that this protocol does not have."""


def _answers_v3(data: bytes) -> object:
    request = EXCHANGES[data[0] % len(EXCHANGES)][0] if data else _UNSENT
    return exchanged(request, data[1:])


def _streams(number: int, responses: Sequence[pb.Response]) -> list[bytes]:
    """Yield the answers of an exchange, one of them with a hostile value."""
    found = []
    for place, response in enumerate(responses):
        for each in hostile(response):
            if each.IsInitialized():
                bodies = [other.SerializeToString() for other in (*responses[:place], each, *responses[place + 1 :])]
                found.append(bytes([number]) + frames(*bodies))
    return found


MESSAGE_TARGETS: Final[Mapping[str, Target]] = {
    "grpc-requests": Target(
        _grpc_request, _numbered(list(CALLS.values())), (AbortedError, DecodeError), _hostile(list(CALLS.values()))
    ),
    "grpc-answers": Target(
        _grpc_answer,
        _numbered([message for message, _ in ANSWERS]),
        (BkhealError, DecodeError),
        _hostile([message for message, _ in ANSWERS]),
    ),
    "administration": Target(
        _administration,
        _numbered([message for message, _ in _STATES]),
        (BkhealError, DecodeError),
        _hostile([message for message, _ in _STATES]),
    ),
    "administration-requests": Target(
        administered.administration_request,
        [administered.numbered(*each) for each in (*administered.CALLS.items(), *administered.MORE)],
        (AbortedError, DecodeError),
        [
            *(
                administered.numbered(method, each)
                for method, request in (*administered.CALLS.items(), *administered.MORE)
                for each in hostile(request)
            ),
            *(
                administered.numbered(method, request, token)
                for method, request in administered.CALLS.items()
                for token in range(1, 6)
            ),
        ],
    ),
    "answers-v3": Target(
        _answers_v3,
        [
            bytes([number]) + frames(*(each.SerializeToString() for each in responses))
            for number, (_, responses) in enumerate(EXCHANGES)
        ],
        hostile=[each for number, (_, responses) in enumerate(EXCHANGES) for each in _streams(number, responses)],
        gate_inputs=100,
    ),
}
