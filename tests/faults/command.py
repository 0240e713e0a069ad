"""The command line of a run under faults."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.apache import ApacheCluster
from bookie.embedded.apache_jars import ApacheJvm, find_apache_lib
from bookie.embedded.apache_settings import ApacheOptions, ApacheStorage
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.clock import Clock, SystemClock
from bookie.runtime.java import find_java
from tests.deadlines import PROGRAM_S
from tests.faults.cluster import FaultyCluster, add_apache_bookies
from tests.faults.healing import DeniedEntryError
from tests.faults.processes import LOST_BOOKIE_DELAY_S, Service
from tests.faults.verdict import faults_of_ledger, unfinished
from tests.faults.workload import Workload, WrongBytesError

MINUTES: Final = 20.0
BOOKIES: Final = 7
_APACHE_HEAP_MIB: Final = 192
_FIRST_FAULT_S: Final = 30.0
"""The first fault happens after the auditor has started Spark."""
_BETWEEN_FAULTS_S: Final = (1.0, 12.0)
_LOOK_S: Final = 1.0
_HEALED_WITHIN_S: Final = 2 * PROGRAM_S
"""The longest time from the last fault to the end of all repairs: two audits, one of them under way."""


class FaultsError(Exception):
    """A finding of the run, in one sentence."""


@dataclass(slots=True)
class Run:
    """One run, from the first fault to the check of every copy."""

    client: ConnectedBookKeeper
    service: Service
    workload: Workload
    clock: Clock
    rng: random.Random
    say: Callable[[str], None]
    clients: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, seconds: float) -> None:
        """Cause faults for this time, and then check the outcome.

        Raises:
            FaultsError: the cluster is not repaired in time, or a copy is missing or wrong.
            WrongBytesError: a client read something else than it wrote.
        """
        self.clients = [asyncio.create_task(one) for one in self.workload.tasks(self.client)]
        try:
            await self._cause_faults(seconds)
            self.say("no more faults")
            self.workload.is_ending = True
            await self.service.recovered()
            async with asyncio.timeout(_HEALED_WITHIN_S):
                await asyncio.gather(*self.clients)
                await self.workload.finish(self.client)
        except TimeoutError as error:
            raise FaultsError(
                "a process did not start again, or a client or a recovery did not end, within its deadline"
            ) from error
        finally:
            for task in self.clients:
                task.cancel()
            await asyncio.gather(*self.clients, return_exceptions=True)
        self.say(str(self.workload))
        self.say(str(self.service))
        await self._repaired("by the service")
        await self._verified()
        await self.service.end_apache_recovery()
        await self.service.audit_copies()
        await self._repaired("after an audit of all copies")
        await self._check_copies()

    async def _cause_faults(self, seconds: float) -> None:
        now_s = self.clock.monotonic_s()
        end_s, next_s = now_s + seconds, now_s + _FIRST_FAULT_S
        while (now_s := self.clock.monotonic_s()) < end_s:
            await asyncio.wait(self.clients, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for task in self.clients:
                if task.done():
                    task.result()
            self.service.start_ended()
            if now_s >= next_s:
                self.service.cause_fault(is_repaired=await self._is_intact() and not await self._unfinished())
                next_s = self.clock.monotonic_s() + self.rng.uniform(*_BETWEEN_FAULTS_S)

    async def _is_intact(self) -> bool:
        try:
            return await self.service.check_damage()
        except BkhealError:  # ZooKeeper is away
            return False

    async def _verified(self) -> None:
        """Wait until all copies of a bookie with damaged files are good."""
        began_s = self.clock.monotonic_s()
        while not await self._is_intact():
            self.service.start_ended()
            if self.clock.monotonic_s() - began_s > _HEALED_WITHIN_S:
                raise FaultsError(f"damage not repaired within {_HEALED_WITHIN_S:g} s: {self.service.healing}")
            await asyncio.sleep(_LOOK_S)

    async def _repaired(self, how: str) -> None:
        began_s = self.clock.monotonic_s()
        while left := await self._unfinished():
            self.service.start_ended()
            if self.clock.monotonic_s() - began_s > _HEALED_WITHIN_S:
                raise FaultsError(f"not repaired within {_HEALED_WITHIN_S:g} s: {'; '.join(left)}")
            await asyncio.sleep(_LOOK_S)
        self.say(f"repaired {how} within {self.clock.monotonic_s() - began_s:.0f} s")

    async def _unfinished(self) -> Sequence[str]:
        try:
            return await unfinished(self.client, self.service.destroyed)
        except BkhealError as error:
            return [f"unknown: {error}"]

    async def _check_copies(self) -> None:
        faults: list[str] = []
        for ledger_id in sorted(self.workload.closed):
            faults += await faults_of_ledger(self.client, ledger_id, self.workload.acknowledged[ledger_id])
        for fault in faults:
            self.say(fault)
        if faults:
            raise FaultsError(f"{len(faults)} copies are missing or wrong; the first: {faults[0]}")


async def under_faults(
    directory: Path,
    minutes: float,
    seed: int,
    say: Callable[[str], None],
    *,
    apache_bookies: int,
    is_apache_recovery: bool,
    zookeeper_servers: int,
    directories: int,
) -> None:
    """Run one cluster under faults in ``directory``.

    Args:
        directory: for all files.
        minutes: the time for which faults are caused.
        seed: determines the faults, as far as processes do not.
        say: prints a line.
        apache_bookies: how many of the bookies are Apache's.
        is_apache_recovery: whether Apache's auditor and replication worker run beside ours.
        zookeeper_servers: the number of ZooKeeper servers.
        directories: the number of journals, and of ledger directories, of each of our bookies.

    Raises:
        FaultsError: see ``Run.run``.
        WrongBytesError: see ``Run.run``.
    """
    rng, clock = random.Random(seed), SystemClock()
    began_s = clock.monotonic_s()

    def timed(line: str) -> None:
        say(f"{clock.monotonic_s() - began_s:7.1f} s  {line}")

    async with (
        await FaultyCluster.started(
            directory,
            bookies=BOOKIES - apache_bookies,
            zookeeper_servers=zookeeper_servers,
            directories=directories,
            speaks_apache=bool(apache_bookies),
        ) as cluster,
        _apache(cluster, apache_bookies) as apache,
        await connect(cluster.metadata_uri) as client,
        Service(cluster, apache, client, random.Random(rng.random()), timed) as service,
    ):
        await client.ports.tasks.initialize()
        await client.ports.tasks.switches.set_lost_bookie_delay_s(LOST_BOOKIE_DELAY_S)
        await service.start_workers(is_apache_recovery=is_apache_recovery)
        workload = Workload(random.Random(rng.random()))
        if cluster.disks.problem:
            timed(f"no disk is filled: {cluster.disks.problem}")
        await Run(client, service, workload, clock, rng, timed).run(minutes * 60)


@contextlib.asynccontextmanager
async def _apache(cluster: FaultyCluster, count: int) -> AsyncIterator[ApacheCluster | None]:
    """Add Apache's bookies to a cluster. Half of them have DbLedgerStorage."""
    if not count:
        yield None
        return
    jvm = ApacheJvm(await asyncio.to_thread(find_java), find_apache_lib(), _APACHE_HEAP_MIB, ("-XX:+UseSerialGC",))
    apache = ApacheCluster(cluster.directory, cluster.zookeeper, jvm, ApacheOptions())
    try:
        await add_apache_bookies(cluster, apache, count - count // 2)
        await add_apache_bookies(cluster, apache, count // 2, ApacheOptions(storage=ApacheStorage.DB))
        yield apache
    finally:
        await asyncio.gather(*(server.stop() for server in [*apache.bookies, *apache.auto_recoveries]))


def main() -> int:
    """Run a cluster under faults. If that finds a problem, return 1; the last line of the output then describes it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Cause random faults in a whole service, and check its data."
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=0, help="another number gives other faults (default: %(default)s)")
    parser.add_argument(
        "--apache-bookies", type=int, default=0, help=f"how many of the {BOOKIES} bookies are Apache's (default: 0)"
    )
    parser.add_argument(
        "--apache-recovery", action="store_true", help="run Apache's auto-recovery too; needs Apache's bookies"
    )
    parser.add_argument(
        "--zookeeper-servers", type=int, default=1, help="3 for an ensemble with a leader (default: %(default)s)"
    )
    parser.add_argument(
        "--directories",
        type=int,
        default=1,
        help="how many journals and how many ledger directories each bookie of bkheal has (default: %(default)s)",
    )
    parser.add_argument("--keep", action="store_true", help="keep all files, also if nothing was found")
    parser.add_argument("--directory", type=Path, help="an empty folder on the disk to use; default: a temporary one")
    options = parser.parse_args()
    if options.apache_recovery and not options.apache_bookies:
        parser.error(
            "--apache-recovery needs --apache-bookies: Apache's programs reach no bookie that speaks only gRPC"
        )
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bkheal-faults-"))

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends processes and unmounts disks
    try:
        running = under_faults(
            directory,
            options.minutes,
            options.seed,
            say,
            apache_bookies=options.apache_bookies,
            is_apache_recovery=options.apache_recovery,
            zookeeper_servers=options.zookeeper_servers,
            directories=options.directories,
        )
        asyncio.run(running)
    except (FaultsError, WrongBytesError, DeniedEntryError, BkhealError) as error:
        sys.stderr.write(f"faults: {error}; the files are in {directory}\n")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(directory)
        return ExitCode.INTERRUPTED
    if not options.keep:
        shutil.rmtree(directory)
    return 0
