"""A real bookie process with two journals, each on its own file system."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.process import ManagedProcess
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.wire.port import AddBatch, Status
from bookie.wire.requests import Fence, Info, Read
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.auditors import when
from tests.integration.power_cut import fragile_disk
from tests.integration.test_bookie_process import KEY, READY, Machine, machine
from tests.required import missing
from tests.sessions import kill9
from tests.worlds.machine import entry

__all__ = ["machine"]

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.needs("loop")]

EVEN, ODD = LedgerId(2), LedgerId(3)
"""Ledgers of the first and of the second journal."""
DISK_MIB = 16
PAYLOAD = b"x" * 100_000


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Mount two file systems."""
    found = tmp_path / "disk-1", tmp_path / "disk-2"
    mounted = []
    try:
        for path in found:
            path.mkdir()
            mount(path)
            mounted.append(path)
        yield found
    finally:
        for path in mounted:
            unmount(path)


def mount(path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing("loop", f"no tmpfs can be mounted: {done.stderr.strip()}")


def unmount(path: Path) -> None:
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def move(path: Path, target: Path) -> None:
    subprocess.run(["mount", "--move", str(path), str(target)], check=True)


def listed(*paths: Path) -> str:
    return ",".join(str(path / "journal") for path in paths)


async def add(machine: Machine, bookie: BookieId, ledger_id: LedgerId, number: int, payload: bytes = b"x") -> Status:
    batch = AddBatch(ledger_id, KEY, [entry(ledger_id, number, payload)])
    return (await machine.transport.add(bookie, batch, STATE_S)).status


async def whole(machine: Machine, bookie: BookieId, ledger_id: LedgerId, count: int) -> bool:
    """Return whether the bookie has the entries, after a wait for the address of a restarted bookie."""
    read = Read(ledger_id, [EntryId(number) for number in range(count)])
    async with asyncio.timeout(STATE_S):
        while (reply := await machine.transport.ask(bookie, read, STATE_S)).status is Status.UNREACHABLE:
            continue
    return [result.packet for result in reply.results] == [entry(ledger_id, each, b"x") for each in range(count)]


async def started(machine: Machine, **options: object) -> tuple[ManagedProcess, BookieId, str]:
    """Start a bookie, wait until it serves, and return it with its id and its address."""
    process = machine.start(bookie_id="two", **options)
    ready = await process.wait_for_line(READY, STATE_S)
    return process, BookieId(ready[1]), f"{ready[2]}:{ready[3]}"


async def refuses_adds(machine: Machine, bookie: BookieId) -> bool:
    """Return whether the bookie is read-only according to its own answer."""
    reply = await machine.transport.ask(bookie, Info(), STATE_S)
    return reply.info is not None and reply.info.is_read_only


async def shown(at: str) -> tuple[list[str], dict[str, Any]]:
    """Return the read-only reasons and the problem of each journal that ``bkheal bookie status`` prints."""
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "status", "--at", at, "--output", "json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=PROGRAM_S)
    document = json.loads(done.stdout)
    journals = {disk["path"]: disk["problem"] for disk in document["disks"] if disk["role"].startswith("journal")}
    return document["read_only_reasons"], journals


async def test_both_journals_are_replayed_after_a_kill_and_neither_may_be_missing_or_swapped(
    machine: Machine, disks: tuple[Path, Path]
) -> None:
    first, second = disks
    options: dict[str, object] = {"journal_dir": listed(first, second), "bookie_id": "two"}
    process, bookie = await machine.ready(**options)
    for number in range(20):
        assert await add(machine, bookie, EVEN, number) is Status.OK
        assert await add(machine, bookie, ODD, number) is Status.OK
    fenced = await machine.transport.ask(bookie, Fence(ODD, KEY), STATE_S)
    assert fenced.status is Status.OK
    await kill9(machine.zookeeper, process)
    for path in disks:
        [file] = (path / "journal" / "current" / "journal").glob("*.journal")
        assert file.stat().st_size > 20 * 50
    aside = machine.home / "aside"
    aside.mkdir()

    assert "made with journal" in await machine.refused(
        ExitCode.CONFIGURATION, journal_dir=listed(second, first), bookie_id="two"
    )
    assert "made with journal" in await machine.refused(
        ExitCode.CONFIGURATION, journal_dir=listed(first), bookie_id="two"
    )
    move(second, aside)  # the state if its disk is not mounted
    assert f"{second}/journal of bookie two has no file VERSION" in await machine.refused(
        ExitCode.CONFIGURATION, **options
    )
    move(first, second)  # each disk is mounted in the place of the other
    move(aside, first)
    assert "has journal 2 of 2, and is given as journal 1 of 2" in await machine.refused(
        ExitCode.STORAGE_FAILED, **options
    )
    move(first, aside)
    move(second, first)
    move(aside, second)

    _, again = await machine.ready(**options)
    assert await whole(machine, again, EVEN, 20)
    assert await whole(machine, again, ODD, 20)
    assert await add(machine, again, ODD, 20) is Status.FENCED
    assert await add(machine, again, EVEN, 20) is Status.OK


async def test_a_journal_disk_that_is_full_makes_the_bookie_read_only_and_loses_nothing(
    machine: Machine, disks: tuple[Path, Path]
) -> None:
    first, second = disks
    directories = listed(first, second)
    process, bookie, at = await started(machine, journal_dir=directories)
    assert await shown(at) == ([], dict.fromkeys(directories.split(",")))
    assert await add(machine, bookie, EVEN, 0) is Status.OK
    assert await add(machine, bookie, ODD, 0) is Status.OK
    ballast = second / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert await add(machine, bookie, ODD, 1, PAYLOAD) is Status.READ_ONLY
    assert await add(machine, bookie, EVEN, 1, PAYLOAD) is Status.READ_ONLY
    assert await whole(machine, bookie, EVEN, 1)
    assert await whole(machine, bookie, ODD, 1)
    await machine.until(lambda bookies: bookie in bookies.read_only)
    problems = dict(zip(directories.split(","), (None, "full"), strict=True))
    assert await shown(at) == (["disk-full"], problems)
    await kill9(machine.zookeeper, process)
    ballast.unlink()
    _, again, _ = await started(machine, journal_dir=directories)
    assert await whole(machine, again, EVEN, 1)
    assert await whole(machine, again, ODD, 1)
    assert await add(machine, again, ODD, 1) is Status.OK


async def test_a_hanging_journal_disk_makes_the_bookie_read_only_ends_it_and_loses_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    with fragile_disk(tmp_path) as disk:
        first, second = directories = tmp_path / "journal-1", disk.root / "journal-2"
        options: dict[str, object] = {"journal_dir": ",".join(map(str, directories))}
        process, bookie, at = await started(machine, **options)
        for number in range(20):
            assert await add(machine, bookie, EVEN, number) is Status.OK
            assert await add(machine, bookie, ODD, number) is Status.OK
        with disk.frozen():
            waiting = asyncio.create_task(add(machine, bookie, ODD, 20))
            assert await add(machine, bookie, EVEN, 20) is Status.OK
            assert not waiting.done()
            await machine.until(lambda bookies: bookie in bookies.read_only)
            await when(partial(refuses_adds, machine, bookie), STATE_S)  # only after the registration has changed
            assert await add(machine, bookie, EVEN, 21) is Status.READ_ONLY
            assert await whole(machine, bookie, EVEN, 21)
            assert await whole(machine, bookie, ODD, 20)
            reasons, problems = await shown(at)
            assert reasons == ["stalled-disk"]
            assert problems[str(first)] is None
            assert problems[str(second)].startswith("a write has not ended for")
            line = await process.wait_for_line(r"^bookie: a write to the disk of (\S+) has not ended", STATE_S)
            assert line[1] == str(second)
            assert await waiting is not Status.OK
            await machine.until(lambda bookies: bookie not in bookies.registered)
        assert await process.wait(STATE_S) == ExitCode.STORAGE_FAILED
        _, again, _ = await started(machine, **options)
        assert await whole(machine, again, EVEN, 21)
        assert await whole(machine, again, ODD, 20)
        assert await add(machine, again, ODD, 21) is Status.OK
        await machine.stack.aclose()
