"""A standby node that its worker could not delete takes the place of a worker that would watch for all others (R46)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie.metadata.nodes import child_names
from bookie.metadata.own_state import own_path
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.store.memory import Fault, MemoryCell, MemoryStore
from bookie.metadata.tasks.standby import StandbyWorkers

ROOT = "/ledgers"
PARENT = own_path("standby", ROOT)


class Trouble:
    """A fault hook. ``faults`` are the faults of the next requests, by the name of their operation."""

    def __init__(self) -> None:
        self.faults: dict[str, Fault] = {}

    async def __call__(self, operation: str, path: str) -> Fault | None:
        return self.faults.pop(operation, None) if path.startswith(PARENT) else None


@pytest.fixture
def trouble() -> Trouble:
    return Trouble()


@pytest.fixture
def store(trouble: Trouble) -> MemoryStore:
    return MemoryStore(MemoryCell(), fault_hook=trouble)


async def could_not_leave(workers: StandbyWorkers, trouble: Trouble) -> None:
    name = await workers.enter("aa")
    trouble.faults = {"delete": Fault.FAIL_BEFORE}
    await workers.leave(name)


async def does_not_know_its_node(workers: StandbyWorkers, trouble: Trouble) -> None:
    trouble.faults = {"create": Fault.LOSE_ANSWER, "sync": Fault.FAIL_BEFORE}
    with pytest.raises(StoreUnavailableError):
        await workers.enter("aa")


@pytest.mark.parametrize("leaving", [could_not_leave, does_not_know_its_node])
async def test_a_worker_deletes_its_remaining_node_before_it_is_on_standby_again(
    store: MemoryStore, trouble: Trouble, leaving: Callable[..., object]
) -> None:
    workers, others = StandbyWorkers(store, ROOT), StandbyWorkers(store, ROOT)
    await store.create("/bkheal")
    await workers.leave(await workers.enter("aa"))
    await leaving(workers, trouble)  # type: ignore[misc]
    theirs = await others.enter("bb")
    trouble.faults = {}
    ours = await workers.enter("aa")
    assert sorted(await child_names(store, PARENT)) == sorted([ours, theirs])
    place = await others.place(theirs)
    assert place is not None
    assert place.position == 0
