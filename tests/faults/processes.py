"""The processes of a service, and the faults that end, pause and replace them."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final, TypeAlias

from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.model.ids import BookieId
from tests.deadlines import PROGRAM_S, STATE_S

LOST_BOOKIE_DELAY_S: Final = 5
_AUDITORS: Final = 2
_REPLICATORS: Final = 2
_AWAY_S: Final = (0.0, 2.0, 8.0, 30.0)
"""How long a killed bookie stays away. Its session ends after 10 s, and its ledgers are marked after 5 s more."""
_PAUSES_S: Final = (1.0, 4.0, 15.0, 40.0)
"""How long a process is paused: less and more than a request may take, and more than a session lasts."""
_ZOOKEEPER_AWAY_S: Final = (0.0, 3.0, 15.0)
_BOOKIES_AWAY_MAX: Final = 2
"""The most bookies that are away at a time. With more, most ledgers could not be written."""
_START_AGAIN_S: Final = 1.0
_OPTIONS: Final = {"replicator-2": ("--pull",)}
_NUMBER: Final = re.compile(r"-\d+")
"""The number at the end of the name of a process."""


_Bookie: TypeAlias = EmbeddedBookie | ApacheBookie


class Service:
    """The processes of one cluster, and those that audit and repair it. Use it with ``async with``."""

    def __init__(
        self, cluster: EmbeddedCluster, apache: ApacheCluster | None, rng: random.Random, say: Callable[[str], None]
    ) -> None:
        """Take over the bookies of ``cluster``, and those of ``apache`` with the same ZooKeeper."""
        self.destroyed: set[BookieId] = set()
        """The ids of destroyed bookies."""
        self._cluster = cluster
        self._apache = apache
        self._rng = rng
        self._say = say
        self._bookies: list[_Bookie] = [*cluster.bookies, *(() if apache is None else apache.bookies)]
        """Those that were not destroyed."""
        self._bookies_wanted = len(self._bookies)
        self._workers: list[ManagedProcess] = []
        """The auditors and the replicators."""
        self._away: set[str] = set()
        """The names of the servers that are killed or paused now."""
        self._faults: Counter[str] = Counter()
        self._under_way: set[asyncio.Task[None]] = set()
        """Faults whose process does not run again yet."""

    def __str__(self) -> str:
        return "faults: " + ", ".join(f"{count} {what}" for what, count in sorted(self._faults.items()))

    async def __aenter__(self) -> Service:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await asyncio.gather(*(worker.stop(STATE_S) for worker in self._workers))

    def start_workers(self) -> None:
        """Start the auditors and the replicators."""
        names = [f"auditor-{number + 1}" for number in range(_AUDITORS)]
        names += [f"replicator-{number + 1}" for number in range(_REPLICATORS)]
        self._workers = [self._started(name) for name in names]

    def cause_fault(self, *, is_repaired: bool) -> None:
        """Cause a random fault. What it stops runs again later.

        Args:
            is_repaired: whether every ledger has its copies on registered bookies, so that one bookie may be destroyed.
        """
        faults: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *(self._kill_bookie, self._kill_bookie, self._stop_bookie, self._pause_bookie),
            *(self._kill_worker, self._kill_worker, self._pause_worker),
            *(self._kill_zookeeper, self._pause_zookeeper),
        ]
        if is_repaired and not self._away:
            faults += [self._destroy_bookie] * len(faults)
        self._do(self._rng.choice(faults)())

    def start_ended(self) -> None:
        """Start each process again that ended by itself, as a supervisor would."""
        for index, worker in enumerate(self._workers):
            if not worker.is_running:
                self._note(f"{worker.name} ended with {worker.exit_code}")
                self._workers[index] = self._started(worker.name)
        for bookie in self._bookies:
            if bookie.name not in self._away and not bookie.running.is_running:
                self._note(f"{bookie.name} ended with {bookie.running.exit_code}")
                self._away.add(bookie.name)
                self._do(self._start(bookie))

    async def recovered(self) -> None:
        """Wait until everything that a fault stopped runs again.

        Raises:
            EmbeddedProcessError: a server did not start.
        """
        while self._under_way:
            await asyncio.gather(*self._under_way)

    async def audit_copies(self) -> None:
        """Mark every ledger that lacks a copy on a registered bookie, for example because an add was not answered.

        Raises:
            EmbeddedProcessError: the audit failed.
        """
        words = [*_command("audit", "run"), "--metadata-uri", self._cluster.metadata_uri, "--kind", "replicas"]
        words += ["--report-dir", str(self._cluster.directory / "copies"), "--master", "local[1]"]
        process = ManagedProcess.start("audit", words, log_path=self._cluster.directory / "audit.log")
        async with process:
            if code := await process.wait(PROGRAM_S):
                raise EmbeddedProcessError(f"the audit of copies ended with {code}: {process.log_tail()}")

    def _do(self, fault: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(fault)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _note(self, what: str, seconds: float | None = None) -> None:
        self._say(what if seconds is None else f"{what} for {seconds:g} s")
        self._faults[_NUMBER.sub("", what)] += 1

    def _away_soon(self, what: str, seconds: float) -> _Bookie | None:
        """Choose a bookie for a fault; None if enough of them are away."""
        present = [bookie for bookie in self._bookies if bookie.name not in self._away]
        if self._bookies_wanted - len(present) >= _BOOKIES_AWAY_MAX:
            return None
        bookie = self._rng.choice(present)
        self._note(f"{what} {bookie.name}", seconds)
        self._away.add(bookie.name)
        return bookie

    async def _kill_bookie(self) -> None:
        away_s = self._rng.choice(_AWAY_S)
        if (bookie := self._away_soon("kill", away_s)) is not None:
            await bookie.kill9()
            await asyncio.sleep(away_s)
            await self._start(bookie)

    async def _stop_bookie(self) -> None:
        away_s = self._rng.choice(_AWAY_S)
        if (bookie := self._away_soon("stop", away_s)) is not None:
            await bookie.running.stop(STATE_S)
            await asyncio.sleep(away_s)
            await self._start(bookie)

    async def _pause_bookie(self) -> None:
        paused_s = self._rng.choice(_PAUSES_S)
        if (bookie := self._away_soon("pause", paused_s)) is not None:
            await self._pause(bookie.running, paused_s)
            self._away.discard(bookie.name)

    async def _destroy_bookie(self) -> None:
        """Remove a bookie and its directories for ever, and start a new one."""
        away_s = self._rng.choice(_AWAY_S)
        if (bookie := self._away_soon("destroy", away_s)) is None:
            return
        self._bookies.remove(bookie)
        self.destroyed.add(bookie.bookie_id)
        await bookie.kill9()
        await asyncio.to_thread(shutil.rmtree, bookie.directory)
        await asyncio.sleep(away_s)
        maker = self._cluster if isinstance(bookie, EmbeddedBookie) or self._apache is None else self._apache
        try:
            await maker.add_bookies(1)
        except EmbeddedProcessError:
            await self._start(maker.bookies[-1])
        self._bookies.append(maker.bookies[-1])
        self._away.discard(bookie.name)

    async def _start(self, bookie: _Bookie) -> None:
        """Start a bookie. It may end again if ZooKeeper is away at the same time, as under a supervisor."""
        async with asyncio.timeout(PROGRAM_S):
            while True:
                bookie.launch()
                try:
                    await bookie.wait_ready()
                except EmbeddedProcessError as error:
                    self._note(f"no start of {bookie.name}")
                    self._say(str(error))
                    await bookie.kill9()
                    await asyncio.sleep(_START_AGAIN_S)
                else:
                    self._away.discard(bookie.name)
                    return

    async def _kill_worker(self) -> None:
        index = self._rng.randrange(len(self._workers))
        worker = self._workers[index]
        self._note(f"kill {worker.name}")
        worker.kill9()
        await worker.wait(STATE_S)
        if self._workers[index] is worker:
            self._workers[index] = self._started(worker.name)

    async def _pause_worker(self) -> None:
        worker, paused_s = self._rng.choice(self._workers), self._rng.choice(_PAUSES_S)
        self._note(f"pause {worker.name}", paused_s)
        await self._pause(worker, paused_s)

    async def _kill_zookeeper(self) -> None:
        if "ZooKeeper" not in self._away:
            away_s = self._rng.choice(_ZOOKEEPER_AWAY_S)
            self._away.add("ZooKeeper")
            self._note("kill ZooKeeper", away_s)
            self._cluster.zookeeper.kill()
            await self._cluster.zookeeper.process.wait(STATE_S)
            await asyncio.sleep(away_s)
            await self._cluster.zookeeper.restart()
            self._away.discard("ZooKeeper")

    async def _pause_zookeeper(self) -> None:
        if "ZooKeeper" not in self._away:
            paused_s = self._rng.choice(_ZOOKEEPER_AWAY_S)
            self._away.add("ZooKeeper")
            self._note("pause ZooKeeper", paused_s)
            await self._pause(self._cluster.zookeeper.process, paused_s)
            self._away.discard("ZooKeeper")

    @staticmethod
    async def _pause(process: ManagedProcess, seconds: float) -> None:
        process.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            process.resume()

    def _started(self, name: str) -> ManagedProcess:
        directory = self._cluster.directory / name
        options: Sequence[str] = [sys.executable, "-m", "replicator", *_OPTIONS.get(name, ())]
        if name.startswith("auditor"):
            options = [
                *_command("auditor", "--report-dir", str(directory / "reports")),
                *("--http-port", "0", "--grpc-port", "0", "--ui-port", "0"),
                *("--spark-master", "local[1]", "--driver-memory", "512m"),
                *("--placement-schedule", "off", "--replicas-schedule", "off"),
            ]
        return ManagedProcess.start(
            name, [*options, "--metadata-uri", self._cluster.metadata_uri], log_path=directory / "log.txt"
        )


def _command(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "auditor.cli.main", *words]
