"""The site of the operator guide, as real processes: two auditors, two replicators, and bookies with ledgers.

Stages share one site. Each begins with ``Site.whole``, which restarts the processes that an earlier stage killed. So no
stage depends on the order, or on the success of another.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from auditor.quickstart.proof import prove_copies
from auditor.quickstart.workload import WrittenLedger, write_and_close
from auditor.quickstart.workload_plan import settled_ledgers
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import LEDGERS_ROOT, EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.layout import AVAILABLE, tasks_path
from bookie.metadata.ledgers.ledgers import Versioned
from bookie.metadata.runs.election import current_auditor, election_path
from bookie.metadata.runs.records import Runs
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord
from bookie.runtime.ports import free_loopback_port
from tests.deadlines import STATE_S
from tests.integration.auditors import AuditorProcess, votes, when
from tests.integration.clusters import connected, start_cluster
from tests.integration.command_process import CommandProcess
from tests.integration.commands import answer, bkheal, output
from tests.integration.served import Served
from tests.integration.tab_forms import forms_of, post
from tests.sessions import Killable, end_sessions, kill9, sessions_of

BOOKIES = 6
LEDGERS = 40
LONG_DELAY_S = 600
"""An interval longer than any test."""
RUNS_MAX = 100


@dataclass(frozen=True, slots=True)
class Published:
    """A state of the marks and runs. If two states are equal, there was no mark and no run in between."""

    tree_version: int
    """The version of the children of the tasks' root, which has none now. Each creation and removal increases it."""
    run_ids: tuple[str, ...]


