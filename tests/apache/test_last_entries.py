"""An Apache bookie reports the greatest of its newest entries as the last one, even if it holds greater ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.metadata.layout import cookie_path
from bookie.model.digest import master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import LedgerState
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Read, ReadLast
from tests.apache.conftest import OwnServers
from tests.apache.programs import Replicator
from tests.apache.worlds import connect
from tests.deadlines import STATE_S
from tests.worlds.ledgers import PASSWORD, make_metadata, make_packets

pytestmark = pytest.mark.apache

STORAGES = [
    pytest.param(ApacheStorage.SORTED, id="sorted"),
    pytest.param(ApacheStorage.DB, id="db", marks=pytest.mark.long),
]
ENTRIES = 20
TAIL = 10
"""The first entry of the last fragment."""
NO_FLUSH_MS = "3600000"


async def put(client: ConnectedBookKeeper, bookie: BookieId, ledger_id: LedgerId, entries: Iterable[int]) -> None:
    packets = make_packets(ledger_id, ENTRIES)
    batch = AddBatch(ledger_id, master_key(PASSWORD), [packets[EntryId(each)] for each in entries], is_recovery=True)
    assert (await client.ports.transport.add(bookie, batch, STATE_S)).status is Status.OK


async def held(client: ConnectedBookKeeper, bookie: BookieId, ledger_id: LedgerId) -> list[int]:
    reply = await client.ports.transport.ask(
        bookie, Read(ledger_id, [EntryId(each) for each in range(ENTRIES)]), STATE_S
    )
    return [result.entry_id for result in reply.results if result.status is Status.OK]


@pytest.mark.parametrize("storage", STORAGES)
async def test_a_member_also_gets_entries_after_the_last_one_that_another_member_reports(
    own_servers: OwnServers, storage: ApacheStorage, tmp_path: Path
) -> None:
    cluster = await own_servers(bookies=3, options=ApacheOptions(storage, extra={"flushInterval": NO_FLUSH_MS}))
    first, both, wiped = cluster.bookies
    async with await connect(cluster.metadata_uri) as client:
        fragments = [(0, f"{first.bookie_id} {both.bookie_id}"), (TAIL, f"{both.bookie_id} {wiped.bookie_id}")]
        ledger_id = await client.ports.ledgers.new_id()
        await client.ports.ledgers.create(ledger_id, make_metadata(*fragments, quorum=(2, 2)))
        await put(client, first.bookie_id, ledger_id, range(TAIL))
        for bookie in (both, wiped):
            await put(client, bookie.bookie_id, ledger_id, range(TAIL, ENTRIES))
        await both.stop()  # the restart moves its entries out of memory, as a flush does
        await both.start()
        await wiped.stop()
        await client.store.delete(cookie_path(client.cluster.root, wiped.bookie_id))
        for directory in ("journal", "ledgers"):
            shutil.rmtree(wiped.directory / directory)
        await wiped.start()
        await put(client, both.bookie_id, ledger_id, range(TAIL))  # as a repair of the first fragment does
        named = await client.ports.transport.ask(both.bookie_id, ReadLast(ledger_id), STATE_S)
        assert [result.entry_id for result in named.results] == [TAIL - 1]
        assert await held(client, both.bookie_id, ledger_id) == list(range(ENTRIES))
        assert await held(client, wiped.bookie_id, ledger_id) == []

        await client.ports.tasks.marking.mark(ledger_id, [wiped.bookie_id])
        replicator = await Replicator.start(cluster.metadata_uri, tmp_path / "replicator", "--once")
        assert await replicator.wait() == 0
        assert [event["ending"] for event in replicator.events() if "ending" in event] == ["repaired"]
        assert await held(client, wiped.bookie_id, ledger_id) == list(range(TAIL, ENTRIES))
        assert (await client.ports.ledgers.read(ledger_id)).metadata.state is LedgerState.OPEN
        assert await client.ports.tasks.list() == []
