"""Real bookie processes with new disks, and their deletion of copies that belong elsewhere."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys

import pytest

from bookie.embedded.process import ManagedProcess
from bookie.metadata.ledgers.ledgers import LedgerStore
from bookie.metadata.tasks.underreplication import UnderReplication
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId
from bookie.model.metadata import Fragment, LedgerMetadata
from bookie.runtime.clock import SystemClock
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries, Read
from tests.deadlines import STATE_S
from tests.integration.test_bookie_process import LEDGER, READY, Machine, entry, machine
from tests.sessions import LONG_SESSION_S, kill9

__all__ = ["machine"]

pytestmark = pytest.mark.integration


def naming(bookie: str) -> LedgerMetadata:
    return LedgerMetadata(1, 1, 1, (Fragment(EntryId(0), (BookieId(bookie),)),))


async def lists(machine: Machine, bookie: BookieId) -> Status:
    async with asyncio.timeout(STATE_S):
        while (reply := await machine.transport.ask(bookie, ListEntries(LEDGER), STATE_S)).status.value >= 100:
            pass
    return reply.status


async def first_read(machine: Machine, bookie: BookieId) -> Status:
    reply = await machine.transport.ask(bookie, Read(LEDGER, [EntryId(0)]), STATE_S)
    return reply.results[0].status


async def test_a_start_after_lost_disks_needs_a_flag_and_reports_no_entry_as_never_written(
    machine: Machine,
) -> None:
    process, bookie = await machine.ready(port=0, bookie_id="disks")
    await LedgerStore(machine.store, machine.cluster, random.Random(1)).create(LEDGER, naming(bookie))
    assert await machine.add(bookie, entry(0)) is Status.OK
    await process.stop()
    for name in ("journal", "ledgers"):
        shutil.rmtree(machine.home / name)
    assert "--new-incarnation" in await machine.refused(ExitCode.CONFIGURATION, bookie_id="disks")
    uri = f"zk+hierarchical://{machine.hosts}{machine.root}"
    words = [
        "--metadata-uri",
        uri,
        "--port",
        "0",
        "--bookie-id",
        "disks",
        "--new-incarnation",
        "--session-timeout",
        str(LONG_SESSION_S),
    ]
    words += ["--journal-dir", str(machine.home / "journal"), "--ledger-dir", str(machine.home / "ledgers")]
    command = [sys.executable, "-m", "bookie.server", *words]
    process = ManagedProcess.start("bookie", command, log_path=machine.home / "log-new")
    machine.stack.push_async_callback(process.stop)
    await process.wait_for_line(READY, STATE_S)
    assert await lists(machine, bookie) is Status.LIMBO
    [task] = await UnderReplication(machine.store, machine.cluster, SystemClock()).list()
    assert (task.ledger_id, task.missing) == (LEDGER, (bookie,))
    await process.stop()
    process, _ = await machine.ready(bookie_id="disks")
    assert await lists(machine, bookie) is Status.LIMBO


async def test_a_bookie_with_a_rebuilt_index_reports_missing_entries_as_unknown(machine: Machine) -> None:
    process, bookie = await machine.ready(port=0, bookie_id="disks")
    await LedgerStore(machine.store, machine.cluster, random.Random(1)).create(LEDGER, naming(bookie))
    assert await machine.add(bookie, entry(0), entry(1)) is Status.OK
    await process.stop()
    shutil.rmtree(machine.home / "ledgers" / "current" / "index")
    assert "rebuild-index" in await machine.refused(ExitCode.STORAGE_FAILED, bookie_id="disks")
    places = ["--journal-dir", str(machine.home / "journal"), "--ledger-dir", str(machine.home / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "rebuild-index", *places, "--output", "json"]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    assert json.loads(ended.stdout)["entries"] == 2
    process, _ = await machine.ready(bookie_id="disks")
    assert await lists(machine, bookie) is Status.LIMBO
    assert await machine.read_all(bookie, 2) == [entry(0), entry(1)]
    assert await machine.add(bookie, entry(2)) is Status.LIMBO
    [task] = await UnderReplication(machine.store, machine.cluster, SystemClock()).list()
    assert (task.ledger_id, task.missing) == (LEDGER, (bookie,))
    await process.stop()
    await machine.ready(bookie_id="disks")  # it starts without further options


@pytest.mark.long
async def test_a_bookie_that_gave_up_a_lost_journal_reports_missing_entries_as_unknown(
    machine: Machine,
) -> None:
    process, bookie = await machine.ready(port=0, bookie_id="disks")
    await LedgerStore(machine.store, machine.cluster, random.Random(1)).create(LEDGER, naming(bookie))
    assert await machine.add(bookie, entry(0)) is Status.OK
    await process.stop()  # with a checkpoint, to have entry 0 in an entry log
    shutil.rmtree(machine.home / "journal")
    (machine.home / "journal").mkdir()
    assert "salvage-journal --lost" in await machine.refused(ExitCode.CONFIGURATION, bookie_id="disks")
    places = ["--journal-dir", str(machine.home / "journal"), "--ledger-dir", str(machine.home / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "salvage-journal", *places, "--lost"]
    await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    process, _ = await machine.ready(bookie_id="disks")
    assert await lists(machine, bookie) is Status.LIMBO
    assert await machine.read_all(bookie, 1) == [entry(0)]
    assert await machine.add(bookie, entry(1)) is Status.LIMBO
    [task] = await UnderReplication(machine.store, machine.cluster, SystemClock()).list()
    assert (task.ledger_id, task.missing) == (LEDGER, (bookie,))
    await process.stop()
    await machine.ready(bookie_id="disks")  # it starts without further options


@pytest.mark.long
async def test_a_bookie_does_not_start_with_an_older_copy_of_its_journal(machine: Machine) -> None:
    journal, copy = machine.home / "journal", machine.home / "copy"
    process, bookie = await machine.ready(port=0, bookie_id="disks")
    assert await machine.add(bookie, entry(0)) is Status.OK
    assert await process.stop(STATE_S) == 0
    shutil.copytree(journal, copy)
    process, _ = await machine.ready(bookie_id="disks")
    assert await machine.read_all(bookie, 1) == [entry(0)]
    assert await machine.add(bookie, entry(1)) is Status.OK
    assert await process.stop(STATE_S) == 0
    process, _ = await machine.ready(bookie_id="disks")
    assert await machine.read_all(bookie, 2) == [entry(0), entry(1)]
    assert await machine.add(bookie, entry(2)) is Status.OK
    await kill9(machine.zookeeper, process)  # the last entry is only in the journal
    journal.rename(machine.home / "present")
    copy.rename(journal)
    for _ in range(2):
        assert "is an older copy" in await machine.refused(ExitCode.STORAGE_FAILED, bookie_id="disks")
    journal.rename(copy)
    (machine.home / "present").rename(journal)
    await machine.ready(bookie_id="disks")
    assert await machine.read_all(bookie, 3) == [entry(0), entry(1), entry(2)]


async def test_a_closed_ledger_that_moved_elsewhere_is_collected(machine: Machine) -> None:
    _, bookie = await machine.ready(collect_interval=1)
    ledgers = LedgerStore(machine.store, machine.cluster, random.Random(1))
    created = await ledgers.create(LEDGER, naming(bookie))
    assert await machine.add(bookie, entry(0), entry(1)) is Status.OK
    moved = naming("elsewhere:1").closed(EntryId(1), 14)
    await ledgers.write(LEDGER, moved, created.version)
    async with asyncio.timeout(STATE_S):
        while await first_read(machine, bookie) is Status.OK:  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.2)
    assert await lists(machine, bookie) is Status.OK
    assert await machine.add(bookie, entry(2)) is Status.FENCED
