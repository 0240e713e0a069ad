"""Real bookies, and changes of bits on the disks of stopped ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.embedded.process import POLL_INTERVAL_S
from bookie.model.ids import LedgerId
from bookie.server.joining.directories import CURRENT
from bookie.storage.disks.index_format import pack_entry_key
from bookie.storage.disks.rocks import RocksIndex
from bookie.storage.disks.rocks_logs import BLOCK_BYTES
from bookie.wire.port import Status
from bookie.wire.requests import Info, ListEntries
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S, kill9

ENTRIES = 20
RECORD_HEADER_BYTES = 7
THREE = LedgerOptions(3, 3, 2)

T = TypeVar("T")


def payload(ledger_id: LedgerId, entry: int) -> bytes:
    """Return a payload so long that it occurs in a file only where the entry is stored."""
    return f"payload of ledger {ledger_id}, entry {entry}; ".encode() * 4


@dataclass
class EmbeddedWorld:
    """A cluster of three bookies and a client, both on the loop of ``runner``."""

    runner: asyncio.Runner
    cluster: EmbeddedCluster
    client: ConnectedBookKeeper

    @classmethod
    async def start(cls, directory: Path, runner: asyncio.Runner) -> Self:
        cluster = await EmbeddedCluster.start(
            directory, bookies=3, is_zookeeper_durable=False, session_timeout_s=LONG_SESSION_S
        )
        try:
            return cls(runner, cluster, await connect(cluster.metadata_uri, session_timeout_s=LONG_SESSION_S))
        except BaseException:
            await cluster.stop()
            raise

    async def stop(self) -> None:
        try:
            await self.client.close()
        finally:
            await self.cluster.stop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @property
    def bookies(self) -> Sequence[EmbeddedBookie]:
        return self.cluster.bookies

    async def written(self, *, entries: int = ENTRIES) -> LedgerId:
        """Write a closed ledger, with every entry on all three bookies."""
        async with self.client.create_ledger(THREE) as writer:
            for entry in range(entries):
                await writer.submit(payload(writer.ledger_id, entry))
        await self._on_all(writer.ledger_id, entries)
        return writer.ledger_id

    async def abandoned(self) -> LedgerId:
        """Write an open ledger and abandon it. Every entry is acknowledged and on all three bookies."""
        writer = await self.client.create_ledger(THREE)
        acknowledged = [await writer.submit(payload(writer.ledger_id, entry)) for entry in range(ENTRIES)]
        await asyncio.gather(*acknowledged)
        await self._on_all(writer.ledger_id, ENTRIES)
        await writer.abandon()
        return writer.ledger_id

    async def _on_all(self, ledger_id: LedgerId, entries: int) -> None:
        """Wait until each bookie has stored every entry: an acknowledgement needs only two of them."""
        async with asyncio.timeout(STATE_S):
            for bookie in self.bookies:
                while await self._count(bookie, ledger_id) < entries:  # noqa: ASYNC110 (another process)
                    await asyncio.sleep(POLL_INTERVAL_S)

    async def read(self, ledger_id: LedgerId) -> list[bytes]:
        return [entry.payload async for entry in (await self.client.open_ledger(ledger_id)).read_all()]

    async def kill(self, *bookies: EmbeddedBookie) -> None:
        await kill9(self.cluster.zookeeper, *bookies)

    async def start_again(self, *bookies: EmbeddedBookie) -> None:
        for bookie in bookies:
            bookie.launch()
        for bookie in bookies:
            await bookie.wait_ready()
        for bookie in bookies:
            await self._reconnect(bookie)

    async def _reconnect(self, bookie: EmbeddedBookie) -> None:
        """Wait until the client is connected again to a restarted bookie."""
        async with asyncio.timeout(STATE_S):
            while not await self._answers(bookie):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(POLL_INTERVAL_S)

    async def _answers(self, bookie: EmbeddedBookie) -> bool:
        return (await self.client.ports.transport.ask(bookie.bookie_id, Info(), STATE_S)).status is Status.OK

    async def _count(self, bookie: EmbeddedBookie, ledger_id: LedgerId) -> int:
        """Return how many entries of a ledger a bookie has."""
        return len((await self.client.ports.transport.ask(bookie.bookie_id, ListEntries(ledger_id), STATE_S)).entries)

    async def settle(self, *bookies: EmbeddedBookie) -> None:
        """Kill bookies, let them replay their journals to entry logs and index, and kill them again."""
        await self.kill(*bookies)
        await self.start_again(*bookies)
        await self.kill(*bookies)


def current(bookie: EmbeddedBookie) -> Path:
    return bookie.directory / "ledgers" / CURRENT


def flip(path: Path, offset: int) -> None:
    """Flip one bit. The same call restores it."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def inside_a_record(log: bytes) -> int:
    """Return the offset of a payload byte of a record in the middle of a log of RocksDB."""
    at = 0
    while True:
        if BLOCK_BYTES - at % BLOCK_BYTES < RECORD_HEADER_BYTES:
            at += -at % BLOCK_BYTES
        end = at + RECORD_HEADER_BYTES + int.from_bytes(log[at + 4 : at + 6], "little")
        if end > len(log) // 2:
            return end - 1
        at = end


def damage_entry(bookie: EmbeddedBookie, ledger_id: LedgerId, entry: int) -> None:
    """Flip a bit of the payload of an entry, in the entry log of a dead bookie."""
    wanted, found = payload(ledger_id, entry), 0
    for path in (current(bookie) / "entries").glob("*.log"):
        offset = path.read_bytes().find(wanted)
        if offset >= 0:
            flip(path, offset + len(wanted) // 2)
            found += 1
    assert found, f"{bookie.name} has no copy of entry {entry} of ledger {ledger_id}"


async def forget_entry(bookie: EmbeddedBookie, ledger_id: LedgerId, entry: int) -> None:
    """Remove an entry from the index of a dead bookie."""
    index = await RocksIndex.open(current(bookie) / "index")
    try:
        key = pack_entry_key(ledger_id, entry)
        assert (await index.get_many([key]))[0] is not None, "it held the entry"
        await index.write([], [key])
    finally:
        await index.close()
