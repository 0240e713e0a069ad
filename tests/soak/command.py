"""The command line of the soak. It starts and ends the bookie repeatedly."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from bookie.client.bookkeeper import BookKeeper
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.clock import Clock, SystemClock
from bookie.server.metrics import COLLECTED
from tests.deadlines import STATE_S
from tests.integration.clusters import connected, kill_bookies, start_cluster
from tests.integration.served import Served
from tests.sessions import LONG_SESSION_S
from tests.soak.judgement import HEADER, BookieRun, Sample, Waiting, lives, problem_of, row
from tests.soak.workload import WRITERS, Workload, WrongBytesError

MINUTES: Final = 30.0
SAMPLE_S: Final = 3.0
ROW_EVERY: Final = 3
"""The number of samples per row of the table."""
WARM_UP_COLLECTIONS: Final = 2
"""The first collection finds little to delete. The second one, after the first restarts, has the usual size; it ends
after about four minutes."""
COLLECTED_WITHIN_S: Final = 600.0
"""The first ledgers are deleted in the first minute, and a collection takes little more than a minute."""
OPTIONS: Final = ("--collect-interval", "2", "--collect-ratio-max", "1")
"""Collections follow each other without a pause, and keep up with the deletions of clients."""


class SoakError(Exception):
    """A finding of the soak, in one sentence."""


@dataclass(slots=True)
class Soak:
    """One soak, from the start of the bookie to its last stop."""

    cluster: EmbeddedCluster
    bookie: EmbeddedBookie
    clock: Clock
    rng: random.Random
    say: Callable[[str], None]
    seconds: float
    workload: Workload
    samples: list[Sample] = field(default_factory=list)
    waiting: Waiting = field(default_factory=Waiting)
    life: int = 0
    collections: int = 0
    _began_s: float = 0.0

    async def run(self) -> None:
        """Run until the time is over, and then read everything again.

        Raises:
            SoakError: something grew, an answer was wrong, or the bookie did not work.
        """
        self._began_s = self.clock.monotonic_s()
        self.say(HEADER)
        for life in lives(self.rng):
            await self.bookie.start()
            async with await connected(self.cluster) as client:
                await self._live(client, life)
            self.life += 1
            if self._now_s() >= self.seconds:
                break
        await self.bookie.start()
        async with await connected(self.cluster) as client:
            await self.workload.recover(client)
            await self.workload.read_everything(client)
        await self._stop()
        if not self.samples[-1].is_warm:
            self.say("The time was shorter than the warm-up: growth of memory and file handles was not judged.")

    async def _live(self, client: BookKeeper, life: BookieRun) -> None:
        """Run the work of clients from the start of the bookie to its end."""
        self.waiting.bookie_started(self._now_s())
        await self.workload.recover(client)
        work = [self.workload.read(client), self.workload.delete(client)]
        work += [self.workload.write(client) for _ in range(WRITERS)]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            await self._watch(tasks, life)
            await self._end(life)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:  # requests fail when the bookie stops
            if not isinstance(error, BkhealError | asyncio.CancelledError):
                raise error or SoakError("a client ended its work")

    async def _watch(self, tasks: Sequence[asyncio.Task[None]], life: BookieRun) -> None:
        """Take samples of the bookie repeatedly, until this life or the soak has lasted long enough."""
        collections, since_s, end_s = 0, self._now_s(), self.seconds
        if not life.collections:
            end_s = min(end_s, since_s + life.more_s)
        while (left_s := end_s - self._now_s()) > 0:
            await asyncio.wait(tasks, timeout=min(SAMPLE_S, left_s), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if await self._look():
                collections, since_s = collections + 1, self._now_s()
                self.collections += 1
                if collections == life.collections:
                    end_s = min(end_s, since_s + life.more_s)
            if self._now_s() - since_s > COLLECTED_WITHIN_S:
                raise SoakError(f"no collection of deleted ledgers has ended for {COLLECTED_WITHIN_S:g} s")

    async def _look(self) -> bool:
        """Take a sample, and return whether a collection has ended since the last one.

        Raises:
            SoakError: it shows growth.
        """
        values = await Served(self.bookie.running, self.bookie.metrics_url).values()
        at_s = self._now_s()
        if size := self.workload.take_deleted():
            self.waiting.deleted(at_s, size)
        has_ended = self.waiting.looked(at_s, int(values[COLLECTED,]))
        process = psutil.Process(self.bookie.running.pid)
        sample = Sample(
            at_s,
            self.life,
            self.workload.created,
            self.workload.written_bytes,
            process.memory_info().rss,
            process.num_fds(),
            await asyncio.to_thread(bytes_in, self.bookie.directory),
            self.workload.live_bytes,
            self.waiting.bytes,
            self.collections >= WARM_UP_COLLECTIONS,
        )
        self.samples.append(sample)
        if len(self.samples) % ROW_EVERY == 0 or has_ended:
            self.say(row(sample))
        if (problem := problem_of(self.samples)) is not None:
            raise SoakError(problem)
        return has_ended

    async def _end(self, life: BookieRun) -> None:
        if life.is_killed:
            await kill_bookies(self.cluster, self.bookie)
            self.say("          killed with SIGKILL")
        else:
            await self._stop()
            self.say("          stopped with SIGTERM")

    async def _stop(self) -> None:
        if (code := await self.bookie.running.stop(STATE_S)) != 0:
            raise SoakError(f"the bookie ended with exit code {code} after SIGTERM")

    def _now_s(self) -> float:
        return self.clock.monotonic_s() - self._began_s


def bytes_in(directory: Path) -> int:
    """Return the bytes of all files of the bookie except its log. Files may be removed at any time."""
    total = 0
    for folder in (directory / "journal", directory / "ledgers"):
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue
    return total


async def soak(directory: Path, minutes: float, seed: int, say: Callable[[str], None]) -> None:
    """Run one soak in ``directory``.

    Raises:
        SoakError: see ``Soak.run``.
    """
    rng, clock = random.Random(seed), SystemClock()
    async with await start_cluster(directory, 0) as cluster:
        bookie = EmbeddedBookie(
            "bookie",
            directory / "bookie",
            cluster.metadata_uri,
            serves_metrics=True,
            session_timeout_s=LONG_SESSION_S,
            options=OPTIONS,
        )
        cluster.bookies.append(bookie)
        workload = Workload(clock, rng)
        try:
            await Soak(cluster, bookie, clock, rng, say, minutes * 60, workload).run()
        except (BkhealError, WrongBytesError, psutil.NoSuchProcess, OSError) as error:
            how = "" if bookie.running.is_running else f" (the bookie has ended, {bookie.running.exit_code})"
            raise SoakError(f"{error}{how}") from error
        say(f"{workload.read_entries} entries were read, and each had the bytes that were written.")


def main() -> int:
    """Run a soak. If it finds a problem, return 1; the last line of the output then describes it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Keep a bookie busy, and watch it.")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=0, help="another number gives other lives (default: %(default)s)")
    parser.add_argument("--directory", type=Path, help="an empty folder on the disk to use; default: a temporary one")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="bkheal-soak-"))

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        asyncio.run(soak(directory, options.minutes, options.seed, say))
    except SoakError as error:
        sys.stderr.write(f"soak: {error}; the files are in {directory}\n")
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(directory)
        return ExitCode.INTERRUPTED
    shutil.rmtree(directory)
    return 0
