"""A disk that can hang. An operation that starts during the hang runs after it, even if its caller no longer waits.

The in-memory disk is not realistic enough, because it cancels an operation together with its caller. With a real disk,
a thread keeps waiting. So a file can be created, written or removed long after the bookie stopped using the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import override

from bookie.model.errors import BkhealError
from bookie.storage.port import Disk, DiskFile

if TYPE_CHECKING:
    from tests.simulation.nodes import SimBookie

T = TypeVar("T")


class LateDisk(Disk):
    """A ledger directory of a bookie, identified by its place in the settings."""

    def __init__(self, node: SimBookie, number: int, disk: Disk) -> None:
        self._node = node
        self._number = number
        self._disk = disk

    @property
    def is_hanging(self) -> bool:
        """Whether the disk hangs now, so that no operation ends."""
        return self._node.faults.hanging_directory == self._number

    @override
    async def create(self, path: str) -> DiskFile:
        return _LateFile(self, await self.ended(lambda: self._disk.create(path)))

    @override
    async def open(self, path: str) -> DiskFile:
        return _LateFile(self, await self.ended(lambda: self._disk.open(path)))

    @override
    async def replace(self, path: str, data: bytes) -> None:
        await self.ended(lambda: self._disk.replace(path, data))

    @override
    async def names(self, directory: str) -> list[str]:
        return await self.ended(lambda: self._disk.names(directory))

    @override
    async def make_directory(self, path: str) -> None:
        await self.ended(lambda: self._disk.make_directory(path))

    @override
    async def unlink(self, path: str) -> None:
        await self.ended(lambda: self._disk.unlink(path))

    @override
    async def sync_directory(self, directory: str) -> None:
        await self.ended(lambda: self._disk.sync_directory(directory))

    @override
    async def space(self) -> tuple[int, int]:
        return await self._disk.space()

    async def ended(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the end of the hang, then run ``work`` and return its result."""
        if not self.is_hanging:
            return await work()
        hang_ended = self._node.faults.hang_ended
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def late() -> None:
            await hang_ended.wait()
            try:
                result = await work()
            except (BkhealError, FileNotFoundError) as error:
                if not outcome.done():
                    outcome.set_exception(error)
                return
            if not outcome.done():
                outcome.set_result(result)

        self._node.process.run("late operation", late())
        return await outcome


@dataclass(slots=True)
class _LateFile(DiskFile):
    disk: LateDisk
    file: DiskFile

    @override
    async def append(self, parts: Sequence[bytes]) -> int:
        return await self.disk.ended(lambda: self.file.append(parts))

    @override
    async def sync(self) -> None:
        await self.disk.ended(self.file.sync)

    @override
    async def append_and_sync(self, parts: Sequence[bytes]) -> int:
        return await self.disk.ended(lambda: self.file.append_and_sync(parts))

    @override
    async def reserve(self, ahead: int) -> None:
        await self.disk.ended(lambda: self.file.reserve(ahead))

    @override
    async def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return await self.disk.ended(lambda: self.file.read(ranges))

    @override
    def read_cached(self, offset: int, size: int) -> bytes | None:
        return None if self.disk.is_hanging else self.file.read_cached(offset, size)

    @override
    async def size(self) -> int:
        return await self.disk.ended(self.file.size)

    @override
    async def close(self) -> None:
        await self.disk.ended(self.file.close)
