"""Apache's bookies hang after listing the entries of too many ledgers. Ours repair and audit without lists."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.embedded.apache_settings import ApacheOptions
from bookie.model.ids import EntryId, LedgerId
from bookie.model.run import RunKind
from bookie.wire.port import Status
from bookie.wire.requests import Read
from tests.apache.conftest import OwnServers
from tests.apache.programs import Audit, Replicator
from tests.apache.worlds import connect, gone
from tests.deadlines import STATE_S
from tests.sessions import kill9

pytestmark = [pytest.mark.apache, pytest.mark.long]

PAGES = 16
"""Pages of the index cache of each bookie; the bookies hold many more ledgers."""
LEDGERS = 40


async def test_a_bookie_survives_repairs_and_audits_of_more_ledgers_than_its_index_has_pages(
    own_servers: OwnServers, audit: Audit, tmp_path: Path
) -> None:
    cluster = await own_servers(bookies=4, options=ApacheOptions(extra={"pageLimit": str(PAGES)}))
    uri = cluster.metadata_uri
    async with await connect(uri) as client:

        async def write() -> LedgerId:
            async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
                for number in range(3):
                    await writer.append(b"entry %d" % number)
            return writer.ledger_id

        ids = [await write() for _ in range(LEDGERS)]
        for bookie in cluster.bookies:  # until its memory table is flushed, a bookie needs no pages
            await bookie.stop()
            bookie.launch()
        await asyncio.gather(*(bookie.wait_ready() for bookie in cluster.bookies))
        before = await audit(uri, tmp_path, RunKind.REPLICAS)
        assert (before["verdict"], before["replicas"]["unknown"]) == ("clean", [])

        lost = cluster.bookies[0]
        await kill9(cluster.zookeeper, lost)
        await gone(client, lost.bookie_id)
        await audit(uri, tmp_path)
        replicator = await Replicator.start(uri, tmp_path / "replicator", "--once")
        assert await replicator.wait() == 0
        assert len(replicator.repaired) > PAGES

        after = await audit(uri, tmp_path, RunKind.REPLICAS)
        assert (after["verdict"], after["replicas"]["unknown"]) == ("clean", [])
        for bookie in cluster.bookies[1:]:
            ledgers = [
                each for each in ids if bookie.bookie_id in (await client.ports.ledgers.read(each)).metadata.members()
            ]
            asked = (
                client.ports.transport.ask(bookie.bookie_id, Read(each, [EntryId(0)]), STATE_S) for each in ledgers
            )
            assert {reply.status for reply in await asyncio.gather(*asked)} == {Status.OK}