@dataclass
class Site:
    """The site of the operator guide with its processes."""

    cluster: EmbeddedCluster
    client: ConnectedBookKeeper
    home: Path
    command_process: CommandProcess
    written: list[WrittenLedger] = field(default_factory=list)
    auditors: dict[str, AuditorProcess] = field(default_factory=dict)
    ui_ports: dict[str, int] = field(default_factory=dict)
    replicators: dict[str, Served] = field(default_factory=dict)

    async def whole(self, *, delay_s: int = LONG_DELAY_S) -> None:
        """Start stopped processes, and wait until nothing is lost or marked and no run is active, with this delay."""
        await self._delay(LONG_DELAY_S)
        ended = [bookie for bookie in self.cluster.bookies if not bookie.running.is_running]
        for bookie in ended:
            bookie.launch()
        for name in ("auditor-1", "auditor-2"):
            if name not in self.auditors or not self.auditors[name].process.is_running:
                self._start_auditor(name)
        for name in ("replicator-1", "replicator-2"):
            if name not in self.replicators or not self.replicators[name].process.is_running:
                await self._start_replicator(name)
        for bookie in ended:
            await bookie.wait_ready()
        for auditor in self.auditors.values():
            await auditor.ready()
        await when(self._is_whole)
        await self._delay(delay_s)

    async def stop(self) -> None:
        """End all processes started here."""
        processes = [auditor.process for auditor in self.auditors.values()]
        processes += [served.process for served in self.replicators.values()]
        codes = await asyncio.gather(*(process.stop(STATE_S) for process in processes if process.is_running))
        assert set(codes) <= {0}, codes

    async def stop_auditors(self) -> None:
        """Stop the auditors regularly. ``whole`` starts them again."""
        codes = await asyncio.gather(*(auditor.process.stop(STATE_S) for auditor in self.auditors.values()))
        assert set(codes) == {0}, codes
        assert await votes(self.client.store) == 0

    async def bkheal(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run a command as an operator does."""
        return await bkheal(self.cluster.metadata_uri, *arguments, code=code)

    async def asked(self, *arguments: str) -> dict[str, Any]:
        """Do the same as ``bkheal``, without a process for each command."""
        return answer(await self.command_process.run(self.cluster.metadata_uri, *arguments, "--output", "json"))

    async def reported(self, *arguments: str) -> None:
        """Do the same as ``asked``, for a command that prints no document."""
        output(await self.command_process.run(self.cluster.metadata_uri, *arguments))

    async def report(self, *arguments: str) -> dict[str, Any]:
        """Run ``bkheal report`` on the auditors' reports."""
        return await self.bkheal("report", *arguments, "--report-dir", str(self.home / "reports"))

    async def leader(self) -> str:
        """Return the name of the auditor with the lowest vote; empty if it does not run."""
        vote = await current_auditor(self.client.store, LEDGERS_ROOT)
        living = [name for name, auditor in self.auditors.items() if auditor.process.is_running]
        return next((name for name in living if vote.endswith(f":{self.auditors[name].process.pid}")), "")

    async def one_leads(self) -> bool:
        """Whether both auditors stand for election, and only the one with the lowest vote leads."""
        name = await self.leader()
        leading = [each for each, auditor in self.auditors.items() if await auditor.leads()]
        return leading == [name] and await votes(self.client.store) == len(self.auditors)

    async def follow(self, killed: str) -> str:
        """Wait until the other auditor leads with the vote that it had before, and return its name."""
        (other,) = self.auditors.keys() - {killed}
        await when(self.auditors[other].leads)
        assert await self.leader() == other
        return other

    async def vote_names(self) -> list[str]:
        """Return the names of the votes' nodes."""
        return sorted((await self.client.store.children(election_path(LEDGERS_ROOT))).names)

    async def published(self) -> Published:
        """Return the present state, for comparison with a later one. Nothing must be marked now."""
        stat = await self.client.store.stat(tasks_path(LEDGERS_ROOT))
        assert stat is not None
        assert stat.children_count == 0
        return Published(stat.children_version, tuple(run.run_id for run in await self.runs()))

    async def runs(self) -> list[RunRecord]:
        """Return the runs, the newest first."""
        return await Runs(self.client.store, LEDGERS_ROOT).list(RUNS_MAX, now_ms=0)

    async def run(self, run_id: str) -> RunRecord:
        """Return one run."""
        found = await Runs(self.client.store, LEDGERS_ROOT).get(run_id)
        assert found is not None
        return found

    async def run_after(self, before: Published, kind: RunKind, cause: RunCause) -> RunRecord:
        """Wait for the end of the run that starts after ``before``."""

        async def is_over() -> bool:
            return any(run.state.is_final for run in await self._since(before, kind, cause))

        await when(is_over)
        (run,) = await self._since(before, kind, cause)
        return run

    async def is_repaired(self) -> bool:
        """Whether nothing is marked."""
        stat = await self.client.store.stat(tasks_path(LEDGERS_ROOT))
        return stat is not None and stat.children_count == 0

    async def down(self) -> dict[BookieId, int]:
        """Return the recorded time of the loss of each lost bookie, in epoch milliseconds."""
        noted = await FirstSeenDown(self.client.store, LEDGERS_ROOT).read()
        return {bookie: down.since_ms for bookie, down in noted.items()}

    async def until_down(self, *bookies: BookieId) -> dict[BookieId, int]:
        """Wait until exactly these bookies are recorded as lost."""

        async def are_noted() -> bool:
            return (await self.down()).keys() == set(bookies)

        await when(are_noted)
        return await self.down()

    async def metadata(self) -> dict[LedgerId, Versioned]:
        """Return the metadata of every written ledger."""
        ids = [ledger.ledger_id for ledger in self.written]
        return {ledger_id: await self.client.ports.ledgers.read(ledger_id) for ledger_id in ids}

    async def prove(self, dead: BookieId) -> None:
        """Check that all copies of all entries are intact, in their places, and not on this bookie."""
        await prove_copies(self.client, self.written, dead, lambda: None)

    async def press(self, kind: RunKind) -> None:
        """Wait for the tab in the leader's Spark UI, and press the button for this kind of run."""
        port = self.ui_ports[await self.leader()]
        forms: list[dict[str, str]] = []

        async def has_button() -> bool:
            forms[:] = [form for form in await asyncio.to_thread(forms_of, port) if form.get("kind") == kind.value]
            return bool(forms)

        await when(has_button)
        (form,) = forms
        path = form.pop("action")
        assert await asyncio.to_thread(post, port, path, form) == (303, "/auditor/")

    async def kill9(self, *killed: Killable | ManagedProcess) -> None:
        """Kill these processes with SIGKILL, and return after their sessions have ended."""
        await kill9(self.cluster.zookeeper, *killed)

    async def outage(self, during: Callable[[], Awaitable[None]]) -> None:
        """Stop ZooKeeper, end the session of every process, and start it again at the same port.

        Only a running server can end sessions, so a server runs for a moment with the same data on another port.

        Args:
            during: the checks while no server runs.
        """
        directory, port = self.home / "zookeeper", self.cluster.zookeeper.port
        sessions = [
            session for one in self.everything() for session in await sessions_of(self.cluster.zookeeper, one.process)
        ]
        await self.cluster.zookeeper.stop()
        await during()
        async with await EmbeddedZooKeeper.start(directory, is_durable=False) as elsewhere:
            assert elsewhere.port != port
            await end_sessions(elsewhere, sessions)
            store = await ZooKeeperStore.connect(elsewhere.connect_string)
            try:
                for parent in (f"{LEDGERS_ROOT}/{AVAILABLE}", election_path(LEDGERS_ROOT)):

                    async def is_empty(parent: str = parent) -> bool:
                        return not [name for name in (await store.children(parent)).names if name != "readonly"]

                    await when(is_empty)
            finally:
                await store.close()
        self.cluster.zookeeper = await EmbeddedZooKeeper.start(directory, port=port, is_durable=False)

    def bookies(self) -> dict[BookieId, Served]:
        """Return each bookie's metrics and probes."""
        return {bookie.bookie_id: Served(bookie.running, bookie.metrics_url) for bookie in self.cluster.bookies}

    def everything(self) -> list[Served]:
        """Return all processes except ZooKeeper."""
        auditors = [auditor.served for auditor in self.auditors.values()]
        return [*auditors, *self.replicators.values(), *self.bookies().values()]

    async def _delay(self, seconds: int) -> None:
        """Set the lost-bookie delay if it differs, because setting even the same value requests an audit."""
        if (await self.asked("recovery", "delay"))["lost_bookie_delay_seconds"] != seconds:
            await self.asked("recovery", "delay", str(seconds))

    async def _since(self, before: Published, kind: RunKind, cause: RunCause) -> list[RunRecord]:
        new = [run for run in await self.runs() if run.run_id not in before.run_ids]
        assert {(run.kind, run.cause) for run in new} <= {(kind, cause)}
        return new

    async def _is_whole(self) -> bool:
        if not await self.one_leads() or not await self.is_repaired():
            return False
        status = await self.auditors[await self.leader()].status()
        return (
            len(status["bookies"]["writable"]) == len(self.cluster.bookies)
            and not status["bookies"]["lost"]
            and status["lost_bookie_delay_seconds"] == LONG_DELAY_S
            and not await self.down()
            and all(run.state.is_final for run in await self.runs())
        )

    def _start_auditor(self, name: str) -> None:
        port = self.ui_ports[name] = free_loopback_port(random.SystemRandom())
        ui = ("--ui-port", str(port), "--ui-trigger-enabled", "--ui-allow-anonymous")
        api = ("--requests-per-second", "1000", "--allow-anonymous-write")
        self.auditors[name] = AuditorProcess(self.cluster, self.home, name, *ui, *api)

    async def _start_replicator(self, name: str) -> None:
        command = [sys.executable, "-m", "auditor.cli.main", "replicator", "--http-port", "0"]
        command += ["--metadata-uri", self.cluster.metadata_uri]
        process = ManagedProcess.start(name, command, log_path=self.home / f"{name}.log")
        self.replicators[name] = Served(process, "")
        line = await process.wait_for_line(r"metrics on (http://127\.0\.0\.1:\d+)$", STATE_S)
        self.replicators[name].url = line[1]


@asynccontextmanager
async def site_in(home: Path, command_process: CommandProcess) -> AsyncIterator[Site]:
    """Run a site with ledgers of all shapes that survive the loss of one bookie."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(await start_cluster(home, BOOKIES, serves_metrics=True))
        client = await stack.enter_async_context(await connected(cluster))
        specs = [spec for spec in settled_ledgers(random.Random(1)) if spec.options.write_quorum > 1]
        site = Site(cluster, client, home, command_process)
        stack.push_async_callback(site.stop)
        site.written = await write_and_close(client, specs[:LEDGERS], lambda _: None)
        yield site
