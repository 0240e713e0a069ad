"""Starts of runs that fail half-way: the kind must become free again, or it would never be audited again."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.runs.records import RunLane, Runs
from bookie.metadata.store.memory import Fault
from bookie.model.run import RunCause, RunKind, RunRecord
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, Auditor, ServiceWorld, in_service_world
from tests.worlds.virtual_time import when


async def start(auditor: Auditor) -> RunRecord:
    return await auditor.service.start_run(RunKind.BOOKIES, cause=RunCause.HTTP, owner="me")


class SlowRecords:
    """A store that writes the record of a run slowly; other operations are not delayed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def __call__(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(self.seconds if operation == "create" and "/records/" in path else 0)
        return None


class Refusing:
    """A store that refuses requests to the paths of runs while it is switched on."""

    def __init__(self) -> None:
        self.is_on = False

    async def __call__(self, operation: str, path: str) -> Fault | None:
        await asyncio.sleep(0)
        if operation == "create" and "/records/" in path:
            self.is_on = True
        return Fault.FAIL_BEFORE if self.is_on and "/runs/" in path else None


@in_service_world
async def test_a_caller_that_gives_up_during_the_start_of_a_run_leaves_no_lock(world: ServiceWorld) -> None:
    auditor = await world.leader()
    auditor.store.fault_hook = SlowRecords(20)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await start(auditor)
    await asyncio.sleep(60)
    auditor.store.fault_hook = None
    await asyncio.sleep(60)
    assert await Runs(world.session(), ROOT).holder(RunLane(RunKind.BOOKIES)) is None
    assert auditor.service.status().running == ()
    await world.down(BOOKIES[0])
    await when(lambda: bool(world.marked), 30)


@in_service_world
async def test_a_failed_start_releases_its_lock_once_the_store_answers(world: ServiceWorld) -> None:
    auditor = await world.leader()
    refusing = auditor.store.fault_hook = Refusing()
    with pytest.raises(StoreUnavailableError, match="was not started"):
        await start(auditor)
    await asyncio.sleep(20)
    auditor.store.fault_hook = None
    assert refusing.is_on
    await asyncio.sleep(5)
    assert await Runs(world.session(), ROOT).holder(RunLane(RunKind.BOOKIES)) is None
    await world.down(BOOKIES[0])
    await when(lambda: bool(world.marked), 30)
