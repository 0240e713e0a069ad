"""The loss of a ledger directory of a bookie: an audit finds its entries, and a repair stores them in the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bookie.server.joining.directories import CURRENT
from bookie.storage.entry_logs.entry_log import DIRECTORY
from bookie.wire.port import Status
from spark_jobs.report.files import FINDINGS
from tests.integration.damaged_world import ENTRIES, current
from tests.integration.test_damaged_bytes import Damaged

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    with asyncio.Runner() as runner:
        world = runner.run(Damaged.start(tmp_path_factory.mktemp("lost-directory"), runner))
        try:
            yield world
        finally:
            runner.run(world.stop())


def test_the_data_of_a_lost_directory_is_found_missing_and_repaired_in_place(
    spark: SparkSession, world: Damaged
) -> None:
    ledger_id, first = world.do(world.written()), world.bookies[0]
    more = first.directory / "more"
    first.options = ("--ledger-dir", f"{first.directory / 'ledgers'},{more}")
    world.do(world.settle(first))  # adds the directory, and moves the entries of the journal to the entry logs
    assert (more / CURRENT / "VERSION").exists()
    for log in (current(first) / DIRECTORY).glob("*.log"):
        log.rename(more / CURRENT / DIRECTORY / log.name)  # both are on one disk, so the bookie may use either
    world.do(world.start_again(first))
    assert world.do(world.listed(first, ledger_id)) == (Status.OK, [*range(ENTRIES)])

    world.do(world.kill(first))
    more.rename(first.directory / "lost")
    world.do(world.start_again(first))
    assert world.do(world.listed(first, ledger_id)) == (Status.CORRUPT, [])
    assert world.do(world.statuses(first, ledger_id, 0)) == (Status.OK, (Status.IO_ERROR,))
    assert world.do(world.statuses(first, ledger_id, ENTRIES)) == (Status.OK, (Status.NO_ENTRY,))

    result = world.check(spark, ledger_id)
    assert (result.summary.is_complete, result.summary.problems) == (True, ())
    [finding] = pq.read_table(result.summary_path.parent / FINDINGS).to_pylist()
    assert (finding["kind"], list(finding["missing"])) == ("DAMAGED_ENTRIES", [first.bookie_id])
    assert ledger_id in world.do(world.marked())

    world.repair()
    assert ledger_id not in world.do(world.marked())
    assert world.do(world.listed(first, ledger_id)) == (Status.OK, [*range(ENTRIES)])
    assert world.do(world.statuses(first, ledger_id, 0)) == (Status.OK, (Status.OK,))
    assert world.do(world.client.ports.ledgers.read(ledger_id)).metadata.members() == {
        each.bookie_id for each in world.bookies
    }
