"""Directories that bookies of earlier releases wrote, in ``tests/data/released``, are read by this one.

Each archive has the journal and the ledger directory of a bookie that was started twice. The first process ended in
order, so its entries are in entry logs. The second one was killed, so its last entries, and a fence, are only in the
journal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from bookie.model.digest import master_key
from bookie.model.ids import EntryId, LedgerId
from bookie.wire.port import AddBatch, Status
from tests.archives import unpack
from tests.contract.test_rebuilt_index import again, lose_index, store_in
from tests.worlds.entries import numbered_payload, raw_entry

RELEASED: Final = Path(__file__).parents[1] / "data" / "released"
ENTRIES: Final = {0: 10, 1: 3, 3: 40, 4: 5, 5: 7}
"""The number of entries of each ledger."""
FENCED: Final = LedgerId(4)


@pytest.fixture(params=sorted(path.name for path in RELEASED.glob("bookie-*.tar.gz")))
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(RELEASED / request.param, tmp_path)
    return tmp_path


async def assert_complete(home: Path) -> None:
    async with store_in(home) as store:
        assert await store.ledger_ids() == sorted(ENTRIES)
        for number, count in ENTRIES.items():
            ledger_id = LedgerId(number)
            ids = [EntryId(entry_id) for entry_id in range(count + 1)]
            *found, following = (await store.read(ledger_id, ids)).results
            assert following.status is Status.NO_ENTRY
            for entry_id, result in enumerate(found):
                assert result.status is Status.OK
                assert result.packet.endswith(numbered_payload(number, entry_id, 1 + (number * 7 + entry_id) % 40))
            assert (await store.ledger(ledger_id)).is_fenced == (ledger_id == FENCED)


async def test_a_newer_release_serves_what_an_earlier_one_stored(home: Path) -> None:
    await assert_complete(home)
    await assert_complete(home)  # what the first start moved from the journal is stored in the format of this release


async def test_a_newer_release_changes_the_directories_of_an_earlier_one(home: Path) -> None:
    key, unfenced = master_key(b""), LedgerId(5)
    async with store_in(home) as store:
        for ledger_id, given, expected in (
            (FENCED, key, Status.FENCED),
            (unfenced, b"another", Status.UNAUTHORIZED),
            (unfenced, key, Status.OK),
        ):
            batch = AddBatch(ledger_id, given, [raw_entry(ledger_id, ENTRIES[ledger_id])])
            assert (await store.add(batch)).status is expected
        await store.checkpoint()
        await store.abort()
    async with store_in(home) as store:
        [added] = (await store.read(unfenced, [EntryId(ENTRIES[unfenced])])).results
        assert added.status is Status.OK


async def test_the_index_of_an_earlier_release_is_rebuilt(home: Path) -> None:
    async with store_in(home):
        pass  # the journal is moved to the entry logs
    lose_index(home)
    found = await again(home)
    assert (found.entries, found.finding_count) == (sum(ENTRIES.values()), 0)
