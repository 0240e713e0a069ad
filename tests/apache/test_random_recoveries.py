"""Ledgers whose writer died at a random moment: both clients recover equal copies of them to a right end.

Each history is made three times: for Apache's recovery, for ours, and for both at the same time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.client.errors import RecoveryNotPossibleError
from bookie.embedded.apache import ApacheCluster
from bookie.model.digest import digest_for, master_key
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.model.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bookie.model.packet import pack, pack_lac
from bookie.wire.port import AddBatch, AddReply, Status
from bookie.wire.requests import Fence, Read, WriteLac
from tests.apache.driver import JavaDriver, JavaError, expected, payload
from tests.apache.worlds import connect, each
from tests.deadlines import STATE_S

pytestmark = [pytest.mark.apache, pytest.mark.long, pytest.mark.usefixtures("no_tasks")]

HISTORIES: Final = 120
LOST: Final = BookieId("127.0.0.1:1")
"""A member that never answers."""
DIGESTS: Final = {
    "CRC32": DigestType.CRC32,
    "MAC": DigestType.HMAC,
    "CRC32C": DigestType.CRC32C,
    "DUMMY": DigestType.DUMMY,
}
ENSEMBLE_MAX: Final = 4
SIZES: Final = (0, 1, 100, 3_000)

Members = tuple[BookieId, ...]


@dataclass(frozen=True)
class History:
    """A ledger that its writer left open."""

    seed: int
    metadata: LedgerMetadata
    digest: str
    """Apache's name of the digest type."""
    confirmed: int
    """The number of acknowledged entries. The entries after them are on any number of bookies."""
    contents: Sequence[bytes]
    holders: Sequence[Sequence[BookieId]]
    """The bookies that have each entry."""
    lacs: Sequence[int]
    """The last add confirmed in each entry."""
    fenced: Sequence[BookieId]
    informed: Sequence[BookieId]
    """The bookies with an explicit last add confirmed."""

    @property
    def password(self) -> bytes:
        assert self.metadata.password is not None
        return self.metadata.password

    @property
    def ends(self) -> range:
        """The last entries that a recovery may find."""
        first = last = self.confirmed - 1
        for entry in range(self.confirmed, len(self.holders)):
            if not self.holders[entry]:
                break
            if first == entry - 1 and len(self.holders[entry]) >= self.metadata.ack_quorum:
                first = entry
            last = entry
        return range(first, last + 1)

    @property
    def is_whole(self) -> bool:
        return all(LOST not in fragment.members for fragment in self.metadata.fragments)


def written_on(metadata: LedgerMetadata, entry: int) -> list[BookieId]:
    """Return the members that store an entry."""
    members = next(each.members for each in reversed(metadata.fragments) if each.first_entry_id <= entry)
    return [members[(entry + number) % metadata.ensemble_size] for number in range(metadata.write_quorum)]


def with_changes(rng: random.Random, members: Members, bookies: Sequence[BookieId], entries: int) -> list[Fragment]:
    """Return the fragments of a writer that replaced up to two bookies."""
    fragments = [Fragment(EntryId(0), members)]
    for first in sorted(rng.sample(range(1, entries + 1), min(entries, rng.choice([0, 0, 1, 2])))):
        changed = list(fragments[-1].members)
        changed[rng.randrange(len(changed))] = rng.choice([each for each in bookies if each not in changed])
        fragments.append(Fragment(EntryId(first), tuple(changed)))
    return fragments


def history(seed: int, bookies: Sequence[BookieId]) -> History:
    rng = random.Random(seed)
    ensemble = rng.randint(1, ENSEMBLE_MAX)
    write_quorum = rng.randint(1, ensemble)
    ack_quorum = rng.randint(1, write_quorum)
    confirmed = rng.choice([0, 1, 2, 5, 8])
    entries = confirmed + rng.choice([0, 0, 1, 2, 4, 6])
    fragments = with_changes(rng, tuple(rng.sample(bookies, ensemble)), bookies, confirmed)
    if rng.random() < 1 / 3:
        members = list(fragments[-1].members)
        members[rng.randrange(ensemble)] = LOST
        fragments[-1] = Fragment(fragments[-1].first_entry_id, tuple(members))
    digest = rng.choice(sorted(DIGESTS))
    metadata = LedgerMetadata(
        ensemble,
        write_quorum,
        ack_quorum,
        tuple(fragments),
        state=rng.choice([LedgerState.OPEN, LedgerState.OPEN, LedgerState.IN_RECOVERY]),
        digest_type=DIGESTS[digest],
        password=rng.choice([b"", b"secret"]),
    )
    holders = []
    for entry in range(entries):
        write_set = written_on(metadata, entry)
        least = ack_quorum if entry < confirmed else 0
        holders.append([each for each in rng.sample(write_set, rng.randint(least, write_quorum)) if each != LOST])
    sent = [max(-1, min(entry, confirmed) - 1 - rng.choice([0, 0, 1, 3])) for entry in range(entries)]
    alive = [each for each in fragments[-1].members if each != LOST]
    return History(
        seed,
        metadata,
        digest,
        confirmed,
        [payload(f"history {seed}", entry, rng.choice(SIZES)) for entry in range(entries)],
        holders,
        list(accumulate(sent, max)),
        fenced=[each for each in alive if rng.random() < 0.15],
        informed=[each for each in alive if confirmed and rng.random() < 0.2],
    )


