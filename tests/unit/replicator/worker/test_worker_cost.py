"""How many requests of the metadata store a repair costs. Small ledgers are the usual case, and the store is shared."""

from __future__ import annotations

import pytest

from bookie.metadata.store.memory import Fault
from bookie.model.ids import LedgerId
from tests.worlds.ledgers import make_metadata, names
from tests.worlds.repair import a_world
from tests.worlds.virtual_time import in_virtual_time

LEDGERS = 40
LISTINGS = 90
"""Requests of the listings at the start and at the end, in which all ledgers share."""


@pytest.mark.parametrize(("entries", "requests_max"), [(10, 34), (0, 32)])
@in_virtual_time
async def test_a_small_ledger_costs_few_requests(entries: int, requests_max: int) -> None:
    async with a_world("a b c t") as world:
        for ledger_id in range(1, LEDGERS + 1):
            await world.ledger(ledger_id, make_metadata((0, "a b c"), quorum=(3, 2), last=entries - 1), entries)
            await world.tasks.marking.mark(LedgerId(ledger_id), names("c"))
        await world.kill("c")
        running = world.worker()
        requests: list[str] = []

        async def count(operation: str, path: str) -> Fault | None:
            requests.append(f"{operation} {path}")
            return None

        running.store.fault_hook = count
        await running.worker.run()
        assert await world.is_clean()
        assert len(requests) <= LISTINGS + LEDGERS * requests_max
        assert len(requests) >= LEDGERS * (requests_max - 2), "cheaper than stated: lower the bound"
