"""Readers and writers get the reason why bookies could not be used, and not only a status."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie.client.errors import AddOutcomeUnknownError, EntryUnavailableError, quoted
from bookie.client.options import LedgerOptions
from bookie.client.reader.reader import LedgerReader
from bookie.model.ids import BookieId, EntryId
from bookie.wire.port import AddBatch, AddReply, EntryResult, ReadReply, Status
from bookie.wire.requests import Read
from tests.unit.bookie.client.test_ledger_client import ClientWorld
from tests.worlds.ledgers import LEDGER
from tests.worlds.recovery import DIGEST, PAYLOAD, Asked, Proceed, RecoveryWorld, a_world, transport_of
from tests.worlds.virtual_time import in_virtual_time

REFUSED = "the bookie refused the login of 'keeper'"


def answering(reply: ReadReply) -> Any:
    async def hook(asked: Asked, proceed: Proceed) -> Any:
        return reply if isinstance(asked, Read) else await proceed()

    return hook


async def failure_of_a_read(world: RecoveryWorld, *replies: ReadReply) -> str:
    ledger = await world.create((0, "a b"), quorum=(2, 2), filled_to=0)
    await world.ledgers.write(LEDGER, ledger.metadata.closed(EntryId(0), PAYLOAD), 0)
    ports = world.client()
    for name, reply in zip("ab", replies, strict=True):
        transport_of(ports).hooks[name] = answering(reply)
    with pytest.raises(EntryUnavailableError) as failed:
        await LedgerReader(ports, await world.ledgers.read(LEDGER), DIGEST).read(EntryId(0))
    return str(failed.value)


@in_virtual_time
async def test_a_reason_that_several_bookies_give_is_reported_once() -> None:
    async with a_world("a b") as world:
        reply = ReadReply(Status.UNREACHABLE, detail=REFUSED)
        reported = await failure_of_a_read(world, reply, reply)
        assert reported.endswith(f"from any replica (a: UNREACHABLE, b: UNREACHABLE); {REFUSED}")


@in_virtual_time
async def test_the_error_of_an_unauthorized_read_points_to_the_login() -> None:
    async with a_world("a b") as world:
        reply = ReadReply(Status.OK, (EntryResult(EntryId(0), Status.UNAUTHORIZED),))
        assert "asks for a login" in await failure_of_a_read(world, reply, ReadReply(Status.TIMEOUT))


def test_the_error_of_a_failed_writer_contains_the_reasons_of_its_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = ClientWorld()
        await world.start()
        try:
            writer = await world.client.create_ledger(LedgerOptions(7, 7, 7))
            member = writer.metadata.last_fragment.members[3]
            store = world.transport.add

            async def add(bookie: BookieId, batch: AddBatch, timeout_s: float) -> AddReply:
                is_refused = bookie == member
                return AddReply(Status.UNREACHABLE, REFUSED) if is_refused else await store(bookie, batch, timeout_s)

            monkeypatch.setattr(world.transport, "add", add)
            with pytest.raises(AddOutcomeUnknownError, match=f"no writable bookie is left.*; {REFUSED}"):
                await writer.append(b"lost")
            await writer.close()
        finally:
            await world.close()

    asyncio.run(scenario())


def test_quoted_reasons_are_on_one_line_distinct_and_few() -> None:
    assert quoted(["", "a\n  b", "a b", "c", "d", "e"]) == "; a b; c; d"
    assert quoted([]) == ""
    assert len(quoted(["x" * 10_000])) < 400
