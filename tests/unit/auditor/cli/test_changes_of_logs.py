"""Commands on logs and ledgers: what changes is recorded with who and what, and what is refused is not."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import typer

from auditor.cli.ledgers import ledger, log
from bookie.client.log.values import InvalidPositionError, LogPosition
from bookie.metadata.logs.log_store import LogExistsError, NoSuchLogError
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.ids import EntryId, LedgerId
from tests.worlds.cluster import ROOT
from tests.worlds.log import NAME, SMALL, LogWorld, log_world
from tests.worlds.virtual_time import in_virtual_time

URI = "zk://h:1/ledgers"


@pytest.fixture
def using(monkeypatch: pytest.MonkeyPatch) -> Callable[[LogWorld], None]:
    def use(world: LogWorld) -> None:
        async def connect(uri: str, **_: Any) -> Any:
            return connected(world)

        monkeypatch.setattr("bookie.client.connect.connect", connect)

    return use


@asynccontextmanager
async def connected(world: LogWorld) -> AsyncIterator[Any]:
    client: Any = world.client()
    client.cluster = world.cluster
    try:
        yield client
    finally:
        await client.close()


async def recorded(world: LogWorld) -> list[str]:
    found = await ChangeRecords(world.store, ROOT, world.clock).newest(9)
    return [change.action for change in reversed(found)]


@in_virtual_time
async def test_a_log_is_created_and_deleted_on_record(using: Callable[[LogWorld], None]) -> None:
    async with log_world() as world:
        using(world)
        for refused in (
            log._delete(URI, NAME),
            log._truncate(URI, NAME, LogPosition(LedgerId(1), EntryId(0)), is_sure=True),
        ):
            with pytest.raises(NoSuchLogError):
                await refused
        assert await recorded(world) == []
        await log._create(URI, NAME, SMALL)
        with pytest.raises(LogExistsError):
            await log._create(URI, NAME, SMALL)
        with pytest.raises(InvalidPositionError):
            await log._truncate(URI, NAME, LogPosition(LedgerId(1), EntryId(0)), is_sure=True)
        await log._delete(URI, NAME)
        assert await recorded(world) == ["log create", "log delete"]


@in_virtual_time
async def test_a_truncation_is_on_record_if_it_removes_ledgers(
    using: Callable[[LogWorld], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())  # no terminal to ask
    async with log_world() as world:
        using(world)
        writer = await world.client(2).log(NAME).write(SMALL)
        first = await writer.append(b"a")
        await writer.roll()
        last = await writer.append(b"b")
        with pytest.raises(typer.Exit):
            await log._truncate(URI, NAME, last, is_sure=False)
        assert await recorded(world) == []
        assert await log._truncate(URI, NAME, last, is_sure=True) == [first.ledger_id]
        assert await log._truncate(URI, NAME, last, is_sure=False) == []
        await writer.close()
        assert await recorded(world) == ["log truncate"]


@in_virtual_time
async def test_a_ledger_is_recovered_on_record_unless_it_is_closed(using: Callable[[LogWorld], None]) -> None:
    async with log_world() as world:
        using(world)
        writer = await world.client(2).create_ledger()
        for _ in range(2):
            assert (await ledger._recover(URI, writer.ledger_id, None))["state"] == "CLOSED"
        assert await recorded(world) == ["ledger recover"]


@pytest.mark.parametrize("text", ["abc", "7", "7:", ":0"])
def test_what_is_no_position_is_wrong_usage(text: str) -> None:
    for first in (log._first, lambda value: log._position(value, "--before")):
        with pytest.raises(typer.BadParameter):
            first(text)
    assert log._first("start") == "start"
    assert log._first("7:0") == LogPosition(LedgerId(7), EntryId(0))


def test_the_limits_of_a_logs_ledgers_have_units() -> None:
    assert log.options_lines(SMALL.to_json())[-1] == "a new ledger begins after: 100 B or 1 min"
