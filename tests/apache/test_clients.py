"""Apache's Java client and ours on Apache's bookies: each reads, recovers and takes over the other's ledgers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.errors import LedgerFencedError
from bookie.client.options import LedgerOptions
from bookie.embedded.apache import ApacheBookie, ApacheCluster
from bookie.model.ids import EntryId, LedgerId
from bookie.model.metadata import DigestType, LedgerState
from bookie.model.packet import ENTRY_PAYLOAD_MAX
from tests.apache.conftest import BOOKIES_SORTED
from tests.apache.driver import JavaDriver, JavaError, expected, payload, payloads
from tests.apache.waiting import until
from tests.apache.worlds import connect

pytestmark = pytest.mark.apache

DIGESTS = {"CRC32": DigestType.CRC32, "MAC": DigestType.HMAC, "CRC32C": DigestType.CRC32C, "DUMMY": DigestType.DUMMY}
SIZES = (0, 1, 31, 32, 1000, 40_000)
PASSWORD = b"secret \xff"

Take = Callable[[ApacheBookie], Awaitable[None]]


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as ours:
        yield ours


async def read_by_us(client: ConnectedBookKeeper, ledger_id: int, password: bytes | None = None) -> list[bytes]:
    reader = await client.open_ledger(LedgerId(ledger_id), password=password)
    found: list[bytes] = []
    async for entry in reader.read_all():
        assert entry.entry_id == len(found)
        found.append(entry.payload)
    return found


async def write_by_us(
    client: ConnectedBookKeeper, options: LedgerOptions, contents: Sequence[bytes], password: bytes = b""
) -> int:
    async with client.create_ledger(options, password=password) as ledger:
        futures = [await ledger.submit(content) for content in contents]
        assert [await future for future in futures] == list(range(len(contents)))
    return ledger.ledger_id


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("digest", DIGESTS)
async def test_we_read_what_apache_wrote(java: JavaDriver, client: ConnectedBookKeeper, digest: str, wire: str) -> None:
    """The ledgers are striped over more bookies than they have copies."""
    handle = await java.create(5, 3, 2, digest=digest, password=PASSWORD, client=wire)
    await handle.write(60, seed="theirs", sizes=SIZES)
    await handle.close()
    assert await read_by_us(client, handle.ledger_id, PASSWORD) == payloads("theirs", range(60), SIZES)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("digest", DIGESTS)
async def test_apache_reads_what_we_wrote(
    java: JavaDriver, client: ConnectedBookKeeper, digest: str, wire: str
) -> None:
    contents = payloads("ours", range(60), SIZES)
    ledger_id = await write_by_us(client, LedgerOptions(5, 3, 2, DIGESTS[digest]), contents, PASSWORD)
    assert await java.read_all(ledger_id, digest=digest, password=PASSWORD, client=wire) == expected(contents)


async def test_many_and_large_entries_are_readable_in_both_directions(
    java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    """Apache's entries may fill a frame: this is more than we write, but not more than we read."""
    handle = await java.create(3, 3, 2)
    await handle.write(3000, seed="many", sizes=(300,))
    await handle.write(2, seed="large", sizes=(5_000_000,))
    await handle.close()
    assert await read_by_us(client, handle.ledger_id) == [
        *payloads("many", range(3000), (300,)),
        *payloads("large", range(3000, 3002), (5_000_000,)),
    ]
    contents = [*payloads("many", range(3000), (300,)), payload("large", 3000, ENTRY_PAYLOAD_MAX)]
    ledger_id = await write_by_us(client, LedgerOptions(3, 3, 2), contents)
    assert await java.read_all(ledger_id) == expected(contents)


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_our_reader_follows_a_ledger_that_apache_writes(
    java: JavaDriver, client: ConnectedBookKeeper, wire: str
) -> None:
    handle = await java.create(3, 2, 2, client=wire)
    await handle.write(9, seed="tail", sizes=SIZES)
    await handle.write(1, seed="tail", sizes=SIZES)
    reader = await client.open_ledger(LedgerId(handle.ledger_id))
    # An entry is known to be confirmed only from the entry after it.
    last = await until(reader.refresh, lambda last: last >= 8, "all but the last entry are known to be confirmed")
    assert last <= 9
    await handle.write(10, seed="tail", sizes=SIZES)
    await handle.close()
    found = [entry.payload async for entry in reader.tail(EntryId(0))]
    assert found == payloads("tail", range(20), SIZES)


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_apaches_reader_follows_a_ledger_that_we_write(
    java: JavaDriver, client: ConnectedBookKeeper, wire: str
) -> None:
    contents = payloads("tail", range(20), SIZES)
    async with client.create_ledger(LedgerOptions(3, 2, 2)) as ledger:
        for content in contents[:10]:
            await ledger.append(content)
        handle = await java.open(ledger.ledger_id, client=wire)
        last = await until(
            handle.last_add_confirmed,
            lambda last: last >= 8,
            "Apache's client knows that all but the last entry are confirmed",
        )
        assert await handle.read(0, last) == expected(contents[: last + 1])
        for content in contents[10:]:
            await ledger.append(content)
    await until(handle.last_add_confirmed, lambda last: last == 19, "Apache's client reads the end")
    assert await handle.read(0, 19) == expected(contents)


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("digest", DIGESTS)
async def test_our_recovery_fences_apaches_writer_out_and_loses_nothing(
    java: JavaDriver, client: ConnectedBookKeeper, digest: str, wire: str
) -> None:
    handle = await java.create(5, 3, 2, digest=digest, password=PASSWORD, client=wire)
    written = await handle.write(31, seed="fence", sizes=SIZES)
    metadata = await client.recover_ledger(LedgerId(handle.ledger_id), password=PASSWORD)
    contents = payloads("fence", range(31), SIZES)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, written.last_add_confirmed)
    assert metadata.length == sum(map(len, contents))
    with pytest.raises(JavaError):
        await handle.write(1)
    assert await java.read_all(handle.ledger_id, digest=digest, password=PASSWORD) == expected(contents)
    assert await read_by_us(client, handle.ledger_id, PASSWORD) == contents


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_apaches_recovery_fences_our_writer_out_and_loses_nothing(
    java: JavaDriver, client: ConnectedBookKeeper, wire: str
) -> None:
    contents = payloads("fence", range(31), SIZES)
    ledger = await client.create_ledger(LedgerOptions(5, 3, 2))
    for content in contents:
        await ledger.append(content)
    handle = await java.open(ledger.ledger_id, recovery=True, client=wire)
    state = await handle.state()
    assert (state.is_closed, state.last_add_confirmed) == (True, 30)
    assert state.length == sum(map(len, contents))
    with pytest.raises(LedgerFencedError):
        await ledger.append(b"too late")
    await ledger.abandon()
    assert await handle.read(0, 30) == expected(contents)
    assert await read_by_us(client, ledger.ledger_id) == contents


