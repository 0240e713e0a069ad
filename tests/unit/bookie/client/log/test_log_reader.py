"""Following a log: which resources remain after a reader, and which invalid waits it refuses."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bookie.client.errors import InvalidPollError
from tests.worlds.log import NAME, SMALL, log_world
from tests.worlds.virtual_time import in_virtual_time


@in_virtual_time
async def test_no_task_of_a_tail_runs_after_it_is_closed() -> None:
    async with log_world() as world:
        writer = await world.client(1).log(NAME).write(SMALL)
        for payload in (b"one", b"two", b"three"):
            await writer.append(payload)
        reader, listed = world.client(2), world.listed_now()
        ledger = None if listed is None or listed.list.last is None else world.ledger_now(listed.list.last)
        assert ledger is not None
        before = asyncio.all_tasks()
        async with aclosing(reader.log(NAME).tail()) as entries:
            assert [(await anext(entries)).payload for _ in range(2)] == [b"one", b"two"]
            reader.transport.faults(ledger.metadata.last_fragment.members[0]).is_request_lost = True
            waiting = asyncio.ensure_future(anext(entries))
            await world.clock.sleep(0.1)
            await writer.close()
            assert (await waiting).payload == b"three"  # from the metadata: one bookie has not answered the poll yet
            assert asyncio.all_tasks() - before - {waiting}
        assert not asyncio.all_tasks() - before


@pytest.mark.parametrize("poll_s", [0.0, -1.0, float("nan")])
@in_virtual_time
async def test_a_poll_interval_that_is_not_positive_is_refused(poll_s: float) -> None:
    async with log_world() as world:
        client = world.client()
        await client.log(NAME).create(SMALL)  # an empty log has no ledger to follow yet
        with pytest.raises(InvalidPollError):
            await anext(client.log(NAME).tail(poll_s=poll_s))


@in_virtual_time
async def test_a_tail_without_new_entries_outlasts_any_number_of_lost_sessions() -> None:
    async with log_world() as world:
        reader = world.client(2)
        await reader.log(NAME).create(SMALL)
        async with aclosing(reader.log(NAME).tail()) as entries:
            waiting = asyncio.ensure_future(anext(entries))
            for _ in range(70):
                await world.clock.sleep(60)
                reader.store.expire()
                reader.store.resume()
            async with await world.client(1).log(NAME).write(SMALL) as writer:
                await writer.append(b"one")
            assert (await waiting).payload == b"one"
