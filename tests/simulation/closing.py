"""The checks of disks and locks after a history: unused space is free again, and no lock remains."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bookie.model.errors import BkhealError
from bookie.storage.entry_logs.entry_log import DIRECTORY, RECORD_HEADER_SIZE
from tests.simulation.repairs import LOCK_S

if TYPE_CHECKING:
    from tests.simulation.nodes import SimBookie
    from tests.simulation.world import SimWorld

_SPARE_BYTES: Final = 64
"""How many bytes the entry logs of a bookie may have in addition to its live entries."""
_LOOK_S: Final = 5.0
_START_S: Final = 600.0
"""The longest time for the last start of a bookie, which waits for the end of its former session."""
_RETRIES_MAX: Final = 3
"""The number of checkpoints after which a bookie must notice the free space on its disk."""


async def watch_locks(world: SimWorld) -> None:
    """Check the locks repeatedly."""
    while True:
        await asyncio.sleep(_LOOK_S * world.variation.scale)
        world.repairs.look_at_locks()


async def judge_locks(world: SimWorld) -> None:
    """Wait until no lock is left. A lock that no process uses is a violation."""
    deadline_s = world.loop.time() + 3 * LOCK_S + 6 * world.collector_confirm_s()
    while world.repairs.look_at_locks() and not world.truth.violations:
        if world.loop.time() > deadline_s:
            world.truth.fail("LOCK", f"locks remain: {', '.join(world.lock_names())}")
        await asyncio.sleep(_LOOK_S)


async def judge_space(world: SimWorld) -> None:
    """Collect and compact on every bookie, and check that its entry logs are then hardly larger than live entries."""
    for name in sorted(world.bookies):
        node = world.bookies[name]
        if not node.is_listening or node.bookie in world.truth.rotten:
            continue
        if await _has_started(world, node):
            await _judge_space_of(world, node)
        else:
            world.truth.fail("I19", f"{node.bookie} has not started after {_START_S:.0f} s")


async def _has_started(world: SimWorld, node: SimBookie) -> bool:
    """Wait for the end of the bookie's last start. Until then its collector belongs to its former life."""
    deadline_s = world.loop.time() + _START_S
    while world.loop.time() < deadline_s:
        if node.is_serving:
            return True
        await asyncio.sleep(_LOOK_S)
    return False


async def _judge_space_of(world: SimWorld, node: SimBookie) -> None:
    node.collecting.cancel()
    await asyncio.wait([node.collecting])  # only one collection and one compaction can run at a time
    for _ in range(_RETRIES_MAX):
        if node.storage.is_full:  # the collector retries
            await asyncio.sleep(world.variation.storage.flush_retry_s)
    try:
        await node.storage.checkpoint()
        await node.collect()
        await node.storage.compact()
    except BkhealError as error:
        world.truth.fail("SPACE", f"{node.bookie} cannot collect at the end: {error}")
        return
    live = await _live_bytes(world, node)
    logs = [
        disk.content(path) for disk in node.ledger_disks for path in disk.paths() if path.startswith(f"{DIRECTORY}/")
    ]
    used = sum(len(log) for log in logs)
    if used * world.variation.storage.compact_below > live + _SPARE_BYTES:
        world.truth.fail("SPACE", f"{node.bookie} has {used} bytes in {len(logs)} entry logs, {live} of them live")


async def _live_bytes(world: SimWorld, node: SimBookie) -> int:
    """Return the bytes of the listed entries, including those in flight when their writer died."""
    live, after = 0, -1
    while page := await node.storage.ledger_ids(after, 1000):
        after = page[-1]
        for ledger_id in page:
            packets = world.truth.of(ledger_id).packets
            listed = (await node.storage.list_entries(ledger_id)).entries
            live += sum(len(packets.get(entry_id, b"")) + RECORD_HEADER_SIZE for entry_id in listed)
            in_flight = [entry_id for entry_id in listed if entry_id not in packets]
            if in_flight:
                live += sum(len(each.packet) for each in (await node.storage.read(ledger_id, in_flight)).results)
    return live
