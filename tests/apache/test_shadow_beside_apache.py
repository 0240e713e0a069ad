"""Shadow mode with Apache's auditor: both find the same, and a removed task is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.embedded.apache import LEDGERS_ROOT
from bookie.metadata.layout import task_path
from bookie.metadata.runs.check_times import CheckKind, CheckTimes
from bookie.metadata.runs.election import current_auditor
from bookie.metadata.tasks.format import NO_TIME
from bookie.model.ids import LedgerId
from tests.apache.programs import Comparison
from tests.apache.waiting import until
from tests.apache.worlds import LONG_SESSION, QUICK, ApacheWorld, connect, gone, written

pytestmark = pytest.mark.apache

LEDGERS = 4


async def test_both_auditors_find_the_same_and_a_deleted_task_is_reported(
    lent: ApacheWorld, shadow: Comparison, tmp_path: Path
) -> None:
    """Every bookie has a copy of every ledger, so Apache's worker cannot repair while one is stopped."""
    here = lent
    ledgers = [ledger.ledger_id for ledger in await written(here.java, ((4, 4, 4),), LEDGERS)]
    lost = here.cluster.bookies[0]
    recovery = await here.cluster.start_auto_recovery({**QUICK, **LONG_SESSION})
    async with await connect(here.uri) as client:

        async def leader() -> str:
            return await current_auditor(client.store, LEDGERS_ROOT)

        await until(leader, lambda name: name == recovery.address, "Apache's auditor leads")
        # Its first check of all ledgers reads from their bookies, and marks the unreadable ones.
        checks = CheckTimes(client.store, client.cluster)
        await until(
            lambda: checks.read(CheckKind.ALL_LEDGERS), lambda time: time != NO_TIME, "it has checked all ledgers"
        )
        await lost.stop()
        await gone(client, lost.bookie_id)
        wanted = {ledger_id: [lost.bookie_id] for ledger_id in ledgers}
        await until(here.tasks, lambda found: found == wanted, "Apache's auditor has marked every ledger")

        code, found = await shadow(here.uri, tmp_path, settle_s=0)
        assert code == 0, found
        assert (found["auditor"], found["ledgers"], found["agree"]) == (recovery.address, LEDGERS, LEDGERS)
        assert (found["only_here"], found["only_there"], found["differ"], found["items"]) == (0, 0, 0, [])
        assert await here.tasks() == wanted

        recovery.running.pause()  # it leads until its session ends, and marks nothing again
        taken = ledgers[1]
        await client.store.delete(task_path(LEDGERS_ROOT, LedgerId(taken)))
        code, found = await shadow(here.uri, tmp_path, settle_s=0)
        assert code == 1, found
        assert (found["agree"], found["only_here"], found["unexplained"]) == (LEDGERS - 1, 1, 1)
        (item,) = found["items"]
        assert (item["ledger_id"], item["outcome"], item["reason"]) == (taken, "only here", "not marked")
        assert (item["found"], item["marked"]) == ([lost.bookie_id], None)
        assert taken not in await here.tasks()  # the comparison marked nothing
