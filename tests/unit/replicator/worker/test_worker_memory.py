"""The memory of a worker: bytes held between a read and the acknowledgement of its add, with default settings."""

from __future__ import annotations

import random

import pytest
from typing_extensions import override

from bookie.model.digest import Digest, digest_for
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType
from bookie.model.packet import pack
from bookie.wire.port import AddBatch, AddReply, ReadReply, ReplyT, Request, Status, Transport
from bookie.wire.requests import Read
from replicator import worker
from replicator.worker import IN_FLIGHT_BYTES
from tests.worlds.ledgers import PASSWORD, make_metadata, names
from tests.worlds.repair import RepairWorld, a_world
from tests.worlds.virtual_time import in_virtual_time

MIB = 1 << 20
LATENCY_S = 0.01
LARGE_BYTES = 5_000_000
"""One such entry in flight for each ledger exceeds the budget: 76 MiB."""


class Counting(Transport):
    """Count the bytes of entries that were read but not yet acknowledged by a target."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._held: dict[bytes, int] = {}
        self.held_bytes = 0
        self.held_bytes_max = 0

    @override
    async def add(self, bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
        reply = await self._inner.add(bookie, batch, timeout_s)
        if reply.status is Status.OK:
            for packet in batch.entries:
                self.held_bytes -= self._held.pop(packet[:16], 0)
        return reply

    @override
    async def ask(self, bookie: BookieId, request: Request[ReplyT], timeout_s: float) -> ReplyT:
        reply = await self._inner.ask(bookie, request, timeout_s)
        if isinstance(request, Read) and isinstance(reply, ReadReply):
            for result in reply.results:
                if result.packet[:16] not in self._held:
                    self._held[result.packet[:16]] = len(result.packet)
                    self.held_bytes += len(result.packet)
            self.held_bytes_max = max(self.held_bytes_max, self.held_bytes)
        return reply

    @override
    async def close(self) -> None:
        await self._inner.close()


async def a_large_ledger(world: RepairWorld, ledger_id: int, members: str, quorum: int, sizes: list[int]) -> None:
    metadata = make_metadata((0, members), quorum=(quorum, quorum), last=len(sizes) - 1, digest_type=DigestType.HMAC)
    ledger = await world.ledgers.create(LedgerId(ledger_id), metadata)
    digest: Digest = digest_for(DigestType.HMAC, PASSWORD)
    rng = random.Random(ledger_id)
    length, packets = 0, {}
    for index, size in enumerate(sizes):
        length += size
        packets[EntryId(index)] = pack(
            digest, ledger.ledger_id, EntryId(index), index - 1, length, rng.randbytes(16) * (size // 16)
        )
    await world.bookies.fill(ledger, packets)
    await world.tasks.marking.mark(ledger.ledger_id, names("c"))


async def most_held(sizes: list[int], members: str, quorum: int, ledgers: int) -> int:
    async with a_world("a b c d e t") as world:
        for ledger_id in range(1, ledgers + 1):
            await a_large_ledger(world, ledger_id, members, quorum, sizes)
        await world.kill("c")
        counting = Counting(world.bookies.transport)
        for bookie in names("a b d e t"):
            world.bookies.transport.faults(bookie).delay_s = LATENCY_S
        world.bookies.transport = counting  # type: ignore[assignment]
        await world.heal()
        assert counting.held_bytes == 0
        return counting.held_bytes_max


@pytest.mark.parametrize(
    ("sizes", "members", "quorum", "ledgers"),
    [
        ([LARGE_BYTES] * 2, "a b c", 3, 16),
        ([64] * 40 + [LARGE_BYTES], "a b c", 3, 16),
        ([LARGE_BYTES] * 2, "a b c d e", 3, 16),
    ],
    ids=["large", "skewed", "striped"],
)
@in_virtual_time
async def test_copies_use_no_more_memory_than_the_budget(
    sizes: list[int], members: str, quorum: int, ledgers: int
) -> None:
    held = await most_held(sizes, members, quorum, ledgers)
    assert held <= IN_FLIGHT_BYTES


@in_virtual_time
async def test_an_entry_larger_than_the_budget_is_copied_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IN_FLIGHT_BYTES", MIB)
    assert await most_held([3 * MIB] * 2, "a b c", 3, 3) == 3 * MIB + 52
