"""Writers with failing bookies, lost answers and randomly taken unlikely branches, in virtual time.

No entry may be acknowledged with fewer than ``Qa`` copies in the stored ensemble, out of order, or beyond the end. All
acknowledged entries are in the ledger after it is closed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from bookie.client.errors import AddOutcomeUnknownError
from bookie.client.options import WriterOptions
from bookie.client.writer.writer import LedgerWriter
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError
from bookie.model.ids import EntryId
from bookie.model.metadata import LedgerMetadata
from bookie.runtime.fault_points import inject_faults
from bookie.wire.port import Status
from tests.worlds.virtual_time import run_virtual
from tests.worlds.writer import ScriptedBookie, WriterWorld

SHAPES = [(1, 1, 1), (3, 3, 2), (3, 2, 2), (4, 3, 1), (5, 3, 2), (5, 5, 3)]
REFUSALS = [Status.IO_ERROR, Status.READ_ONLY, Status.UNREACHABLE, Status.SHUTTING_DOWN, Status.UNRESOLVED]
POINTS = {
    "writer.tiny_batch": 0.01,
    "writer.early_timeout": 0.01,
    "writer.extra_reread": 0.3,
    "writer.forced_conflict": 0.3,
    "writer.force_ensemble_change": 0.01,
    "writer.explicit_lac_now": 0.1,
    "writer.early_close": 0.3,
}
"""The probability of each fault point."""


async def trouble(world: WriterWorld, rng: random.Random) -> None:
    """Give random bookies temporary faults, one after another."""

    async def one(bookie: ScriptedBookie) -> None:
        kind = rng.randrange(5)
        if kind == 0:
            bookie.refusal = rng.choice(REFUSALS)
        elif kind == 1:
            bookie.is_silent = True
        elif kind == 2:
            bookie.is_reply_lost = True
        elif kind == 3:
            bookie.busy_left = rng.randrange(100)
        bookie.latency_s = rng.choice([0.001, 0.01, 1.0])
        await asyncio.sleep(rng.random() * 20)
        bookie.refusal, bookie.is_silent, bookie.is_reply_lost, bookie.latency_s = None, False, False, 0.001

    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(rng.random() * 8)
            group.create_task(one(rng.choice([world.bookies[name] for name in sorted(world.bookies)])))


async def write(world: WriterWorld, writer: LedgerWriter, rng: random.Random, *, has_own_ids: bool) -> None:
    following = 0
    for _ in range(60):
        ids = list(range(following, following := following + rng.randrange(1, 20)))
        if has_own_ids:
            rng.shuffle(ids)
        for n in ids:
            payload = f"entry {n}".encode()
            submit = writer.submit_at(EntryId(n), payload) if has_own_ids else writer.submit(payload)
            world.watch(writer, await submit, payload)
        await asyncio.sleep(rng.choice([0, 0.01, 1, 3]))


async def check_end(world: WriterWorld, writer: LedgerWriter, metadata: LedgerMetadata) -> None:
    marked = set(await world.marked(writer))
    assert metadata == world.stored(writer)
    assert metadata.last_entry_id is not None
    assert list(world.acknowledged) == list(range(len(world.acknowledged)))  # in order, without a gap
    assert len(world.acknowledged) == metadata.last_entry_id + 1
    assert metadata.length == sum(map(len, world.acknowledged.values()))
    for n in world.acknowledged:
        members = metadata.fragments[metadata.fragment_index(n)].members
        positions = metadata.stripe.write_set(n)
        lacking = {members[p] for p in positions if (writer.ledger_id, n) not in world.bookies[members[p]].stored}
        assert len(lacking) <= metadata.write_quorum - metadata.ack_quorum
        assert lacking <= marked, "a copy is missing, and its bookie is not marked"


async def scenario(seed: int, fired: Counter[str]) -> str:
    rng = random.Random(seed)
    world = WriterWorld()
    shape = rng.choice(SHAPES)
    await world.start(shape[0] + rng.randrange(6), seed=seed)
    options = WriterOptions(
        has_own_entry_ids=rng.random() < 0.3,
        is_ensemble_change_delayed=rng.random() < 0.4,
        add_quorum_timeout_s=rng.choice([None, None, 60]),
        explicit_lac_interval_s=rng.choice([None, 1]),
        ensemble_changes_max=rng.choice([None, None, None, 3]),
    )
    writer = await world.writer(*shape, options)
    is_store_bad = rng.random() < 0.5

    async def hook(operation: str, path: str) -> Fault | None:
        await asyncio.sleep(rng.choice([0, 0, 0.01, 0.5]))
        return rng.choice(list(Fault)) if is_store_bad and rng.random() < 0.05 else None

    def fires(name: str) -> bool:
        if rng.random() >= POINTS.get(name, 0):
            return False
        fired[name] += 1
        return True

    world.store.fault_hook = hook
    outcome = "whole"
    with inject_faults(fires):
        storm = asyncio.ensure_future(trouble(world, rng))
        try:
            await write(world, writer, rng, has_own_ids=options.has_own_entry_ids)
        except AddOutcomeUnknownError:
            outcome = "failed"
        storm.cancel()
        is_store_bad = False
        metadata = await close(writer)
    await asyncio.sleep(100)  # answers that are still in flight change nothing
    assert world.violations == []
    await check_end(world, writer, metadata)
    return outcome


async def close(writer: LedgerWriter) -> LedgerMetadata:
    for _ in range(20):
        try:
            return await writer.close()
        except BkhealError as error:
            last = error
    raise last


@pytest.mark.parametrize("block", range(4))
def test_no_acknowledged_entry_is_ever_lost_or_invented(block: int) -> None:
    fired: Counter[str] = Counter()
    outcomes = Counter(run_virtual(scenario(seed, fired)) for seed in range(block * 25, block * 25 + 25))
    assert set(fired) == set(POINTS)
    assert outcomes["whole"] > 5