async def left(client: ConnectedBookKeeper, made: History) -> LedgerId:
    """Create the ledger, and store its copies on the bookies."""
    ports, key = client.ports, master_key(made.password)
    digest = digest_for(DIGESTS[made.digest], made.password)
    ledger_id = await ports.ledgers.new_id()
    await ports.ledgers.create(ledger_id, made.metadata)
    length = 0
    for entry, content in enumerate(made.contents):
        length += len(content)
        packet = pack(digest, ledger_id, EntryId(entry), made.lacs[entry], length, content)
        for bookie in made.holders[entry]:
            batch = AddBatch(ledger_id, key, [packet])
            assert await ports.transport.add(bookie, batch, STATE_S) == AddReply(Status.OK)
    for bookie in made.informed:
        hint = WriteLac(ledger_id, key, pack_lac(digest, ledger_id, made.confirmed - 1))
        await ports.transport.ask(bookie, hint, STATE_S)
    for bookie in made.fenced:
        await ports.transport.ask(bookie, Fence(ledger_id, key), STATE_S)
    return ledger_id


async def recovered_by_apache(java: JavaDriver, made: History, ledger_id: LedgerId) -> int | None:
    """Return the last entry, or None if the recovery fails."""
    wire = ("v2", "v3")[made.seed % 2]
    try:
        handle = await java.open(ledger_id, digest=made.digest, password=made.password, recovery=True, client=wire)
    except JavaError as error:
        if error.kind != "BKLedgerRecoveryException":
            raise
        return None
    return (await handle.close()).last_add_confirmed


async def recovered_by_us(client: ConnectedBookKeeper, made: History, ledger_id: LedgerId) -> int | None:
    try:
        metadata = await client.recover_ledger(ledger_id, password=made.password)
    except RecoveryNotPossibleError:
        return None
    return metadata.last_entry_id


async def check_end(java: JavaDriver, client: ConnectedBookKeeper, made: History, ledger_id: LedgerId) -> None:
    """Check that both clients read the ledger to its end, and that its last entries are on enough bookies."""
    metadata = (await client.ports.ledgers.read(ledger_id)).metadata
    last = metadata.last_entry_id
    assert last is not None
    kept = made.contents[: last + 1]
    assert await java.read_all(ledger_id, digest=made.digest, password=made.password) == expected(kept)
    reader = await client.open_ledger(ledger_id, password=made.password)
    assert [entry.payload async for entry in reader.read_all()] == kept
    for entry in range(made.confirmed, last + 1):
        found = 0
        for bookie in written_on(metadata, entry):
            reply = await client.ports.transport.ask(bookie, Read(ledger_id, [EntryId(entry)]), STATE_S)
            found += bool(reply.results and reply.results[0].status is Status.OK)
        assert found >= metadata.ack_quorum, (ledger_id, entry)


async def check(java: JavaDriver, client: ConnectedBookKeeper, made: History) -> None:
    """Make the history three times, recover the ledgers, and check their ends."""
    alone, own, shared = [await left(client, made) for _ in range(3)]
    by_apache = await recovered_by_apache(java, made, alone)
    by_us = await recovered_by_us(client, made, own)
    both = await asyncio.gather(recovered_by_apache(java, made, shared), recovered_by_us(client, made, shared))
    outcomes = [by_apache, by_us, *both]
    if None in outcomes:
        assert not made.is_whole
        assert set(outcomes) == {None}, made
    else:
        assert set(outcomes) <= set(made.ends), made
        assert len(set(both)) == 1, made
        for ledger_id in (alone, own, shared):
            await check_end(java, client, made, ledger_id)
        assert by_us is not None
        stored = (await client.ports.ledgers.read(own)).metadata
        assert stored.length == sum(map(len, made.contents[: by_us + 1])), made
    for ledger_id in (alone, own, shared):
        await client.delete_ledger(ledger_id)


@pytest.fixture
async def client(apache_cluster: ApacheCluster) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(apache_cluster.metadata_uri) as ours:
        yield ours


async def test_both_recover_what_a_writer_left_to_a_right_end(java: JavaDriver, client: ConnectedBookKeeper) -> None:
    bookies = sorted((await client.ports.registrations.list()).writable)
    made = [history(seed, bookies) for seed in range(HISTORIES)]

    async def one(each_made: History) -> None:
        await check(java, client, each_made)

    await each(made, one)
    assert {each_made.is_whole for each_made in made} == {True, False}
