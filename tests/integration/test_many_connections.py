"""A real bookie whose clients open more connections than it may open files: nothing is lost, and it continues."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from bookie.wire.grpc.administration import AdministrationRefusedError
from bookie.wire.port import Status
from tests.deadlines import STATE_S
from tests.integration.test_bookie_process import Machine, entry, machine
from tests.integration.test_ledger_disks import PART, DiskBookie

__all__ = ["machine"]

pytestmark = pytest.mark.integration

SPARE = 200
"""Number of files that this process may still open while the bookie starts with the same soft limit."""
ROOM = 100
"""Number of files that the bookie may still open when the clients connect."""

FEW = 20
REFUSALS_MAX = 100
"""The listener attempts to accept connections about once per second, so three or four are usual."""
APACHE_READY = r"^bookie speaks Apache's protocol on \S+:(\d+)$"
NO_FRAME = b"\xff" * 4
"""No frame has this length, so the bookie closes the connection."""


@contextmanager
def soft_limit(files: int) -> Iterator[None]:
    """Start processes with this soft limit during the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(stack: ExitStack, port: int, count: int) -> None:
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=STATE_S))


def refusals(machine: Machine) -> int:
    return (machine.home / "log-1").read_text().count("out of system resource")


async def until_open(bookie: DiskBookie, files: int) -> None:
    """Wait until the bookie has at least this number of open files and connections."""
    process = psutil.Process(bookie.process.pid)

    async def is_reached() -> bool:
        return process.num_fds() >= files

    await bookie.process.wait_until(is_reached, f"{files} open files", STATE_S)


async def test_a_bookie_with_the_usual_soft_limit_serves_more_connections(machine: Machine, tmp_path: Path) -> None:
    bookie = DiskBookie(machine, [tmp_path / "disk"])
    limit = psutil.Process().num_fds() + SPARE
    with soft_limit(limit):
        await bookie.start()
    assert await bookie.flush() == [1]
    with ExitStack() as stack:
        connect(stack, bookie.address.port, limit)
        await until_open(bookie, limit + 1)
        assert await bookie.flush() == [2]
    assert await bookie.statuses() == [Status.OK] * 2 * PART


async def test_connections_of_apaches_protocol_beyond_the_limit_wait(machine: Machine) -> None:
    process, bookie = await machine.ready(apache_port=0)
    port = int((await process.wait_for_line(APACHE_READY, STATE_S))[1])
    assert await machine.add(bookie, entry(0)) is Status.OK  # opens the connection for the next one
    running = psutil.Process(process.pid)
    limit = running.num_fds() + FEW
    running.rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        connect(stack, port, 2 * FEW)

        async def is_refused_again() -> bool:
            return refusals(machine) >= 3

        await process.wait_until(is_refused_again, "three refusals", STATE_S)
        assert refusals(machine) <= REFUSALS_MAX
        assert await machine.add(bookie, entry(1)) is Status.OK
    with socket.create_connection(("127.0.0.1", port), timeout=STATE_S) as client:
        client.sendall(NO_FRAME)
        assert await asyncio.to_thread(client.recv, 1) == b""


@pytest.mark.long
async def test_a_bookie_without_free_file_descriptors_becomes_read_only_and_loses_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    bookie = DiskBookie(machine, [tmp_path / f"disk-{number}" for number in range(3)])
    await bookie.start()
    assert sum(await bookie.flush()) == 1
    process = psutil.Process(bookie.process.pid)
    async with bookie.operator() as operator:
        await operator.force()
        limit = process.num_fds() + ROOM
        process.rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
        with ExitStack() as stack:
            connect(stack, bookie.address.port, 2 * ROOM)
            await until_open(bookie, limit)
            added = 0
            while await machine.add(bookie.bookie, bookie.entry(bookie.added)) is Status.OK:
                bookie.added, added = bookie.added + 1, added + 1
                with pytest.raises(AdministrationRefusedError, match="Too many open files"):
                    await operator.force()
            assert added
            await machine.until(lambda seen: bookie.bookie not in seen.writable)
            assert bookie.bookie in (await machine.registrations.list()).registered
        await machine.until(lambda seen: bookie.bookie in seen.writable)
        await operator.force()
    assert sum(await bookie.flush()) >= 2
    assert [disk["problem"] for disk in await bookie.shown()] == [None] * 3
    assert await bookie.statuses() == [Status.OK] * bookie.added
