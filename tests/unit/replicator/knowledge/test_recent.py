"""Values that are read once for all concurrent callers."""

from __future__ import annotations

import asyncio

from bookie.metadata.port import StoreUnavailableError
from replicator.knowledge.recent import Shared
from tests.worlds.clocks import VirtualClock
from tests.worlds.virtual_time import in_virtual_time


class Reads:
    """Numbered reads that end when the test lets them; some of them fail."""

    def __init__(self, *failing: int) -> None:
        self._failing = failing
        self._may_end = asyncio.Event()
        self.begun = 0

    async def read(self) -> int:
        self.begun += 1
        number = self.begun
        await self._may_end.wait()
        if number in self._failing:
            raise StoreUnavailableError("no answer")
        return number

    def end(self) -> None:
        self._may_end.set()


async def results(reads: Reads, callers: int) -> list[int | BaseException]:
    """Return the result of one caller, and those of the callers that arrive during its read."""
    shared = Shared(reads.read, VirtualClock(), 1.0)
    asking = [asyncio.create_task(shared.fresh()) for _ in range(callers)]
    await asyncio.sleep(0)
    reads.end()
    return await asyncio.gather(*asking, return_exceptions=True)


@in_virtual_time
async def test_concurrent_callers_share_one_read_that_starts_after_their_calls() -> None:
    reads = Reads()
    assert await results(reads, 4) == [1, 2, 2, 2]
    assert reads.begun == 2


@in_virtual_time
async def test_a_failed_read_does_not_return_an_earlier_value_to_any_caller() -> None:
    first, second, *others = await results(Reads(2), 4)
    assert first == 1
    assert isinstance(second, StoreUnavailableError)
    assert others == [3, 3]
