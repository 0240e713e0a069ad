"""The public functions of the client: creating, opening, recovering and listing ledgers, as a new user would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.client.bookkeeper import BookKeeper
from bookie.client.errors import NotEnoughBookiesError, WriterClosedError, WrongDigestTypeError, WrongPasswordError
from bookie.client.ledger_filter import LedgerFilter
from bookie.client.options import InvalidQuorumError, LedgerOptions, WriterOptions
from bookie.metadata.ledgers.ledgers import Unreadable, Versioned
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from tests.worlds.log import BOOKIES, log_world
from tests.worlds.virtual_time import in_virtual_time


async def ids(client: BookKeeper, **conditions: object) -> list[int]:
    return [ledger_id async for ledger_id in client.ledgers(**conditions)]  # type: ignore[arg-type]


@in_virtual_time
async def test_a_ledger_is_created_by_await_or_async_with() -> None:
    async with log_world() as world:
        client = world.client()
        async with client.create_ledger(LedgerOptions(3, 3, 2)) as ledger:
            assert await ledger.append(b"a") == 0
        assert ledger.metadata.is_closed
        async with await client.create_ledger() as second:
            assert await second.append(b"a") == 0
        assert second.metadata.is_closed
        third = await client.create_ledger()
        assert not third.metadata.is_closed
        assert await ids(client) == [ledger.ledger_id, second.ledger_id, third.ledger_id]
        await third.close()
        with pytest.raises(WriterClosedError):
            await third.append(b"late")


@in_virtual_time
async def test_an_error_in_the_block_is_raised_and_the_ledger_is_closed() -> None:
    async with log_world() as world:
        client = world.client()

        async def divide() -> None:
            async with client.create_ledger() as ledger:
                await ledger.append(b"a")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await divide()
        [ledger_id] = await ids(client)
        assert (await client.open_ledger(LedgerId(ledger_id))).metadata.last_entry_id == 0


@in_virtual_time
async def test_invalid_options_are_refused_before_anything_is_created() -> None:
    async with log_world() as world:
        client = world.client()
        for shape in ((2, 3, 2), (3, 2, 3), (1, 1, 0)):
            with pytest.raises(InvalidQuorumError, match="ack quorum"):
                await client.create_ledger(LedgerOptions(*shape))
        with pytest.raises(NotEnoughBookiesError, match="9 bookies"):
            await client.create_ledger(LedgerOptions(9, 2, 2))
        assert await ids(client) == []


@in_virtual_time
async def test_password_and_digest_type_are_checked_on_opening() -> None:
    async with log_world() as world:
        client = world.client()
        options = LedgerOptions(3, 2, 2, DigestType.HMAC)
        async with client.create_ledger(options, password=b"secret", custom={"a": b"1"}) as ledger:
            await ledger.append(b"x")
        with pytest.raises(WrongPasswordError):
            await client.open_ledger(ledger.ledger_id, password=b"guess")
        with pytest.raises(WrongPasswordError):
            await client.recover_ledger(ledger.ledger_id, password=b"guess")
        with pytest.raises(WrongDigestTypeError, match="HMAC, not CRC32C"):
            await client.open_ledger(ledger.ledger_id, digest_type=DigestType.CRC32C)
        reader = await client.open_ledger(ledger.ledger_id, password=b"secret", digest_type=DigestType.HMAC)
        assert (await reader.read(EntryId(0))).payload == b"x"
        assert reader.metadata.custom_map == {"a": b"1"}


@in_virtual_time
async def test_opening_with_recovery_closes_a_ledger_whose_writer_has_died() -> None:
    async with log_world() as world:
        client = world.client()
        ledger = await client.create_ledger(password=b"secret", writer_options=WriterOptions(ensemble_changes_max=1))
        await ledger.append(b"x")
        await ledger.abandon()
        assert not (await client.open_ledger(ledger.ledger_id)).metadata.is_closed
        with pytest.raises(WrongPasswordError):
            await client.open_ledger(ledger.ledger_id, password=b"guess", recover=True)
        reader = await client.open_ledger(ledger.ledger_id, password=b"secret", recover=True)
        assert [entry.payload async for entry in reader.read_all()] == [b"x"]
        assert (await client.recover_ledger(ledger.ledger_id)).last_entry_id == 0


@in_virtual_time
async def test_ledgers_are_listed_by_conditions_and_up_to_a_limit() -> None:
    async with log_world() as world:
        client = world.client()
        made: list[LedgerId] = []
        for number in range(12):
            ledger = await client.create_ledger(custom={"parity": b"%d" % (number % 2), f"n{number}": b""})
            made.append(ledger.ledger_id)
            if number < 6:
                await ledger.close()
            else:
                await ledger.abandon()
            await world.clock.sleep(10)
        times = [(await client.ports.ledgers.read(ledger_id)).metadata.ctime_ms or 0 for ledger_id in made]
        assert await ids(client) == made
        assert await ids(client, limit=3) == made[:3]
        assert await ids(client, limit=0) == []
        assert await ids(client, state=LedgerState.OPEN) == made[6:]
        assert await ids(client, state=LedgerState.OPEN, custom={"parity": b"1"}, limit=2) == [made[7], made[9]]
        assert await ids(client, custom={"n3": None}) == [made[3]]
        assert await ids(client, created_after_ms=times[10]) == made[10:]
        assert await ids(client, created_after_ms=times[2], created_before_ms=times[4]) == made[2:4]
        assert await ids(client, id_prefix="1") == [ledger_id for ledger_id in made if str(ledger_id).startswith("1")]
        on = [await ids(client, bookie=bookie) for bookie in BOOKIES]
        assert sorted({ledger_id for some in on for ledger_id in some}) == made
        assert await ids(client, bookie=BookieId("nobody")) == []
        await world.store.set(client.ports.ledgers.path(made[0]), b"damage", -1)
        items = [item async for item in client.scan_ledgers(limit=2)]
        assert isinstance(items[0], Unreadable)
        assert isinstance(items[1], Versioned)
        assert await ids(client, state=LedgerState.CLOSED) == made[1:6]


@given(
    st.sampled_from(LedgerState),
    st.none() | st.integers(0, 10),
    st.none() | st.integers(0, 10),
    st.none() | st.integers(0, 10),
)
def test_ledgers_are_selected_by_time_and_state(
    state: LedgerState, ctime_ms: int | None, after: int | None, before: int | None
) -> None:
    last, length = (EntryId(0), 1) if state is LedgerState.CLOSED else (None, None)
    fragments = (Fragment(EntryId(0), (BookieId("b"),)),)
    metadata = LedgerMetadata(1, 1, 1, fragments, state, last, length, ctime_ms=ctime_ms)
    where = LedgerFilter(frozenset({LedgerState.OPEN}), created_after_ms=after, created_before_ms=before)
    in_time = (
        (after is None and before is None)
        if ctime_ms is None
        else (after or 0) <= ctime_ms < (11 if before is None else before)
    )
    assert where.matches(metadata) == (state is LedgerState.OPEN and in_time)
