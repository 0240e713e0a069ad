"""Apache's auto-recovery and admin commands repair ledgers written by our client; ours reads the result."""

from __future__ import annotations

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.options import LedgerOptions
from bookie.embedded.apache import ApacheCluster
from bookie.model.ids import LedgerId
from bookie.model.metadata import DigestType, LedgerMetadata
from tests.apache.driver import expected, payloads
from tests.apache.shell_answers import entry_ids_in
from tests.apache.waiting import until
from tests.apache.worlds import QUICK, ApacheWorld, connect

pytestmark = pytest.mark.apache

SIZES = (100, 0, 3000)
CONTENTS = payloads("repair", range(50), SIZES)


async def write(client: ConnectedBookKeeper, digest: DigestType = DigestType.CRC32C) -> LedgerId:
    async with client.create_ledger(LedgerOptions(3, 2, 2, digest), password=b"secret") as ledger:
        for future in [await ledger.submit(content) for content in CONTENTS]:
            await future
    return ledger.ledger_id


async def metadata_of(client: ConnectedBookKeeper, ledger_id: LedgerId) -> LedgerMetadata:
    return (await client.ports.ledgers.read(ledger_id)).metadata


async def read(client: ConnectedBookKeeper, ledger_id: LedgerId) -> list[bytes]:
    reader = await client.open_ledger(ledger_id)
    return [entry.payload async for entry in reader.read_all()]


async def test_apaches_auto_recovery_repairs_ledgers_that_we_wrote(lent: ApacheWorld) -> None:
    """The ledgers are closed ones of two digest types, and one that its writer left open, with a lost bookie."""
    cluster, java = lent.cluster, lent.java
    await cluster.start_auto_recovery({**QUICK, "openLedgerRereplicationGracePeriod": "500"})
    async with await connect(cluster.metadata_uri) as client:
        ledgers = [await write(client), await write(client, DigestType.HMAC)]
        left = await client.create_ledger(LedgerOptions(3, 2, 2))
        for content in CONTENTS:
            await left.append(content)
        lost = left.metadata.last_fragment.members[0]
        await left.abandon()
        ledgers.append(left.ledger_id)
        await next(bookie for bookie in cluster.bookies if bookie.bookie_id == lost).stop()

        async def still_named() -> list[LedgerId]:
            return [one for one in ledgers if lost in (await metadata_of(client, one)).members()]

        await until(still_named, lambda found: not found, "no ledger names the lost bookie any more")
        await until(client.ports.tasks.list, lambda found: not found, "every task is completed")
        for ledger_id in ledgers:
            assert (await metadata_of(client, ledger_id)).is_closed
            assert await read(client, ledger_id) == CONTENTS
            assert (await java.call("check", ledger=ledger_id))["fragments"] == []


async def test_apaches_recover_command_moves_ledgers_that_we_wrote(lent: ApacheWorld) -> None:
    cluster, java = lent.cluster, lent.java
    async with await connect(cluster.metadata_uri) as client:
        ledger_id = await write(client)
        lost = (await metadata_of(client, ledger_id)).last_fragment.members[1]
        await next(bookie for bookie in cluster.bookies if bookie.bookie_id == lost).stop()
        await cluster.shell("recover", "-force", "-ledger", str(ledger_id), lost)
        assert lost not in (await metadata_of(client, ledger_id)).members()
        assert await read(client, ledger_id) == CONTENTS
        assert await java.read_all(ledger_id, password=b"secret") == expected(CONTENTS)


async def test_apaches_shell_reads_ledgers_that_we_wrote(apache_cluster: ApacheCluster) -> None:
    async with await connect(apache_cluster.metadata_uri) as client:
        ledger_id = await write(client)
    shown = await apache_cluster.shell("ledgermetadata", "-ledgerid", str(ledger_id))
    assert "CLOSED" in shown
    assert str(sum(map(len, CONTENTS))) in shown
    assert "secret" not in shown
    listed = await apache_cluster.shell("readledger", "-ledgerid", str(ledger_id), "-fe", "0", "-le", "3")
    assert entry_ids_in(listed, ledger_id) == [0, 1, 2, 3]
