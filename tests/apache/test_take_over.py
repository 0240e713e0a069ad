"""bkheal takes over from Apache's auto-recovery, and stopping bkheal reverses this (docs/migration.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import ApacheBookie
from tests.apache.driver import expected, payloads
from tests.apache.programs import Replicator
from tests.apache.test_both_auditors import Auditor, candidates, leader
from tests.apache.waiting import until
from tests.apache.worlds import QUICK, ApacheWorld, connect, held, no_work_left, on
from tests.deadlines import PROGRAM_S, STATE_S

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("quick_spark")]

LONG_S = 4321
"""Much longer than any test."""
ENTRIES, ENTRY_BYTES = 60, 50_000
BYTES_PER_SECOND = ENTRIES * ENTRY_BYTES // 60
"""At this rate a repair takes a minute."""


@pytest.fixture
async def client(lent: ApacheWorld) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(lent.uri) as ours:
        yield ours


async def a_long_ledger(here: ApacheWorld, victim: ApacheBookie) -> tuple[int, ApacheBookie]:
    """Write a closed ledger with a copy on ``victim``, and return it with the one bookie without a copy."""
    handle = await on(here.java, {victim.bookie_id}, 3, 3, 3)
    members = set((await here.java.call("metadata", ledger=handle.ledger_id))["ensembles"]["0"])
    await handle.write(ENTRIES, seed="long", sizes=(ENTRY_BYTES,))
    await handle.close()
    (spare,) = [bookie for bookie in here.cluster.bookies if bookie.bookie_id not in members]
    return handle.ledger_id, spare


async def stops_in_the_middle(here: ApacheWorld, ledger_id: int, spare: ApacheBookie, directory: Path) -> None:
    """Stop our replicator with SIGTERM when it has copied a part of a ledger; it releases the task."""
    slowly = ("--bytes-per-second", str(BYTES_PER_SECOND), "--grace", "0.5", "--poll-interval", "1")
    ours = await Replicator.start(here.uri, directory, *slowly)
    await until(lambda: held(here.java, spare.bookie_id, ledger_id), bool, "some entries are copied")
    await ours.stop()
    assert ours.process.exit_code == 0
    assert ours.repaired == []


async def test_stopping_our_processes_gives_each_part_back_to_apache(
    lent: ApacheWorld, client: ConnectedBookKeeper, tmp_path: Path
) -> None:
    here, cluster, victim = lent, lent.cluster, lent.cluster.bookies[0]
    auditor = Auditor.launch(here.uri, tmp_path / "auditor")
    ledger_id, spare = await a_long_ledger(here, victim)
    await auditor.ready()
    await until(lambda: leader(client), bool, "our auditor leads")

    # Our leader obeys Apache's `triggeraudit`, and stops waiting for the bookie.
    await client.ports.tasks.switches.set_lost_bookie_delay_s(LONG_S)
    await here.kill9(victim)
    await until(auditor.lost, lambda names: names == [victim.bookie_id], "our auditor has recorded the loss")
    assert await here.tasks() == {}
    await cluster.shell("triggeraudit")
    wanted = {ledger_id: [victim.bookie_id]}
    await until(here.tasks, lambda found: found == wanted, "the ledger is marked", PROGRAM_S)

    before = await here.java.call("metadata", ledger=ledger_id)
    await stops_in_the_middle(here, ledger_id, spare, tmp_path / "ours")
    assert await client.ports.tasks.locks.locked() == frozenset()
    assert await here.tasks() == {ledger_id: [victim.bookie_id]}
    assert await here.java.call("metadata", ledger=ledger_id) == before
    recovery = await cluster.start_auto_recovery(QUICK)
    await no_work_left(here, client)
    (members,) = (await here.java.call("metadata", ledger=ledger_id))["ensembles"].values()
    assert spare.bookie_id in members
    assert victim.bookie_id not in members
    assert (await here.java.call("check", ledger=ledger_id))["fragments"] == []
    contents = payloads("long", range(ENTRIES), (ENTRY_BYTES,))
    assert await here.java.read_all(ledger_id) == expected(contents)

    await until(lambda: candidates(client), lambda count: count == 2, "both auditors are candidates")
    assert await leader(client) != recovery.address
    await auditor.process.stop(STATE_S)
    assert auditor.process.exit_code == 0
    await until(lambda: leader(client), lambda name: name == recovery.address, "Apache's auditor leads")
    assert await candidates(client) == 1
    assert (await here.java.call("auditor"))["auditor"] == recovery.address
