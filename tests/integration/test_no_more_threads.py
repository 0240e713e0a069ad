"""A real bookie in a control group that permits no further thread. Needs root and the ``pids`` controller."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from bookie.wire.port import Status
from tests.integration.test_bookie_process import Machine, machine
from tests.integration.test_ledger_disks import PART, DiskBookie
from tests.sessions import expire

__all__ = ["machine"]

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROOTS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
"""The folders of the first and of the second version of control groups."""


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a control group."""
    path = next((root for root in ROOTS if root.is_dir()), ROOTS[-1]) / f"bkheal-{uuid4().hex}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (path / "pids.max").exists():
            pytest.skip("control groups do not count processes here")
        yield path
    finally:
        path.rmdir()


async def test_a_bookie_creates_no_thread_after_its_start(group: Path, machine: Machine, tmp_path: Path) -> None:
    bookie = DiskBookie(machine, [tmp_path / f"disk-{number}" for number in range(3)])
    await bookie.start()
    (group / "cgroup.procs").write_text(str(bookie.process.pid))
    (group / "pids.max").write_text((group / "pids.current").read_text())
    for _ in range(3):
        await bookie.flush()
        found = await asyncio.gather(*(bookie.statuses() for _ in range(10)))
        assert found == [[Status.OK] * bookie.added] * 10
    await expire(machine.zookeeper, bookie.process)
    await machine.until(lambda seen: bookie.bookie in seen.writable)
    assert sum(await bookie.flush()) >= 4
    assert [disk["problem"] for disk in await bookie.shown()] == [None] * 3
    assert await bookie.statuses() == [Status.OK] * 4 * PART
    assert await bookie.process.stop() == 0
