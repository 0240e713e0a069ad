"""The processes of a service, and the faults that end, pause, damage and replace them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias

from bookie.client.bookkeeper import BookKeeper
from bookie.embedded.apache import ApacheBookie, ApacheCluster, ApacheServer
from bookie.embedded.cluster import EmbeddedBookie
from bookie.embedded.process import EmbeddedProcessError, ManagedProcess
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, LedgerId
from bookie.runtime.human import counted
from tests.deadlines import PROGRAM_S, STATE_S
from tests.ensemble import Server
from tests.faults.cluster import FaultyCluster, add_apache_bookies
from tests.faults.damage import Files, apache_entry_logs, cut_end, flip_bits, places
from tests.faults.disks import destroy_hidden, empty, fill, hide, is_mounted, show
from tests.faults.healing import Healing
from tests.links import Link, Trouble

LOST_BOOKIE_DELAY_S: Final = 5
_AUDITORS: Final = 2
_REPLICATORS: Final = 2
_AWAY_S: Final = (0.0, 2.0, 8.0, 30.0)
"""How long a killed bookie stays away. Its session ends after 10 s, and its ledgers are marked after 5 s more."""
_PAUSES_S: Final = (1.0, 4.0, 15.0, 40.0)
"""How long a process is paused: less and more than a request may take, and more than a session lasts."""
_ZOOKEEPER_AWAY_S: Final = (0.0, 3.0, 15.0)
_LEADER_SHARE: Final = 0.6
"""How often it is the leader of the ZooKeeper servers that fails."""
_SERVER_TROUBLES: Final = (Trouble.CUT, Trouble.CLOSE, Trouble.SLOW)
"""The faults of the links between ZooKeeper servers. To them, no direction is the one of answers."""
_UNMOUNTED_S: Final = (0.0, 15.0, 150.0)
"""How long a bookie runs without one of its ledger directories: less and more than all repairs of its copies take."""
_UNMOUNTED_RUNNING_SHARE: Final = 0.5
_LOST_DIRECTORY_SHARE: Final = 0.4
"""How often an unmounted directory never returns."""
_BOOKIES_AWAY_MAX: Final = 2
"""The most bookies that are away at a time. With more, most ledgers could not be written."""
_START_AGAIN_S: Final = 1.0
_ZOOKEEPER: Final = "ZooKeeper"
_REFUSED: Final = (ExitCode.CONFIGURATION, ExitCode.STORAGE_FAILED)
_FREE_BYTES: Final = (0, 1 << 20, 16 << 20)
"""What is left free of a full disk."""
_NO_SPACE: Final = ("No space left on device", "no space left")
_STARTED_ON_FULL_DISK_SHARE: Final = 0.5
_DAMAGED_RUNNING_SHARE: Final = 0.4
"""How often a bookie is damaged while it runs."""
_RUNNING_INDEX_SHARE: Final = 0.3
"""How often it is then the index that is damaged."""
_CUT_SHARE: Final = 0.3
_KILLED_SHARE: Final = 0.7
_INTERRUPTED_SHARE: Final = 0.3
"""How often a command on the directories of a bookie is killed, and how often a disk is full during it."""
_COMMAND_KILLED_S: Final = (0.5, 2.0)
_REMEDIES: Final = {"salvage-journal": (), "rebuild-index": ("--replace",)}
"""Commands that the message of a refused start may name, with their options."""
_OPTIONS: Final = {"replicator-2": ("--pull",)}
_NUMBER: Final = re.compile(r"-\d+| \(.*\)")
"""The number at the end of the name of a process, and the extent of damage."""


_Bookie: TypeAlias = EmbeddedBookie | ApacheBookie


class Service:
    """The processes of one cluster, and those that audit and repair it. Use it with ``async with``."""

    def __init__(
        self,
        cluster: FaultyCluster,
        apache: ApacheCluster | None,
        client: BookKeeper,
        rng: random.Random,
        say: Callable[[str], None],
    ) -> None:
        """Take over the bookies of ``cluster``, and those of ``apache`` with the same ZooKeeper."""
        self.destroyed: set[BookieId] = set()
        """The ids of destroyed bookies."""
        self.healing: Healing | None = None
        """What is not verified yet of the bookie with damaged files; None if no bookie has any."""
        self._client = client
        self._cluster = cluster
        self._apache = apache
        self._rng = rng
        self._say = say
        self._bookies: list[_Bookie] = [*cluster.bookies, *(() if apache is None else apache.bookies)]
        """Those that were not destroyed."""
        self._bookies_wanted = len(self._bookies)
        self._workers: list[ManagedProcess] = []
        """The auditors and the replicators."""
        self._recovery: ApacheServer | None = None
        """Apache's auditor and replication worker."""
        self._uris: dict[str, str] = {}
        """The metadata service URI of each of them."""
        self._away: set[str] = set()
        """The names of the servers that are killed or paused now."""
        self._faults: Counter[str] = Counter()
        self._under_way: set[asyncio.Task[None]] = set()
        """Faults whose process does not run again yet."""
        self._is_marking = False

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

    async def start_workers(self, *, is_apache_recovery: bool) -> None:
        """Start the auditors and the replicators.

        Args:
            is_apache_recovery: whether Apache's auditor and replication worker run beside them.
        """
        if is_apache_recovery and self._apache is not None:
            uri = await self._cluster.uri_for("auto-recovery-1")
            self._recovery = await self._apache.start_auto_recovery({"metadataServiceUri": uri})
        names = [f"auditor-{number + 1}" for number in range(_AUDITORS)]
        names += [f"replicator-{number + 1}" for number in range(_REPLICATORS)]
        self._uris = {name: await self._cluster.uri_for(name) for name in names}
        self._workers = [self._started(name) for name in names]

    async def end_apache_recovery(self) -> None:
        """End Apache's auditor and replication worker.

        They delete a mark if the first and the last entry of a fragment are there, so they would drop the marks of the
        last audit.

        Raises:
            EmbeddedProcessError: a server did not start.
        """
        await self.recovered()  # they may be starting
        if self._recovery is not None:
            await self._recovery.stop()
            self._recovery = None

    def cause_fault(self, *, is_repaired: bool) -> None:
        """Cause a random fault. What it stops runs again later.

        Args:
            is_repaired: whether every ledger has its copies on registered bookies, so that one bookie may be destroyed.
        """
        faults: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *(self._kill_bookie, self._kill_bookie, self._stop_bookie, self._pause_bookie),
            *(self._kill_worker, self._kill_worker, self._pause_worker),
            *(self._kill_zookeeper, self._pause_zookeeper),
            *(self._disturb_bookie, self._disturb_session_of_bookie, self._disturb_session_of_worker),
        ]
        if self._recovery is not None and self._recovery.name not in self._away:
            faults += [self._kill_recovery, self._pause_recovery, self._disturb_session_of_recovery]
        if not self._cluster.disks.problem:
            faults += [self._fill_disk, self._fill_disk]
        if len(self._cluster.ensemble.servers) > 1:
            faults += [self._kill_zookeeper, self._pause_zookeeper, self._disturb_zookeeper, self._disturb_zookeeper]
        damages = [self._damage_bookie, *([self._unmount_directory] if self._cluster.has_several_directories else [])]
        if self.healing is not None:
            faults += damages
        elif is_repaired and not self._away:
            faults = [*faults, *[self._rng.choice(damages) for _ in faults], *[self._destroy_bookie] * len(faults)]
        self._do(self._rng.choice(faults)())

    async def check_damage(self) -> bool:
        """Return whether no bookie has damage. Request the repair of copies that only a reader finds damaged.

        Raises:
            BkhealError: the metadata cannot be read.
            DeniedEntryError: a bookie denies an entry that was damaged.
        """
        if self.healing is None:
            return True
        if self._damaged().name not in self._away:
            with contextlib.suppress(TimeoutError):
                await self.healing.check(self._client)
        if not self.healing.unverified:
            self._say(f"all copies of {self._damaged().name} are verified")
            self.healing = None
            return True
        # Apache's bookies do not verify what they serve, and Apache's worker drops marks.
        is_marked = isinstance(self._damaged(), ApacheBookie) or self._recovery is not None
        if self.healing.bad and is_marked and not self._is_marking:
            self._do(self._mark(sorted(self.healing.bad)))
        return False

    def _damaged(self) -> _Bookie:
        assert self.healing is not None
        return next(bookie for bookie in self._bookies if bookie.bookie_id == self.healing.bookie)

    async def _mark(self, ledger_ids: Sequence[LedgerId]) -> None:
        """Do what an operator does if the log of a client names a ledger."""
        self._is_marking = True
        try:
            words = _command("ledger", "verify", *map(str, ledger_ids), "--mark")
            await self._ended("verify", [*words, "--metadata-uri", self._cluster.metadata_uri])
        finally:
            self._is_marking = False

    def start_ended(self) -> None:
        """Start each process again that ended by itself, as a supervisor would.

        Raises:
            EmbeddedProcessError: the process of an earlier fault did not start, or the damage cannot be repaired.
            TimeoutError: as above, within its deadline.
        """
        for task in self._under_way:
            if task.done():
                task.result()
        for index, worker in enumerate(self._workers):
            if not worker.is_running:
                self._note(f"{worker.name} ended with {worker.exit_code}")
                self._workers[index] = self._started(worker.name)
        for zookeeper in self._cluster.ensemble.servers:
            if _ZOOKEEPER not in self._away and not zookeeper.process.is_running:
                self._note(f"{zookeeper.process.name} ended with {zookeeper.process.exit_code}")
                zookeeper.start()
        for server in [*self._bookies, *([] if self._recovery is None else [self._recovery])]:
            if server.name not in self._away and not server.running.is_running:
                self._note(f"{server.name} ended with {server.running.exit_code}")
                self._away.add(server.name)
                self._do(self._start(server))

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
        async with asyncio.timeout(PROGRAM_S):
            while (code := await self._ended("audit", words)) == ExitCode.BUSY:  # noqa: ASYNC110 (a scheduled run)
                await asyncio.sleep(_START_AGAIN_S)
        if code:
            raise EmbeddedProcessError(f"the audit of copies ended with {code}: see {self._log_of('audit')}")

    async def _ended(self, name: str, words: Sequence[str]) -> int:
        """Run a command, and return its exit code."""
        async with ManagedProcess.start(name, words, log_path=self._log_of(name)) as process:
            return await process.wait(PROGRAM_S)

    def _log_of(self, name: str) -> Path:
        return self._cluster.directory / f"{name}.log"

    def _do(self, fault: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(fault)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Keep a task that failed, so that its error is raised at the end."""
        if task.cancelled() or task.exception() is None:
            self._under_way.discard(task)

    def _note(self, what: str, seconds: float | None = None) -> None:
        self._say(what if seconds is None else f"{what} for {seconds:g} s")
        self._faults[_NUMBER.sub("", what)] += 1

    def _away_soon(self, what: str, seconds: float, *, among: Collection[str] | None = None) -> _Bookie | None:
        """Choose a bookie for a fault, from all or from those of these names; None if enough of them are away."""
        present = [bookie for bookie in self._bookies if bookie.name not in self._away]
        able = [bookie for bookie in present if among is None or bookie.name in among]
        if self._bookies_wanted - len(present) >= _BOOKIES_AWAY_MAX or not able:
            return None
        bookie = self._rng.choice(able)
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

    async def _disturb_bookie(self) -> None:
        """Disturb the connections to a bookie, whose registration stays."""
        trouble, seconds = self._rng.choice(tuple(Trouble)), self._rng.choice(_PAUSES_S)
        if (bookie := self._away_soon(f"{trouble.value} the connections to", seconds)) is not None:
            await self._disturb(self._cluster.network.links(bookie.name, to_zookeeper=False), trouble, seconds)
            self._away.discard(bookie.name)

    async def _fill_disk(self) -> None:
        """Fill a disk of a bookie for some time, and perhaps start the bookie again in the meantime."""
        seconds, free, place = self._rng.choice(_PAUSES_S), self._rng.choice(_FREE_BYTES), self._rng.random()
        is_started_again = self._rng.random() < _STARTED_ON_FULL_DISK_SHARE
        small = [bookie.name for bookie in self._bookies if self._cluster.disks.of(bookie.name)]
        if not small or (bookie := self._away_soon("fill a disk of", seconds, among=small)) is None:
            return
        disks = self._cluster.disks.of(bookie.name)
        disk = disks[int(place * len(disks))]
        await asyncio.to_thread(fill, disk, free)
        await asyncio.sleep(seconds)
        if is_started_again:
            await bookie.kill9()
            self._note(f"start {bookie.name} on a full disk")
            bookie.launch()
            try:
                await bookie.wait_ready()
            except EmbeddedProcessError as error:
                if not any(text in str(error) for text in _NO_SPACE):
                    raise
                self._note(f"{bookie.name} needs space for its start")
                await bookie.kill9()
        await asyncio.to_thread(empty, disk)
        if bookie.running.is_running:
            self._away.discard(bookie.name)
        else:
            await self._start(bookie)

    async def _disturb_session_of_bookie(self) -> None:
        trouble, seconds = self._rng.choice(tuple(Trouble)), self._rng.choice(_PAUSES_S)
        if (bookie := self._away_soon(f"{trouble.value} the session of", seconds)) is not None:
            await self._disturb(self._cluster.network.links(bookie.name, to_zookeeper=True), trouble, seconds)
            self._away.discard(bookie.name)

    async def _disturb_session_of_worker(self) -> None:
        trouble, seconds = self._rng.choice(tuple(Trouble)), self._rng.choice(_PAUSES_S)
        worker = self._rng.choice(self._workers)
        self._note(f"{trouble.value} the session of {worker.name}", seconds)
        await self._disturb(self._cluster.network.links(worker.name, to_zookeeper=True), trouble, seconds)

    @staticmethod
    async def _disturb(links: Sequence[Link], trouble: Trouble, seconds: float) -> None:
        for link in links:
            link.set(trouble)
        try:
            await asyncio.sleep(seconds)
        finally:
            for link in links:
                link.set(None)

    async def _destroy_bookie(self) -> None:
        """Remove a bookie and its directories for ever, and start a new one."""
        away_s = self._rng.choice(_AWAY_S)
        if (bookie := self._away_soon("destroy", away_s)) is None:
            return
        self._bookies.remove(bookie)
        self.destroyed.add(bookie.bookie_id)
        await bookie.kill9()
        await asyncio.to_thread(self._cluster.disks.unmount, bookie.name)
        await asyncio.to_thread(shutil.rmtree, bookie.directory)
        await asyncio.sleep(away_s)
        self._bookies.append(await self._new_bookie(is_apache=isinstance(bookie, ApacheBookie)))
        self._away.discard(bookie.name)

    async def _new_bookie(self, *, is_apache: bool) -> _Bookie:
        maker = self._apache if is_apache and self._apache is not None else self._cluster
        try:
            if maker is self._apache:
                await add_apache_bookies(self._cluster, self._apache, 1)
            else:
                await self._cluster.add_bookies(1)
        except EmbeddedProcessError:
            await maker.bookies[-1].kill9()
            await self._start(maker.bookies[-1])
        return maker.bookies[-1]

    async def _damage_bookie(self) -> None:
        """Damage files of the bookie that has damage, or of any bookie if all is repaired."""
        rng, away_s = random.Random(self._rng.random()), self._rng.choice(_AWAY_S)
        if (bookie := await self._damaged_soon(self._bookies, rng)) is None:
            return
        if isinstance(bookie, EmbeddedBookie) and rng.random() > _DAMAGED_RUNNING_SHARE:
            await self._damage_stopped(bookie, rng, away_s)
        elif isinstance(bookie, EmbeddedBookie) and rng.random() < _RUNNING_INDEX_SHARE and self._is_complete(bookie):
            await self._damage_used_index(bookie, rng, away_s)
        else:
            if isinstance(bookie, EmbeddedBookie):
                logs = await places(Files.ENTRY_LOGS, self._cluster.directories_of(bookie), is_cut=False)
            else:
                logs = apache_entry_logs(bookie.directory)
            if bits := flip_bits(logs, rng):
                self._note(f"damage the entry logs of {bookie.name} ({counted(bits, 'bit')})")
            self._away.discard(bookie.name)

    async def _damaged_soon(self, bookies: Sequence[_Bookie], rng: random.Random) -> _Bookie | None:
        """Choose the bookie with damage, or one of these if all is repaired; None if it is away.

        From now on, no other bookie is destroyed or damaged.
        """
        bookie = rng.choice(bookies) if self.healing is None else self._damaged()
        if bookie.name in self._away:
            return None
        self._away.add(bookie.name)
        self.healing = self.healing or Healing(bookie.bookie_id)
        try:
            await self.healing.begin(self._client, has_lists=isinstance(bookie, EmbeddedBookie))
        except BkhealError:  # ZooKeeper is away
            self._away.discard(bookie.name)
            return None
        return bookie

    async def _unmount_directory(self) -> None:
        """Unmount a directory of one of our bookies, and start the bookie without it."""
        rng, away_s = random.Random(self._rng.random()), self._rng.choice(_AWAY_S)
        ours = [bookie for bookie in self._bookies if isinstance(bookie, EmbeddedBookie)]
        if self.healing is not None and self._damaged() not in ours:
            return
        bookie = await self._damaged_soon(ours, rng)
        if not isinstance(bookie, EmbeddedBookie):
            return
        if not self._is_complete(bookie):
            self._away.discard(bookie.name)
            return
        directories = self._cluster.directories_of(bookie)
        directory = rng.choice([*directories.journals, *directories.ledgers])
        is_lost = directory != directories.ledgers[0] and rng.random() < _LOST_DIRECTORY_SHARE
        if rng.random() < _UNMOUNTED_RUNNING_SHARE:
            self._note(f"unmount a directory of {bookie.name}, which runs ({directory.name})", away_s)
            await asyncio.to_thread(hide, directory)
            await asyncio.sleep(away_s)
            await bookie.kill9()
        else:
            await (bookie.kill9() if rng.random() < _KILLED_SHARE else bookie.running.stop(STATE_S))
            self._note(f"unmount a directory of {bookie.name} ({directory.name})", away_s)
            await asyncio.to_thread(hide, directory)
            await asyncio.sleep(away_s)
        if directory in directories.ledgers[1:]:
            await self._start_without(bookie, directory, rng.choice(_UNMOUNTED_S), is_lost=is_lost)
        else:
            await self._refused_without(bookie, directory, is_lost=is_lost)

    async def _start_without(self, bookie: EmbeddedBookie, directory: Path, seconds: float, *, is_lost: bool) -> None:
        """Run a bookie without one of its ledger directories, permanently or for some time."""
        await self._start(bookie)
        if is_lost:
            self._note(f"the directory of {bookie.name} never returns")
            await asyncio.to_thread(destroy_hidden, directory)
            return
        await asyncio.sleep(seconds)
        while bookie.name in self._away:  # noqa: ASYNC110 (another fault)
            await asyncio.sleep(_START_AGAIN_S)
        self._away.add(bookie.name)
        self._note(f"mount the directory of {bookie.name} again")
        await bookie.running.stop(STATE_S)
        await asyncio.to_thread(show, directory)
        await self._start(bookie)

    async def _refused_without(self, bookie: EmbeddedBookie, directory: Path, *, is_lost: bool) -> None:
        """Start a bookie without a journal, or without its first ledger directory, which must be refused.

        Raises:
            EmbeddedProcessError: the bookie started, or is not refused for this reason.
        """
        bookie.launch()
        code = await bookie.running.wait(STATE_S)
        if code not in _REFUSED or str(directory) not in bookie.running.log_tail(1):
            raise EmbeddedProcessError(f"{bookie.name} ended with {code} without {directory}: see its log")
        if is_lost:
            await asyncio.to_thread(destroy_hidden, directory)
            await self._restore(bookie, "salvage-journal", "--lost")
        else:
            await asyncio.to_thread(show, directory)
        await self._start(bookie)

    def _is_complete(self, bookie: EmbeddedBookie) -> bool:
        """Return whether all directories of a bookie are mounted: without one, no index or journal can be rebuilt."""
        directories = self._cluster.directories_of(bookie)
        return all(is_mounted(path) for path in [*directories.journals, *directories.ledgers])

    async def _damage_used_index(self, bookie: EmbeddedBookie, rng: random.Random, seconds: float) -> None:
        """Damage the index of a running bookie, which may end because of this. It must deny nothing until it ends."""
        with contextlib.suppress(FileNotFoundError):  # it was removed by a compaction
            directories = self._cluster.directories_of(bookie)
            bits = flip_bits(await places(Files.INDEX, directories, is_cut=False), rng)
            self._note(f"damage the index of {bookie.name} while it is used ({counted(bits, 'bit')})", seconds)
        await asyncio.sleep(seconds)
        if (healing := self.healing) is not None and bookie.running.is_running:
            unverified = set(healing.unverified)
            with contextlib.suppress(BkhealError, TimeoutError):
                await healing.check(self._client)
            healing.unverified |= unverified  # they are verified again after the index was rebuilt
        await self._rebuild_index(bookie)

    async def _rebuild_index(self, bookie: EmbeddedBookie) -> None:
        """Do this after every damage to an index: the bookie may run although it cannot read all of it."""
        self._away.add(bookie.name)
        await bookie.running.stop(STATE_S)
        await self._restore(bookie, "rebuild-index", "--replace")
        await self._start(bookie)

    async def _damage_stopped(self, bookie: EmbeddedBookie, rng: random.Random, away_s: float) -> None:
        files, is_cut = rng.choice(tuple(Files)), rng.random() < _CUT_SHARE
        if not self._is_complete(bookie):
            files = Files.ENTRY_LOGS
        await (bookie.kill9() if rng.random() < _KILLED_SHARE else bookie.running.stop(STATE_S))
        found = await places(files, self._cluster.directories_of(bookie), is_cut=is_cut)
        if is_cut and (size := cut_end(found, rng)):
            self._note(f"cut the {files.value} of {bookie.name} ({counted(size, 'byte')})", away_s)
        elif not is_cut and (bits := flip_bits(found, rng)):
            self._note(f"damage the {files.value} of {bookie.name} ({counted(bits, 'bit')})", away_s)
        else:
            self._note(f"stop {bookie.name}, whose {files.value} cannot be damaged yet", away_s)
        await asyncio.sleep(away_s)
        await self._start(bookie)
        if files is Files.INDEX:
            await self._rebuild_index(bookie)

    async def _restore(self, bookie: EmbeddedBookie, command: str, *options: str) -> None:
        """Run a command on the directories of a stopped bookie. A kill or a full disk may interrupt it once.

        Raises:
            EmbeddedProcessError: it failed although nothing interrupted it.
        """
        words = [*_command("bookie", command, *options), *self._cluster.directories_of(bookie).options]
        trouble, killed_s = self._rng.random(), self._rng.uniform(*_COMMAND_KILLED_S)
        disks, free, is_killed = self._cluster.disks.of(bookie.name), self._rng.choice(_FREE_BYTES), False
        if trouble < _INTERRUPTED_SHARE:
            async with ManagedProcess.start(command, words, log_path=self._log_of(command)) as process:
                await asyncio.sleep(killed_s)
                is_killed = process.is_running
                process.kill9()
            if not is_killed and not process.exit_code:
                return
            self._note(f"kill {command} of {bookie.name}")
        elif trouble > 1 - _INTERRUPTED_SHARE and disks:
            disk = disks[self._rng.randrange(len(disks))]
            await asyncio.to_thread(fill, disk, free)
            code = await self._ended(command, words)
            self._note(f"{command} of {bookie.name} on a full disk (exit code {code})")
            await asyncio.to_thread(empty, disk)
            if not code:
                return
        self._note(f"{command} of {bookie.name}")
        code = await self._ended(command, words)
        if code and not (is_killed and code == ExitCode.FAILED):  # it had ended its work
            raise EmbeddedProcessError(f"{command} of {bookie.name} ended with {code}: see {self._log_of(command)}")

    async def _start(self, bookie: EmbeddedBookie | ApacheServer) -> None:
        """Start a bookie or Apache's recovery. Like a supervisor, start it again if ZooKeeper is away and it ends.

        If a bookie with damaged files does not start, the command that its message names is used.
        """
        async with asyncio.timeout(PROGRAM_S):
            while True:
                bookie.launch()
                try:
                    await bookie.wait_ready()
                except EmbeddedProcessError as error:
                    self._note(f"no start of {bookie.name}")
                    self._say(str(error))
                    await bookie.kill9()
                    if isinstance(bookie, EmbeddedBookie) and self.healing and bookie is self._damaged():
                        printed = str(error).splitlines()[-1]
                        if (named := max(_REMEDIES, key=printed.rfind)) in printed:
                            await self._restore(bookie, named, *_REMEDIES[named])
                    await asyncio.sleep(_START_AGAIN_S)
                else:
                    if isinstance(bookie, EmbeddedBookie):
                        await self._cluster.link(bookie)
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

    async def _kill_recovery(self) -> None:
        if (server := self._recovery) is not None:
            self._note(f"kill {server.name}")
            self._away.add(server.name)
            await server.kill9()
            await self._start(server)

    async def _pause_recovery(self) -> None:
        paused_s = self._rng.choice(_PAUSES_S)
        if (server := self._recovery) is not None:
            self._note(f"pause {server.name}", paused_s)
            await self._pause(server.running, paused_s)

    async def _disturb_session_of_recovery(self) -> None:
        trouble, seconds = self._rng.choice(tuple(Trouble)), self._rng.choice(_PAUSES_S)
        if (server := self._recovery) is not None:
            self._note(f"{trouble.value} the session of {server.name}", seconds)
            await self._disturb(self._cluster.network.links(server.name, to_zookeeper=True), trouble, seconds)

    async def _kill_zookeeper(self) -> None:
        away_s = self._rng.choice(_ZOOKEEPER_AWAY_S)
        if (server := await self._zookeeper_soon("kill", away_s)) is not None:
            server.process.kill9()
            await server.process.wait(STATE_S)
            await asyncio.sleep(away_s)
            server.start()
            await self._zookeeper_returned()

    async def _pause_zookeeper(self) -> None:
        paused_s = self._rng.choice(_ZOOKEEPER_AWAY_S)
        if (server := await self._zookeeper_soon("pause", paused_s)) is not None:
            await self._pause(server.process, paused_s)
            await self._zookeeper_returned()

    async def _disturb_zookeeper(self) -> None:
        """Disturb the connections of a ZooKeeper server to the others, but not to its clients."""
        trouble, seconds = self._rng.choice(_SERVER_TROUBLES), self._rng.choice(_PAUSES_S)
        if server := await self._zookeeper_soon(f"{trouble.value} the connections between the others and", seconds):
            number = self._cluster.ensemble.servers.index(server)
            await self._disturb(self._cluster.network.links_of_server(number), trouble, seconds)
            await self._zookeeper_returned()

    async def _zookeeper_returned(self) -> None:
        for server in self._cluster.ensemble.servers:
            await server.wait()
        self._away.discard(_ZOOKEEPER)

    async def _zookeeper_soon(self, what: str, seconds: float) -> Server | None:
        """Choose a ZooKeeper server for a fault, often the leader; None if one is away."""
        servers = self._cluster.ensemble.servers
        chosen, is_leader = self._rng.choice(servers), self._rng.random() < _LEADER_SHARE
        if _ZOOKEEPER in self._away:
            return None
        self._away.add(_ZOOKEEPER)
        leading = []
        with contextlib.suppress(OSError):  # a server ended by itself, and starts again soon
            leading = [server for server in servers if await server.leads()]
        server = leading[0] if leading and is_leader else chosen
        self._note(f"{what} ZooKeeper{' (leader)' if server in leading else ''}", seconds)
        return server

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
                *("--replicas-schedule", "60s", "--schedule-jitter-s", "0"),
            ]
        return ManagedProcess.start(
            name, [*options, "--metadata-uri", self._uris[name]], log_path=directory / "log.txt"
        )


def _command(*words: str) -> Sequence[str]:
    return [sys.executable, "-m", "auditor.cli.main", *words]
