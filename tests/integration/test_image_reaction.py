"""A real auditor marks a killed bookie's ledgers by its image first, and the others in the pass over all ledgers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookie.embedded.cluster import LEDGERS_ROOT
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.runs.records import Runs
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.model.run import RunCause, RunKind, RunRecord
from tests.integration.auditors import AuditorProcess, when
from tests.integration.clusters import connected, kill_bookies, start_cluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.long,  # tests/spark/test_ledger_image.py finds the same defects
    pytest.mark.usefixtures("quick_spark"),
]

KNOWN = range(1, 31)
"""Ledgers of the image."""
NEW = range(31, 36)
"""Ledgers created after the image."""


def metadata(*members: BookieId) -> LedgerMetadata:
    return LedgerMetadata(2, 2, 2, (Fragment(EntryId(0), members),)).closed(EntryId(9), 100)


async def test_ledgers_of_a_lost_bookie_are_marked_from_the_image_and_then_by_the_full_run(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 3) as cluster, await connected(cluster) as client:
        a, b, victim = (bookie.bookie_id for bookie in cluster.bookies)
        ledgers = LedgerStore(client.store, client.cluster, random.Random(1))
        await ledgers.create_many([(LedgerId(number), metadata(a, victim if number % 2 else b)) for number in KNOWN])
        runs = Runs(client.store, LEDGERS_ROOT)

        async def ended(cause: RunCause) -> RunRecord:
            async def is_over() -> bool:
                return any(run.cause is cause and run.state.is_final for run in await runs.list(10, now_ms=0))

            await when(is_over)
            return next(run for run in await runs.list(10, now_ms=0) if run.cause is cause)

        options = ("--no-ui-enabled", "--with-image", "--bookies-schedule", "1d", "--schedule-jitter-s", "0")
        auditor = await AuditorProcess(cluster, tmp_path, "auditor", *options, "--missing-share-max", "0.5").ready()
        async with auditor.process:
            clean = await ended(RunCause.SCHEDULE)
            assert (clean.kind, clean.image["marked"], clean.image["written_ledgers"]) == (RunKind.BOOKIES, 0, 30)
            await ledgers.create_many([(LedgerId(number), metadata(b, victim)) for number in NEW])
            await kill_bookies(cluster, cluster.bookies[2])
            run = await ended(RunCause.BOOKIE_LOSS)
            assert (run.image["marked"], run.image["written_ledgers"], run.tasks_changed) == (15, 35, 20)
            marked = {task.ledger_id: task.missing for task in await client.ports.tasks.list()}
            assert marked == dict.fromkeys((*range(1, 31, 2), *NEW), (victim,))
            await auditor.served.until_value(15, "bkheal_audit_last_run_image_marks", "bookies")
