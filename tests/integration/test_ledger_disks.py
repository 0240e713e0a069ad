"""A real bookie with three ledger directories, each on its own file system: one fills up and others fail.

Each file system is a small tmpfs, which root may mount. The test is skipped if they cannot be mounted.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.process import ManagedProcess
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.access.tokens import Role, make_token
from bookie.wire.grpc.administration import Administration
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries, Read
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import PLAINTEXT
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.test_bookie_process import LEDGER, READY, Machine, entry, machine
from tests.sessions import kill9

__all__ = ["machine"]

pytestmark = [pytest.mark.integration, pytest.mark.long]

MIB = 1 << 20
SIZES_MIB = (40, 120, 80)
"""The second directory takes the first logs; the first one has the index."""
PART = 20
"""Number of added entries of 50 KB before each flush: about 1 MB."""


def run(*command: str) -> None:
    subprocess.run(command, capture_output=True, timeout=PROGRAM_S, check=True)


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """Mount three file systems."""
    with ExitStack() as stack:
        found = [tmp_path / f"disk-{number}" for number in range(len(SIZES_MIB))]
        for path, size in zip(found, SIZES_MIB, strict=True):
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
            if done.returncode:
                pytest.skip(f"no tmpfs can be mounted: {done.stderr.strip()}")
            stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=False, timeout=PROGRAM_S)
        yield found


class DiskBookie:
    """The bookie on these file systems."""

    def __init__(self, machine: Machine, disks: list[Path], journal: Path | None = None) -> None:
        self.machine = machine
        self.journal = journal or machine.home / "journal"
        self.disks = disks
        self.directories = [disk / "ledgers" for disk in disks]
        self.added = 0
        self.process: ManagedProcess
        self.bookie: BookieId
        token = make_token("olga", Role.OPERATE)
        self._token = token.token
        (machine.home / "tokens").write_text(token.line)

    async def start(self) -> None:
        self.process = self.machine.start(
            journal_dir=self.journal,
            ledger_dir=",".join(map(str, self.directories)),
            bookie_id="disks",
            tokens_file=self.machine.home / "tokens",
            scrub_interval=0,
            read_only_below_bytes=4 * MIB,
        )
        ready = await self.process.wait_for_line(READY, STATE_S)
        self.bookie, self.address = BookieId(ready[1]), BookieAddress(ready[2], int(ready[3]))

    def operator(self) -> Administration:
        return Administration(self.address, PLAINTEXT, self._token)

    async def flush(self) -> list[int]:
        """Add entries, move them to an entry log, and return the number of logs in each directory."""
        entries = [self.entry(number) for number in range(self.added, self.added + PART)]
        assert await self.machine.add(self.bookie, *entries) is Status.OK
        self.added += PART
        async with self.operator() as operator:
            await operator.force()
        return self.logs()

    def logs(self) -> list[int]:
        return [len(list(path.glob("current/entries/*.log"))) for path in self.directories]

    def entry(self, number: int) -> bytes:
        return entry(number, number.to_bytes(4, "big") * 12_500)

    async def statuses(self) -> list[Status]:
        """Return the status of every added entry."""
        found: list[Status] = []
        async with asyncio.timeout(STATE_S):
            while len(found) < self.added:
                wanted = [EntryId(number) for number in range(len(found), self.added)]
                reply = await self.machine.transport.ask(self.bookie, Read(LEDGER, wanted), STATE_S)
                for result in reply.results:
                    assert result.status is not Status.OK or result.packet == self.entry(result.entry_id)
                    found.append(result.status)
        return found

    async def listed(self) -> tuple[Status, int]:
        reply = await self.machine.transport.ask(self.bookie, ListEntries(LEDGER), STATE_S)
        return reply.status, len(reply.entries)

    async def shown(self) -> list[dict[str, Any]]:
        """Return the ledger directories that ``bkheal bookie status`` prints."""
        at = f"{self.address.host}:{self.address.port}"
        command = [sys.executable, "-m", "auditor.cli.main", "bookie", "status", "--at", at, "--output", "json"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=PROGRAM_S)
        return [disk for disk in json.loads(done.stdout)["disks"] if disk["role"] == "ledgers"]


async def test_a_full_failed_or_missing_ledger_directory_does_not_stop_the_others(
    machine: Machine, disks: list[Path]
) -> None:
    bookie = DiskBookie(machine, disks)
    await bookie.start()
    assert await bookie.flush() == [0, 1, 0]

    filler = disks[1] / "of-another-program"
    with filler.open("wb") as file:  # leaves less space than the other directories have
        file.write(bytes(100 * MIB))
    assert await bookie.flush() == [0, 1, 1]
    assert bookie.bookie in (await machine.registrations.list()).writable
    filler.unlink()
    assert await bookie.flush() == [0, 2, 1]
    assert await bookie.statuses() == [Status.OK] * 3 * PART

    entries = str(bookie.directories[1] / "current" / "entries")
    run("mount", "--bind", entries, entries)
    run(
        "mount", "-o", "remount,bind,ro", entries
    )  # while files are open, only the kernel can make the file system itself read-only
    assert await bookie.flush() == [0, 2, 2]
    assert bookie.process.is_running
    assert bookie.bookie in (await machine.registrations.list()).writable
    assert await bookie.statuses() == [Status.OK] * 4 * PART, "entries of a read-only directory are not served"
    assert await bookie.listed() == (Status.CORRUPT, 2 * PART), "entries of a read-only directory are listed"
    first, second, third = await bookie.shown()
    assert [disk["path"] for disk in (first, second, third)] == [str(path) for path in bookie.directories]
    assert "Read-only file system" in second["problem"]
    assert (first["problem"], third["problem"]) == (None, None)

    assert await bookie.process.stop(STATE_S) == 0
    run("umount", entries)
    run("mount", "-o", "remount,ro", str(disks[1]))
    await bookie.start()  # the directory can be read, and its first write fails
    assert await bookie.statuses() == [Status.OK] * 4 * PART
    assert await bookie.flush() == [0, 2, 3]
    assert "Read-only file system" in (await bookie.shown())[1]["problem"]
    copy = [bookie.entry(number) for number in range(PART)]
    assert await machine.add(bookie.bookie, *copy) is Status.OK, "a copy like that of a replicator was refused"
    assert await bookie.listed() == (Status.CORRUPT, 4 * PART)

    assert await bookie.process.stop(STATE_S) == 0
    run("mount", "-o", "remount,rw", str(disks[1]))
    await bookie.start()
    assert await bookie.statuses() == [Status.OK] * 5 * PART
    assert await bookie.listed() == (Status.OK, 5 * PART)
    assert [disk["problem"] for disk in await bookie.shown()] == [None] * 3


async def test_a_bookie_starts_read_only_on_a_disk_without_a_free_byte(machine: Machine, disks: list[Path]) -> None:
    """The journal and the index are both on it, and an end of the journal that no checkpoint covers."""
    disk = disks[0]
    bookie = DiskBookie(machine, [disk], disk / "journal")
    await bookie.start()
    assert await machine.add(bookie.bookie, *(bookie.entry(number) for number in range(PART))) is Status.OK
    bookie.added = PART
    await kill9(machine.zookeeper, bookie.process)
    with suppress(OSError), (disk / "of-another-program").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    await bookie.start()
    assert await bookie.statuses() == [Status.OK] * PART
    assert bookie.bookie in (await machine.registrations.list()).read_only
    assert await machine.add(bookie.bookie, bookie.entry(PART)) is Status.READ_ONLY
    assert await bookie.process.stop(STATE_S) == 0
    (disk / "of-another-program").unlink()
    await bookie.start()
    assert await bookie.statuses() == [Status.OK] * PART
    assert await machine.add(bookie.bookie, bookie.entry(PART)) is Status.OK
