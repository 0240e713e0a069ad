"""A writer dies, and Apache's client and ours recover its ledger at the same moment: both find the same end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.options import LedgerOptions
from bookie.embedded.apache import ApacheCluster
from bookie.model.errors import ConflictError, TransientError
from bookie.model.ids import LedgerId
from bookie.model.metadata import LedgerState
from tests.apache.driver import JavaDriver, JavaError, expected, payloads
from tests.apache.worlds import connect

pytestmark = pytest.mark.apache

SIZES = (0, 1, 100, 5_000)
ENTRIES = 40
LEDGERS = 6


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as ours:
        yield ours


async def left_by_apaches_writer(java: JavaDriver) -> list[int]:
    await java.new_client("dying")
    handles = [await java.create(3, 3, 2, client="dying") for _ in range(LEDGERS)]
    for handle in handles:
        await handle.write(ENTRIES, seed="both", sizes=SIZES)
    await java.drop_client("dying")
    return [handle.ledger_id for handle in handles]


async def left_by_our_writer(uri: str) -> list[int]:
    found = []
    async with await connect(uri) as dying:
        for _ in range(LEDGERS):
            ledger = await dying.create_ledger(LedgerOptions(3, 3, 2))
            for content in payloads("both", range(ENTRIES), SIZES):
                await ledger.append(content)
            found.append(int(ledger.ledger_id))
            await ledger.abandon()
    return found


async def recover_by_apache(java: JavaDriver, ledger_id: int, wire: str) -> tuple[int, int] | None:
    """Return last entry and length; ``None`` if the other recovery closed the ledger first."""
    try:
        handle = await java.open(ledger_id, recovery=True, client=wire)
    except JavaError:
        return None
    state = await handle.state()
    assert state.is_closed
    return state.last_add_confirmed, state.length


async def recover_by_us(client: ConnectedBookKeeper, ledger_id: int) -> tuple[int, int] | None:
    try:
        metadata = await client.recover_ledger(LedgerId(ledger_id))
    except (ConflictError, TransientError):
        return None
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry_id is not None
    assert metadata.length is not None
    return metadata.last_entry_id, metadata.length


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("writer", ["apache's", "ours"])
async def test_concurrent_recoveries_of_both_agree(
    java: JavaDriver, client: ConnectedBookKeeper, apache_cluster: ApacheCluster, writer: str, wire: str
) -> None:
    ledgers = await (
        left_by_apaches_writer(java) if writer == "apache's" else left_by_our_writer(apache_cluster.metadata_uri)
    )
    contents = payloads("both", range(ENTRIES), SIZES)
    whole = (ENTRIES - 1, sum(map(len, contents)))
    for ledger_id in ledgers:
        theirs, ours = await asyncio.gather(recover_by_apache(java, ledger_id, wire), recover_by_us(client, ledger_id))
        assert {theirs, ours} - {None} == {whole}
        found = (await client.ports.ledgers.read(LedgerId(ledger_id))).metadata
        assert (found.state, found.last_entry_id, found.length) == (LedgerState.CLOSED, *whole)
        assert await java.read_all(ledger_id, client=wire) == expected(contents)
        reader = await client.open_ledger(LedgerId(ledger_id))
        assert [entry.payload async for entry in reader.read_all()] == contents
