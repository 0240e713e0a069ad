"""Real processes: metrics count the events, and probes distinguish ZooKeeper from the process."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from auditor.api.control import Backlog, ServiceStatus
from auditor.metrics.service_metrics import AuditorMetrics
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId
from bookie.runtime.clock import SystemClock
from bookie.runtime.telemetry.metrics import render
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.clusters import LONG_TIMEOUTS
from tests.integration.served import Served
from tests.required import missing
from tests.sessions import LONG_SESSION_S, kill9

pytestmark = pytest.mark.integration

ENTRIES = 500


@dataclass
class Machine:
    """The processes of a test, with their start and end."""

    uri: str
    home: Path
    stack: AsyncExitStack

    async def bookie(self, name: str) -> tuple[Served, BookieId]:
        folder = self.home / name
        where = ("--journal-dir", str(folder / "journal"), "--ledger-dir", str(folder / "ledgers"))
        pace = ("--read-only-below-bytes", "0", "--session-timeout", str(LONG_SESSION_S))
        served = await self._start(name, "bookie.server", *where, *pace, "--port", "0")
        ready = await served.process.wait_for_line(r"^bookie (\S+) ready on", STATE_S)
        return served, BookieId(ready[1])

    async def replicator(self, *options: str) -> Served:
        served = await self._start("replicator", "replicator", "--poll-interval", "0.5", *options)
        await served.process.wait_for_line("^replicator ready$", STATE_S)
        return served

    async def _start(self, name: str, module: str, *options: str) -> Served:
        command = [sys.executable, "-m", module, "--metadata-uri", self.uri, "--http-port", "0", *options]
        process = ManagedProcess.start(name, command, log_path=self.home / f"{name}.log")
        self.stack.push_async_callback(process.stop)
        line = await process.wait_for_line(r"metrics on (http://127\.0\.0\.1:\d+)$", STATE_S)
        return Served(process, line[1])


@asynccontextmanager
async def machine_on(hosts: str, root: str, home: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        store = await ZooKeeperStore.connect(hosts)
        stack.push_async_callback(store.close)
        await format_cluster(store, root, rng=random.Random())
        yield Machine(f"zk+hierarchical://{hosts}{root}", home, stack)


@pytest.fixture
async def machine(zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_on(zookeeper.connect_string, fresh_root, tmp_path) as machine:
        yield machine


async def test_a_repair_is_counted_by_the_processes_that_took_part(
    zookeeper: EmbeddedZooKeeper, machine: Machine
) -> None:
    bookies = {bookie: served for served, bookie in [await machine.bookie(f"bookie-{n}") for n in range(3)]}
    async with await connect(machine.uri, LONG_TIMEOUTS, session_timeout_s=LONG_SESSION_S) as client:
        async with await client.create_ledger(LedgerOptions(2, 2, 2)) as writer:
            for entry in range(ENTRIES):
                await writer.submit(b"%d" % entry)
        members = sorted(writer.metadata.members())
        for bookie in members:
            values = await bookies[bookie].values()
            assert values["bkheal_bookie_added_entries_total",] == ENTRIES
            assert values["bkheal_bookie_requests_total", "add", "ok"] >= 1
            assert values["bkheal_bookie_journal_sync_duration_seconds_count",] >= 1
            assert values["bkheal_bookie_ledgers",] == 1
            assert values["bkheal_bookie_disk_total_bytes", "journal"] > 0
            for name in ("bookie_registered", "bookie_writable", "zookeeper_session_connected"):
                await bookies[bookie].until_value(1, f"bkheal_{name}")
            assert await bookies[bookie].until_status("/readyz?verbose", 200) == "[+]registered ok\nok\n"
        lost = members[0]
        await kill9(zookeeper, bookies[lost].process)
        await client.ports.tasks.initialize()
        await client.ports.tasks.marking.mark(writer.ledger_id, [lost])
        replicator = await machine.replicator("--compat-metrics", "--pull")
        await replicator.until_value(1, "bkheal_replicator_tasks_total", "repaired")
        await replicator.until_value(ENTRIES, "bkheal_replicator_copied_entries_total")
        values = await replicator.values()
        assert values["bkheal_replicator_repaired_fragments_total",] == 1
        assert values["bkheal_replicator_copied_bytes_total",] > ENTRIES
        assert values["bkheal_replicator_tasks_total", "failed"] == 0
        assert values["bkheal_time_to_full_seconds_count",] == 1
        assert values["bkheal_replicator_last_progress_timestamp_seconds",] > 0
        assert values["replication_worker_NUM_ENTRIES_WRITTEN",] == values["bkheal_replicator_copied_entries_total",]
        await replicator.until_value(1, "bkheal_zookeeper_session_connected")
        await replicator.until_status("/readyz", 200)
        [newcomer] = [served for bookie, served in bookies.items() if bookie not in members]
        copied = await newcomer.values()
        added = copied["bkheal_bookie_added_entries_total",]
        assert added >= values["bkheal_replicator_copied_entries_total",] >= ENTRIES
        # The worker neither read nor sent an entry: the target read each entry once from the source.
        assert values["bkheal_replicator_pulled_bytes_total",] == values["bkheal_replicator_copied_bytes_total",]
        assert copied["bkheal_bookie_requests_total", "copy", "ok"] >= 1
        assert copied["bkheal_bookie_requests_total", "add", "ok"] == 0
        source = await bookies[members[1]].values()
        assert source["bkheal_bookie_read_entries_total",] == ENTRIES
        assert source["bkheal_bookie_read_bytes_total",] == values["bkheal_replicator_copied_bytes_total",]


@pytest.fixture
async def own_zookeeper(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    async with await EmbeddedZooKeeper.start(tmp_path / "zookeeper", is_durable=False) as server:
        yield server


async def test_without_zookeeper_processes_are_live_but_not_ready(
    own_zookeeper: EmbeddedZooKeeper, tmp_path: Path
) -> None:
    async with machine_on(own_zookeeper.connect_string, "/ledgers", tmp_path) as machine:
        bookie, _ = await machine.bookie("bookie")
        replicator = await machine.replicator()
        own_zookeeper.kill()
        await own_zookeeper.process.wait(STATE_S)
        assert "[-]registered: not registered" in await bookie.until_status("/readyz", 503)
        assert "[-]store: no connected session" in await replicator.until_status("/readyz", 503)
        for served in (bookie, replicator):
            assert await served.get("/livez") == (200, "ok\n")
            assert (await served.values())["bkheal_zookeeper_session_connected",] == 0
        assert (await bookie.values())["bkheal_bookie_registered",] == 0
        await own_zookeeper.restart()
        for served in (bookie, replicator):
            await served.until_status("/readyz", 200)
            await served.until_value(1, "bkheal_zookeeper_session_connected")


async def test_a_port_in_use_is_a_configuration_error(machine: Machine) -> None:
    served, _ = await machine.bookie("bookie")
    taken = served.url.rpartition(":")[2]
    for module, options in (("replicator", ()), ("bookie.server", ("--journal-dir", "j", "--ledger-dir", "l"))):
        command = [sys.executable, "-m", module, "--metadata-uri", machine.uri, "--http-port", taken, *options]
        ended = await asyncio.to_thread(
            subprocess.run, command, cwd=machine.home, capture_output=True, text=True, timeout=PROGRAM_S
        )
        assert (ended.returncode, f":{taken}" in ended.stderr) == (78, True), ended.stderr


async def test_promtool_accepts_the_metrics(machine: Machine) -> None:
    bookie, _ = await machine.bookie("bookie")
    replicator = await machine.replicator()
    status = ServiceStatus("1", "p", True, "p", True, machine.uri, "i", True, 600, backlog=Backlog(counted_ms=1))
    auditor = AuditorMetrics("1", SystemClock())
    auditor.show(status)
    scrapes = [(await served.get("/metrics"))[1] for served in (bookie, replicator)] + [_text(auditor.registry)]
    for text in scrapes:
        assert text.count("# HELP bkheal_") > 5
        assert await asyncio.to_thread(_lint, text) == (0, "")


def _text(registry: CollectorRegistry) -> str:
    return render(registry).body.decode()


def _lint(text: str) -> tuple[int, str]:
    command = [_promtool(), "check", "metrics"]
    linted = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PROGRAM_S)
    return linted.returncode, linted.stdout + linted.stderr


def _promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        missing("promtool", "no promtool: install Debian's package prometheus")
    return found
