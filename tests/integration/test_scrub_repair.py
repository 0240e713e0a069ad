"""A byte of an entry log is flipped on the disk of a real bookie; its scrub restores the entry from another bookie."""

from __future__ import annotations

import asyncio
import random

import pytest

from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.storage.entry_logs.entry_log import log_path
from bookie.wire.port import AddBatch, EntryResult, Status
from bookie.wire.requests import Read
from tests.deadlines import STATE_S
from tests.integration.test_bookie_process import LEDGER, Machine, machine
from tests.worlds.entries import packed_entry

__all__ = ["machine"]

pytestmark = pytest.mark.integration

PAYLOAD = b"some bytes that are unique in the entry log"


def entry(entry_id: int) -> bytes:
    return packed_entry(LEDGER, entry_id, PAYLOAD)


async def first_entry(machine: Machine, bookie: BookieId) -> EntryResult:
    """Read entry 0 from a bookie that may still be starting."""
    async with asyncio.timeout(STATE_S):
        while not (reply := await machine.transport.ask(bookie, Read(LEDGER, [EntryId(0)]), STATE_S)).results:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
    return reply.results[0]


async def test_a_flipped_byte_is_found_and_the_entry_is_restored_from_the_other_bookie(machine: Machine) -> None:
    other = {"journal_dir": machine.home / "journal-2", "ledger_dir": machine.home / "ledgers-2"}
    process, damaged = await machine.ready(bookie_id="damaged")
    _, whole = await machine.ready(bookie_id="whole", **other)
    for bookie in (damaged, whole):
        reply = await machine.transport.add(bookie, AddBatch(LEDGER, master_key(b""), [entry(0)]), STATE_S)
        assert reply.status is Status.OK
    metadata = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (damaged, whole)),)).closed(EntryId(0), len(PAYLOAD))
    await LedgerStore(machine.store, machine.cluster, random.Random(1)).create(LEDGER, metadata)
    await process.stop()
    log = machine.home / "ledgers" / "current" / log_path(1)
    content = bytearray(log.read_bytes())
    content[content.index(PAYLOAD)] ^= 1
    log.write_bytes(content)

    process, _ = await machine.ready(bookie_id="damaged", scrub_interval=0)
    assert (await first_entry(machine, damaged)).status is Status.CORRUPT
    await process.stop()
    await machine.ready(bookie_id="damaged", scrub_interval=1)
    async with asyncio.timeout(STATE_S):
        while (found := await first_entry(machine, damaged)).status is not Status.OK:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)
    assert found.packet == entry(0)