async def test_ledgers_of_several_fragments_are_readable_by_the_other_client(
    java: JavaDriver, client: ConnectedBookKeeper, apache_cluster: ApacheCluster, taken_away: Take
) -> None:
    """A bookie stops while both write."""
    theirs = await java.create(3, 3, 2)
    contents = payloads("parts", range(40), SIZES)
    async with client.create_ledger(LedgerOptions(3, 3, 2)) as ours:
        await theirs.write(20, seed="parts", sizes=SIZES)
        for content in contents[:20]:
            await ours.append(content)
        shared = set(ours.metadata.last_fragment.members) & set(
            (await java.call("metadata", ledger=theirs.ledger_id))["ensembles"]["0"]
        )
        lost = next(bookie for bookie in apache_cluster.bookies if bookie.bookie_id in shared)
        await taken_away(lost)
        await theirs.write_past_a_loss(20, seed="parts", sizes=SIZES)
        for content in contents[20:]:
            await ours.append(content)
    await theirs.close()
    for ledger_id in (theirs.ledger_id, ours.ledger_id):
        assert len((await java.call("metadata", ledger=ledger_id))["ensembles"]) == 2
        assert await read_by_us(client, ledger_id) == contents
        assert await java.read_all(ledger_id) == expected(contents)


@pytest.mark.parametrize("wire", ["v2", "v3"])
async def test_apaches_checker_finds_nothing_missing_in_a_ledger_that_we_wrote(
    java: JavaDriver, client: ConnectedBookKeeper, apache_cluster: ApacheCluster, wire: str
) -> None:
    """The bookies hold the entries of their positions. Bookies with DbLedgerStorage cannot list, and are left out."""
    ledger_id = await write_by_us(client, LedgerOptions(4, 2, 2), payloads("check", range(40), SIZES))
    assert (await java.call("check", ledger=ledger_id, client=wire))["fragments"] == []
    metadata = await java.call("metadata", ledger=ledger_id)
    silent = {bookie.bookie_id for bookie in apache_cluster.bookies[BOOKIES_SORTED:]}
    for index, bookie in enumerate(metadata["ensembles"]["0"]):
        if bookie in silent:
            continue
        listed = await java.call("available_entries", bookie=bookie, ledger=ledger_id)
        assert listed["ids"] == [entry for entry in range(40) if index in (entry % 4, (entry + 1) % 4)]


async def test_apaches_batch_reads_return_what_we_wrote(java: JavaDriver, client: ConnectedBookKeeper) -> None:
    contents = payloads("batch", range(50), SIZES)
    ledger_id = await write_by_us(client, LedgerOptions(3, 3, 2), contents)
    handle = await java.open(ledger_id, client="v2")
    found = await handle.read(10, 0, batch_count=20)
    everything = expected(contents)
    assert found == everything[10 : 10 + len(found)]
    assert len(found) == 20


async def test_we_can_read_ledgers_of_apaches_writer_with_chosen_ids(
    java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    handle = await java.create(3, 2, 2, own_ids=True)
    await handle.write(ids=[2, 0, 1, 4, 3], seed="own", sizes=SIZES)
    await handle.close()
    assert await read_by_us(client, handle.ledger_id) == payloads("own", range(5), SIZES)


async def test_a_ledger_with_deferred_sync_is_readable_after_a_force(
    java: JavaDriver, client: ConnectedBookKeeper
) -> None:
    handle = await java.create(3, 3, 2, deferred_sync=True)
    await handle.write(5, seed="deferred", sizes=SIZES)
    assert (await handle.force()).last_add_confirmed == 4
    await handle.close()
    assert await read_by_us(client, handle.ledger_id) == payloads("deferred", range(5), SIZES)


async def test_the_other_client_sees_deletes(java: JavaDriver, client: ConnectedBookKeeper) -> None:
    theirs = await java.create(1, 1, 1)
    await theirs.close()
    ours = await write_by_us(client, LedgerOptions(1, 1, 1), [b"x"])
    assert {theirs.ledger_id, ours} <= set((await java.call("ledgers"))["ledgers"])
    await client.delete_ledger(LedgerId(theirs.ledger_id))
    await java.call("delete", ledger=ours)
    assert not {theirs.ledger_id, ours} & set((await java.call("ledgers"))["ledgers"])
