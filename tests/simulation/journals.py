"""Damage to the journal of a dead bookie. The next start salvages the rest."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from bookie.server.joining import succession
from bookie.server.joining.admission import RoleDirectory
from bookie.server.joining.directories import read_directory
from bookie.storage import salvaging
from bookie.storage.disks.memory import MemoryDisk
from bookie.storage.journal.replay import file_numbers, file_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.nodes import SimBookie

_ATTEMPTS: Final = 8


async def damage(node: SimBookie, rng: random.Random) -> tuple[MemoryDisk, ...] | None:
    """Return copies of the journals' disks, one of them with damage that a start detects; None if no attempt made any.

    A start does not detect the loss of the last batch, acknowledged shortly before the crash (J12).
    """
    for _ in range(_ATTEMPTS):
        disks = tuple(journal.restarted() for journal in node.journals)
        damaged = disks[0] if len(disks) == 1 else rng.choice(disks)
        paths = [path for number in await file_numbers(damaged) if damaged.content(path := file_path(number))]
        if not paths:
            return None
        _damage(damaged, rng.choice(paths), rng)
        if await salvaging.damage_of([disk.restarted() for disk in disks], node.index.restarted()) is not None:
            return disks
    return None


def _damage(disk: MemoryDisk, path: str, rng: random.Random) -> None:
    size = len(disk.content(path))
    match rng.randrange(4):
        case 0:
            disk.flip_bit(path, rng.randrange(8 * size))
        case 1:
            disk.cut(path, rng.randrange(size))
        case 2:
            disk.lose(path)
        case _:
            disk.overwrite(path, rng.randrange(size), rng.randbytes(20))


async def salvage(node: SimBookie, places: Sequence[RoleDirectory], rng: random.Random) -> None:
    """Salvage the journal of a starting bookie, in the same order as the real process."""
    directories = [
        await read_directory(place.role, str(place.path), place.disk) for place in places if place.disk is not None
    ]
    before, resumed = succession.predecessor(directories)
    found = await salvaging.salvage(node.journals, node.spread, node.index, node.world.variation.storage)
    await succession.succeed(node.disks, before, resumed, rng)
    for journal in node.journals:
        for name in await journal.names("journal"):
            await journal.unlink(f"journal/{name}")
        await journal.sync_directory("journal")
    await salvaging.begin_journals(node.journals, node.index, found.epoch + 1)
