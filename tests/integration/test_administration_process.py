"""Operators and a real bookie process: irreparable damage, and the read-only mode across a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bookie.client.resolve import RegistrationResolver
from bookie.metadata.bookies.registration import Bookies
from bookie.model.ids import BookieId, EntryId
from bookie.runtime.access.tokens import Role, make_token
from bookie.runtime.clock import SystemClock
from bookie.storage.entry_logs.entry_log import log_path
from bookie.wire import administration_pb2 as pb
from bookie.wire.grpc.administration import Administration
from bookie.wire.port import Status
from bookie.wire.requests import ListEntries
from bookie.wire.resolver import BookieAddress
from bookie.wire.security import NO_FILES, PLAINTEXT
from spark_jobs.checks.inventory.asking import InventoryState, inventory
from tests.deadlines import STATE_S
from tests.integration.test_bookie_process import LEDGER, READY, Machine, entry, machine

__all__ = ["machine"]

pytestmark = pytest.mark.integration

PAYLOAD = b"some bytes that are unique in the entry log"


async def until(is_reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(STATE_S):
        while not await is_reached():  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.05)


async def test_unrepaired_damage_and_read_only_mode_survive_a_restart(machine: Machine) -> None:
    token = make_token("olga", Role.OPERATE)
    (machine.home / "tokens").write_text(token.line)
    options = {"bookie_id": "damaged", "tokens_file": machine.home / "tokens", "scrub_interval": 3600}

    process, bookie = await machine.ready(**options)
    assert await machine.add(bookie, *(entry(number, PAYLOAD) for number in range(3))) is Status.OK
    await process.stop()
    log = machine.home / "ledgers" / "current" / log_path(1)
    content = bytearray(log.read_bytes())
    content[content.index(PAYLOAD)] ^= 1
    log.write_bytes(content)

    async def started() -> Administration:
        nonlocal process
        process = machine.start(**options)
        ready = await process.wait_for_line(READY, STATE_S)
        return Administration(BookieAddress(ready[2], int(ready[3])), PLAINTEXT, token.token)

    async with await started() as operator:
        await operator.scrub(pb.ScrubRequest(action="START"))
        await until(lambda: _has_unrepaired(operator))  # no metadata names a bookie with another copy
        assert (await operator.set_read_only(pb.SetReadOnlyRequest(action="SET"))).is_read_only
    await machine.until(lambda seen: bookie in seen.read_only)
    await process.stop()

    async with await started() as operator:
        await machine.until(lambda seen: _is_registered(seen, bookie))
        status = await operator.status()
        assert (status.read_only.is_read_only, list(status.read_only.reasons)) == (True, ["operator"])
        await operator.scrub(pb.ScrubRequest(action="START"))  # the scrub first reads the record of the earlier process
        await until(lambda: _has_unrepaired(operator))
        await until(lambda: _answers(machine, bookie))
        listed = await machine.transport.ask(bookie, ListEntries(LEDGER), STATE_S)
        assert (listed.status, list(listed.entries)) == (Status.CORRUPT, [1, 2])
        assert await machine.add(bookie, entry(3)) is Status.READ_ONLY
        assert not (await operator.set_read_only(pb.SetReadOnlyRequest(action="CLEAR"))).is_read_only
        assert await machine.add(bookie, entry(3)) is Status.OK


async def test_an_audit_with_a_token_in_a_file_gets_the_ledgers_and_one_without_is_refused(
    machine: Machine,
) -> None:
    token, file = make_token("audit", Role.READ), machine.home / "audit.token"
    (machine.home / "tokens").write_text(token.line)
    file.write_text(f"{token.token}\n")
    _, bookie = await machine.ready(tokens_file=machine.home / "tokens", no_allow_anonymous_read=True)
    assert await machine.add(bookie, *(entry(number, PAYLOAD) for number in range(3))) is Status.OK

    async def asked(token_file: Path | None) -> tuple[list[int], str]:
        resolver = RegistrationResolver(machine.registrations, SystemClock())
        rows = [row async for row in inventory(bookie, resolver, NO_FILES, SystemClock(), token_file)]
        return [row["ledger_id"] for row in rows[:-1]], rows[-1]["answer"]["state"]

    assert await asked(None) == ([], InventoryState.REFUSED.value)
    assert await asked(file) == ([LEDGER], InventoryState.LISTED.value)
    (machine.home / "tokens").write_text("")
    assert await asked(file) == ([], InventoryState.REFUSED.value)


async def _has_unrepaired(operator: Administration) -> bool:
    state = await operator.scrub(pb.ScrubRequest())
    return [(each.ledger_id, list(each.entry_ids)) for each in state.unrepaired] == [(LEDGER, [EntryId(0)])]


async def _answers(machine: Machine, bookie: BookieId) -> bool:
    return (await machine.transport.ask(bookie, ListEntries(LEDGER), STATE_S)).status is not Status.UNREACHABLE


def _is_registered(seen: Bookies, bookie: BookieId) -> bool:
    return bookie in seen.registered
