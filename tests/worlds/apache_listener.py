"""A bookie in memory with Apache's protocol and no socket: frames in, frames out."""

from __future__ import annotations

from collections.abc import Sequence

from bookie.model.digest import digest_for
from bookie.model.ids import LedgerId
from bookie.model.metadata import DigestType
from bookie.runtime.clock import SystemClock
from bookie.server.apache.answering import RequestAnswerer
from bookie.server.apache.dialect_v2 import DialectV2
from bookie.server.apache.dialect_v3 import DialectV3
from bookie.server.apache.grouping import AddGroups
from bookie.server.apache.requests import Add, Request
from bookie.wire.apache import protocol_pb2 as pb
from bookie.wire.apache import v2
from bookie.wire.apache.framing import FrameSplitter
from tests.worlds.cluster import MemoryBookie, open_bookie
from tests.worlds.entries import packed_entry

LEDGER = LedgerId(7)
KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
OTHER_KEY = b"another key of 20 by"
TXN = 11
DIGEST = digest_for(DigestType.CRC32C, b"")


def entry(entry_id: int, lac: int = -1, *, ledger: int = LEDGER, size: int = 5) -> bytes:
    return packed_entry(ledger, entry_id, b"hello".ljust(size, b"."), last_add_confirmed=lac)


def request(operation: pb.OperationType, version: pb.ProtocolVersion = pb.VERSION_THREE) -> pb.Request:
    message = pb.Request()
    message.header.version, message.header.operation, message.header.txnId = version, operation, TXN
    return message


def add(packet: bytes, key: bytes = KEY, *, is_recovery: bool = False, flags: int = 0, echo: int = 0) -> pb.Request:
    message = request(pb.ADD_ENTRY)
    part = message.addRequest
    part.ledgerId, part.entryId, part.masterKey, part.body = LEDGER, echo, key, packet
    if flags:
        part.writeFlags = flags
    if is_recovery:
        part.flag = pb.AddRequest.RECOVERY_ADD
    return message


def read(entry_id: int, *, ledger: int = LEDGER, fence_key: bytes | None = None) -> pb.Request:
    message = request(pb.READ_ENTRY)
    message.readRequest.ledgerId, message.readRequest.entryId = ledger, entry_id
    if fence_key is not None:
        message.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
        message.readRequest.masterKey = fence_key
    return message


def long_poll(beyond: int, wait_ms: int | None, *, entry_id: int = -1, wants_entry: bool = True) -> pb.Request:
    message = read(entry_id)
    message.readRequest.previousLAC = beyond
    if wait_ms is not None:
        message.readRequest.timeOut = wait_ms
    if wants_entry:
        message.readRequest.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return message


class ProtocolWorld:
    """A bookie for requests in frames. Make it with ``create``, and ``close`` it."""

    def __init__(self, bookie: MemoryBookie) -> None:
        self.storage, self.service, self.index = bookie.storage, bookie.service, bookie.index
        self.answering = RequestAnswerer(bookie.service, SystemClock())
        self.v3, self.v2 = DialectV3(), DialectV2()

    @classmethod
    async def create(cls) -> ProtocolWorld:
        return cls(await open_bookie())

    async def ask(self, message: pb.Request) -> pb.Response:
        """Return the answer over version 3, with the same status at the top and in its part."""
        response = pb.Response.FromString(await self.answered(self.v3.decode(message.SerializeToString())))
        assert (response.header.version, response.header.operation, response.header.txnId) == (
            pb.VERSION_THREE,
            message.header.operation,
            TXN,
        )
        assert not response.header.HasField("priority")
        for field, part in response.ListFields():
            if field.message_type is not None and "status" in field.message_type.fields_by_name:
                assert part.status == response.status
        return response

    async def status(self, message: pb.Request) -> int:
        return (await self.ask(message)).status

    async def ask_v2(self, message: v2.RequestV2) -> v2.ResponseV2:
        return v2.decode_response(await self.answered(self.v2.decode(v2.encode_request(message))))

    async def answered(self, request: Request) -> bytes:
        """Return the body of the answer to a single request."""
        if not isinstance(request, Add):
            return await self.answering.one(request)
        [body] = await self.added([request])
        return body

    async def added(self, adds: Sequence[Add]) -> list[bytes]:
        """Return the bodies of the answers to adds in one group."""
        groups = AddGroups()
        for add in adds:
            groups.add(add.kind, [add.packet], [add.accepted])
        [group] = groups.groups
        return list(FrameSplitter().feed(b"".join(await self.answering.adds(group))))

    async def close(self) -> None:
        await self.storage.abort()
