"""``bkheal simpletest`` always deletes its ledger, or prints how to delete it."""

from __future__ import annotations

import asyncio

import pytest

from auditor.cli.exit_codes import exit_code_of
from auditor.cli.ledgers.simpletest import LedgerNotDeletedError, WrongEntryError, prove
from bookie.client.errors import NotEnoughBookiesError
from bookie.client.options import LedgerOptions
from bookie.client.reader.reader import LedgerReader
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError
from bookie.model.ids import LedgerId
from tests.worlds.log import Client, LogWorld, log_world
from tests.worlds.virtual_time import in_virtual_time

OPTIONS = LedgerOptions(3, 3, 3)
URI = "zk://zk1:2181;zk2:2181/ledgers"


async def ledgers(world: LogWorld) -> list[LedgerId]:
    return [ledger_id async for ledger_id in world.client(77).ledgers()]


def no_deletions(world: LogWorld, *, hangs: bool = False) -> Client:
    async def faults(operation: str, path: str) -> Fault | None:
        if operation == "delete" and "/idgen/" not in path:
            if hangs:
                await asyncio.Event().wait()
            return Fault.FAIL_BEFORE
        return None

    return world.client(5, faults)


class ReadingFailedError(BkhealError):
    """An error that a client raises."""


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LedgerReader) -> None:
        raise ReadingFailedError("no bookie answers")

    monkeypatch.setattr(LedgerReader, "read_all", fail)


@in_virtual_time
async def test_a_successful_test_deletes_its_ledger_unless_it_should_be_kept() -> None:
    async with log_world() as world:
        row = await prove(world.client(), OPTIONS, 20, 10, uri=URI)
        assert (row["entries"], row["is_deleted"], await ledgers(world)) == (20, True, [])
        kept = await prove(world.client(), OPTIONS, 20, 10, uri=URI, is_kept=True)
        assert (kept["is_deleted"], await ledgers(world)) == (False, [kept["ledger_id"]])


@pytest.mark.usefixtures("unreadable")
@in_virtual_time
async def test_a_failed_test_deletes_its_ledger_and_raises_its_own_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with log_world() as world:
        with pytest.raises(ReadingFailedError):
            await prove(world.client(), OPTIONS, 20, 10, uri=URI)
        assert await ledgers(world) == []
        with pytest.raises(ReadingFailedError):
            await prove(world.client(), OPTIONS, 20, 10, uri=URI, is_kept=True)
        assert len(await ledgers(world)) == 1
    assert "may remain" not in capsys.readouterr().err


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("hangs", [False, True])
def test_if_a_ledger_cannot_be_deleted_the_command_is_printed_and_the_first_error_is_raised(
    hangs: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    @in_virtual_time
    async def story() -> None:
        async with log_world() as world:
            began_s = world.clock.monotonic_s()
            with pytest.raises(ReadingFailedError):
                await prove(no_deletions(world, hangs=hangs), OPTIONS, 20, 10, uri=URI)
            assert world.clock.monotonic_s() - began_s < 15
            [left] = await ledgers(world)
            command = f"bkheal ledger delete {left} --yes --metadata-uri '{URI}'"
            reported = capsys.readouterr().err
            assert f"ledger {left} may remain" in reported
            assert command in reported

    story()


@in_virtual_time
async def test_a_ledger_left_by_a_successful_test_is_an_error_that_can_be_fixed() -> None:
    async with log_world() as world:
        with pytest.raises(LedgerNotDeletedError, match=r"as they were written, but ledger .* --yes") as caught:
            await prove(no_deletions(world), OPTIONS, 20, 10, uri=URI)
        assert exit_code_of(caught.value) == 69


@in_virtual_time
async def test_an_interrupted_test_deletes_its_ledger() -> None:
    async with log_world() as world:

        async def faults(operation: str, path: str) -> Fault | None:
            if operation == "get" and not path.startswith("/ledgers/available"):
                reads.set()
                await asyncio.Event().wait()
            return None

        reads = asyncio.Event()
        work = asyncio.ensure_future(prove(world.client(5, faults), OPTIONS, 20, 10, uri=URI))
        async with asyncio.timeout(60):
            await reads.wait()
        assert len(await ledgers(world)) == 1
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert await ledgers(world) == []


@in_virtual_time
async def test_nothing_is_deleted_if_no_ledger_was_created() -> None:
    async with log_world() as world:
        with pytest.raises(NotEnoughBookiesError):
            await prove(no_deletions(world), LedgerOptions(9, 2, 2), 20, 10, uri=URI)


def test_a_wrong_entry_is_an_error_of_the_cluster() -> None:
    assert exit_code_of(WrongEntryError("entry 1")) == 70
