"""A real auditor marks the ledgers of lost bookies whose cookies were deleted.

The gate covers its parts: the auditor's decisions in ``tests/unit/auditor/service/test_service_lost_bookies.py``, the
marks of bookies without a cookie in ``tests/spark/test_audit_run.py``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.embedded.cluster import LEDGERS_ROOT
from bookie.metadata.layout import cookie_path
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.runs.records import Runs
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunCause
from tests.integration.auditors import AuditorProcess, when
from tests.integration.clusters import connected, kill_bookies, start_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.usefixtures("quick_spark"),
]

HOUR_S = 3600


async def test_bookies_whose_cookies_were_deleted_before_and_after_their_loss_are_marked(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 4) as cluster, await connected(cluster) as client:
        there, _, early, late = (bookie.bookie_id for bookie in cluster.bookies)
        ledgers = LedgerStore(client.store, client.cluster, random.Random(1))
        of = {LedgerId(1): early, LedgerId(2): late}
        for ledger_id, bookie in of.items():
            metadata = LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), (there, bookie)),)).closed(EntryId(9), 100)
            await ledgers.create_many([(ledger_id, metadata)])
        switches = client.ports.tasks.switches
        await switches.set_lost_bookie_delay_s(HOUR_S)
        auditor = AuditorProcess(cluster, tmp_path, "auditor", "--no-ui-enabled", "--critical-delay-s", str(HOUR_S))
        async with auditor.process:
            await auditor.ready()

            async def are_lost(*bookies: str) -> bool:
                status = await auditor.status()
                seen = [lost["bookie_id"] for lost in status["bookies"]["lost"]]
                return bool(status["is_leader"] and status["bookies"]["writable"]) and seen == sorted(bookies)

            await when(are_lost)
            await client.store.delete(cookie_path(LEDGERS_ROOT, early))
            await kill_bookies(cluster, *cluster.bookies[2:])
            await when(lambda: are_lost(early, late))
            await client.store.delete(cookie_path(LEDGERS_ROOT, late))
            await switches.set_lost_bookie_delay_s(0)
            await when(are_lost)
            assert {task.ledger_id: task.missing for task in await client.ports.tasks.list()} == {
                ledger_id: (bookie,) for ledger_id, bookie in of.items()
            }
            runs = await Runs(client.store, LEDGERS_ROOT).list(10, now_ms=0)
            assert [run.cause for run in runs] == [RunCause.BOOKIE_LOSS]
