"""The return of a lost bookie in the middle of a large copy: the copy ends, and wastes only the bytes copied so far."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bookie.wire.port import BATCH_BYTES_MAX
from replicator.copying.copy_run import LANES_MAX
from tests.deadlines import STATE_S
from tests.integration.auditors import when
from tests.integration.clusters import connected, start_cluster
from tests.integration.repair_world import RepairWorld, payload

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ENTRIES = 800
BYTES_PER_SECOND = 2_000_000
"""Rate of the copy, which takes many times longer than the start of a bookie."""
COUNTER = "bkheal_bookie_added_entries_total"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RepairWorld]:
    home = tmp_path_factory.mktemp("returning-bookie")
    async with await start_cluster(home, 4, serves_metrics=True) as cluster, await connected(cluster) as client:
        made = RepairWorld(cluster, client, home)
        yield made
        await made.whole()


async def test_the_copy_for_a_returning_bookie_ends_after_the_chunks_in_progress(world: RepairWorld) -> None:
    ledger_id = await world.written(entries=ENTRIES)
    before = await world.metadata(ledger_id)
    lost = world.bookie(before.fragments[0].members[1])
    (target,) = [bookie for bookie in world.cluster.bookies if bookie.bookie_id not in before.members()]
    await world.kill9(lost)
    await world.mark(ledger_id, lost)
    world.replicator("--bytes-per-second", str(BYTES_PER_SECOND))

    async def is_under_way() -> bool:
        return await world.counted(target, COUNTER) > 0

    await when(is_under_way, STATE_S)
    await lost.start()
    at_return = await world.counted(target, COUNTER)
    await world.settled()
    entry_bytes = len(payload(ledger_id, ENTRIES - 1))
    later_bytes = (await world.counted(target, COUNTER) - at_return) * entry_bytes
    assert later_bytes <= LANES_MAX * (BATCH_BYTES_MAX + entry_bytes) + BYTES_PER_SECOND
    assert await world.counted(target, COUNTER) < ENTRIES
    assert await world.counted(lost, COUNTER) == 0
    assert await world.metadata(ledger_id) == before
    await world.assert_whole(ledger_id, entries=ENTRIES)
