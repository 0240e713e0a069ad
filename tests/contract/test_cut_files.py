"""Every file of a bookie is cut at its last bytes, and has bits flipped: outcomes as docs/failure-model.md says.

Whatever is damaged, a store serves right bytes or says that it cannot; or it refuses to open, twice in the same way,
and the command that its message names lets it open again with nothing denied that was acknowledged.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from bookie.model.errors import FatalError
from bookie.model.ids import EntryId
from bookie.runtime.clock import SystemClock
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE
from bookie.server.joining.rebuilt import rebuild_index
from bookie.server.joining.salvaged import salvage_journal
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.contract.test_rebuilt_index import store_in
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, L3, add, entry

ACKNOWLEDGED: Final = {L1: 10, L2: 2, L3: 1}
LAST: Final = {(L1, 8), (L1, 9)}
"""The last batch, which may be taken for a torn tail for a second after it was written (J12)."""
UNREADABLE: Final = (Status.CORRUPT, Status.IO_ERROR, Status.LIMBO)
IGNORED: Final = ("LOCK", "LOG", ".bkheal.lock", VERSION_FILE, INCARNATION_FILE)
"""Locks, the text that RocksDB writes for people, and the files of ``test_damaged_identity``."""
REMEDIES_MAX: Final = 3

Damage = Callable[[bytes], bytes]


async def filled(killed: Path) -> None:
    """Entries in two entry logs, in tables and in the log of the index, and in the journal alone; then a kill."""
    home = killed.with_name("running")
    async with store_in(home) as store:
        await add(store, L1, *range(4))
        await add(store, L2, 0, 1)
        assert (await store.fence(L2, KEY)).status is Status.OK
    async with store_in(home) as store:
        await add(store, L1, 4, 5)
        await store.checkpoint()
        await add(store, L1, 6, 7)
        await add(store, L3, 0)
        await add(store, L1, 8, 9)
        shutil.copytree(home, killed)  # now, because RocksDB empties its log when it is closed
    for name in ("journal", "ledgers"):
        (killed / name / CURRENT / VERSION_FILE).write_text("cookie")
        (killed / name / CURRENT / INCARNATION_FILE).write_text("before")


async def served(store: LedgerStorage, *, may_lack_last: bool) -> str:
    """Check every answer of an open store; ``damaged`` if it cannot serve something."""
    worst = "whole"
    for ledger_id, count in ACKNOWLEDGED.items():
        for entry_id in range(count):
            reply = await store.read(ledger_id, [EntryId(entry_id)])
            status = reply.results[0].status if reply.status is Status.OK else reply.status
            if status is Status.OK:
                assert reply.results[0].packet == entry(ledger_id, entry_id)
            elif may_lack_last and (ledger_id, entry_id) in LAST:
                assert status in (*UNREADABLE, Status.NO_ENTRY)
            else:
                assert status in UNREADABLE, f"{ledger_id}/{entry_id} is {status}"
                worst = "damaged"
    added = await store.add(AddBatch(L2, KEY, [entry(L2, 100)]))
    assert added.status in (Status.FENCED, Status.IO_ERROR)
    return worst


async def started(home: Path, *, is_mended: bool) -> tuple[str, str]:
    """What is served after a start, and an empty text; or an empty text, and why the start is refused."""
    try:
        async with store_in(home) as store:
            if is_mended:
                await store.set_limbo(list(ACKNOWLEDGED))  # as the start does with what the metadata names
            return await served(store, may_lack_last=not is_mended), ""
    except FatalError as error:
        return "", str(error)


async def outcome(home: Path) -> str:
    """What a start makes of the directories, up to the end of the remedies that it names."""
    found, refusal = await started(home, is_mended=False)
    remedies: list[str] = []
    while not found and len(remedies) < REMEDIES_MAX:
        assert await started(home, is_mended=bool(remedies)) == ("", refusal), "the same at each start"
        remedies.append(await mended(home, refusal))
        found, refusal = await started(home, is_mended=True)
    assert found, f"still refused after {remedies}: {refusal}"
    return " ".join(["refused,", *remedies]) if remedies else found


async def mended(home: Path, refusal: str) -> str:
    """Run the command that a refusal names."""
    journal, ledgers, clock, rng = home / "journal", [home / "ledgers"], SystemClock(), random.Random(1)
    if "salvage-journal" in refusal:
        try:
            await salvage_journal(journal, ledgers, clock, rng)
            return "salvage-journal"
        except FatalError as error:
            refusal = str(error)
    assert "rebuild-index" in refusal, refusal
    await rebuild_index(journal, ledgers, clock, rng, may_replace=True)
    return "rebuild-index"


def cut(left: int, data: bytes) -> bytes:
    return data[:left]


def flip(bit: int, data: bytes) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def cuts(size: int, tail: int) -> Iterator[tuple[str, Damage]]:
    for left in range(max(size - tail, 0), size):
        yield f"cut at {left}", partial(cut, left)


def flips(size: int, count: int, rng: random.Random) -> Iterator[tuple[str, Damage]]:
    for bit in rng.sample(range(8 * size), min(count, 8 * size)):
        yield f"bit {bit}", partial(flip, bit)


def files(home: Path) -> list[Path]:
    """The files of a bookie, relative to ``home``."""
    found = (path for path in home.rglob("*") if path.is_file() and path.name not in IGNORED)
    return sorted(path.relative_to(home) for path in found if not path.name.startswith("LOG."))


def kind_of(path: Path) -> str:
    """The row of the table in docs/failure-model.md."""
    if path.suffix == ".journal":
        return "journal"
    if path.name.startswith("mark-"):
        return "mark"
    return "entry log" if path.parent.name == "entries" else "index"


EXPECTED: Final = {
    "journal": {"whole", "refused, salvage-journal"},
    "mark": {"whole"},
    "entry log": {"whole", "damaged"},
    "index": {
        "whole",
        "damaged",
        "refused, salvage-journal",
        "refused, rebuild-index",
        "refused, salvage-journal rebuild-index",
        "refused, rebuild-index salvage-journal",
    },
}


async def check(home: Path, path: Path, name: str, damage: Damage) -> tuple[str, str]:
    """Damage one file of a copy of the directories, and check the outcome; returns the kind of file and the outcome."""
    now, kind = home / "now", kind_of(path)
    shutil.rmtree(now, ignore_errors=True)
    shutil.copytree(home / "filled", now)
    (now / path).write_bytes(damage((now / path).read_bytes()))
    try:
        result = await outcome(now)
    except Exception as error:
        error.add_note(f"{path} {name}")
        raise
    assert result in EXPECTED[kind], f"{path} {name}: {result}"
    return kind, result


async def test_a_cut_or_a_flip_in_each_kind_of_file_ends_as_documented(tmp_path: Path) -> None:
    await filled(tmp_path / "filled")
    last = {kind_of(path): path for path in files(tmp_path / "filled") if path.suffix != ".json"}
    rng = random.Random(5)
    found = set()
    for kind, path in last.items():
        size = (tmp_path / "filled" / path).stat().st_size
        damage = next(cuts(size, 1)) if kind in ("journal", "index") else next(flips(size, 1, rng))
        found.add(await check(tmp_path, path, *damage))
    assert {kind for kind, _ in found} == set(EXPECTED)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "tail", "flip_count"), [("journal", 10, 10), ("mark", 5, 5), ("entry log", 10, 10), ("index", 40, 30)]
)
async def test_cuts_of_the_last_bytes_and_flips_end_as_documented(
    tmp_path: Path, kind: str, tail: int, flip_count: int
) -> None:
    """The journal, its marks and the entry logs are cut at every byte by the unit tests, on the twins of the disks."""
    await filled(tmp_path / "filled")
    rng = random.Random(5)
    found: Counter[tuple[str, str]] = Counter()
    for path in files(tmp_path / "filled"):
        if kind_of(path) == kind:
            size = (tmp_path / "filled" / path).stat().st_size
            for name, damage in [*cuts(size, tail), *flips(size, flip_count, rng)]:
                found[await check(tmp_path, path, name, damage)] += 1
    print(dict(found))
    assert sum(found.values()) >= tail + flip_count
