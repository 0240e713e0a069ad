"""Every file of a bookie with its last bytes cut off or with bits flipped: the outcomes are in docs/failure-model.md.

After any damage, a store serves the right bytes or reports an error; or it refuses to open, each time for the same
reason. After the command named in the message it opens again, and denies no acknowledged entry.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from bookie.model.errors import FatalError
from bookie.model.ids import EntryId, LedgerId
from bookie.runtime.clock import SystemClock
from bookie.server.joining.directories import CURRENT, INCARNATION_FILE, VERSION_FILE
from bookie.server.joining.rebuilt import rebuild_index
from bookie.server.joining.salvaged import salvage_journal
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status
from tests.contract.test_rebuilt_index import COOKIE, store_in
from tests.unit.bookie.storage.test_rebuilding import KEY, L1, L2, L3, L4, add
from tests.worlds.entries import raw_entry

Held = Mapping[LedgerId, int]
"""The number of acknowledged entries of each ledger."""
ACKNOWLEDGED: Final = {L1: 10, L2: 2, L3: 1}
WIDE: Final = {**ACKNOWLEDGED, L4: 600}
"""The keys of these entries fill several pages of a table of the index."""
STEP: Final = 20
"""Maximum number of entries per read."""
LAST: Final = {(L1, 8), (L1, 9)}
"""The last batch, which may count as a torn tail for a second after it was written (J12)."""
UNREADABLE: Final = (Status.CORRUPT, Status.IO_ERROR, Status.LIMBO)
IGNORED: Final = ("LOCK", "LOG", ".bkheal.lock", VERSION_FILE, INCARNATION_FILE)
"""Locks, RocksDB's text log, and the files that ``test_damaged_identity`` covers."""
REMEDIES_MAX: Final = 3
MEMORY: Final = Path("/dev/shm")
LENGTH_AT, TYPE_AT, HEADER_BYTES = 4, 6, 7
"""Offsets and size of a record's header in a log of the index: see ``bookie.storage.disks.rocks_logs``."""

Damage = Callable[[bytes], bytes]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such a file system: these tests need no durable files."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(prefix="bkheal-test-", dir=MEMORY) as name:
        yield Path(name)


async def filled(killed: Path, held: Held = ACKNOWLEDGED) -> None:
    """Store entries in every kind of file, and copy the directories as after a kill.

    They are in two entry logs, in tables and the log of the index, and, for the last ones, only in the journal.
    """
    home = killed.with_name("running")
    async with store_in(home) as store:
        if L4 in held:
            await add(store, L4, *range(held[L4]))
        await add(store, L1, *range(4))
        await add(store, L2, 0, 1)
        assert (await store.fence(L2, KEY)).status is Status.OK
    async with store_in(home) as store:
        await add(store, L1, 4, 5)
        await store.checkpoint()
        await add(store, L1, 6, 7)
        await add(store, L3, 0)
        await add(store, L1, 8, 9)
        shutil.copytree(home, killed)  # before the close, because RocksDB empties its log then
    for name in ("journal", "ledgers"):
        (killed / name / CURRENT / VERSION_FILE).write_bytes(COOKIE)
        (killed / name / CURRENT / INCARNATION_FILE).write_text("before")


async def served(store: LedgerStorage, held: Held, *, may_lack_last: bool) -> str:
    """Check every answer of an open store; return ``damaged`` if it cannot serve an entry, else ``whole``."""
    worst = "whole"
    for ledger_id, count in held.items():
        for first in range(0, count, STEP):
            entry_ids = [EntryId(entry_id) for entry_id in range(first, min(first + STEP, count))]
            reply = await store.read(ledger_id, entry_ids)
            for place, entry_id in enumerate(entry_ids):
                status = reply.results[place].status if reply.status is Status.OK else reply.status
                if status is Status.OK:
                    assert reply.results[place].packet == raw_entry(ledger_id, entry_id)
                elif may_lack_last and (ledger_id, entry_id) in LAST:
                    assert status in (*UNREADABLE, Status.NO_ENTRY)
                else:
                    assert status in UNREADABLE, f"{ledger_id}/{entry_id} is {status}"
                    worst = "damaged"
    added = await store.add(AddBatch(L2, KEY, [raw_entry(L2, 100)]))
    assert added.status in (Status.FENCED, Status.LIMBO, Status.IO_ERROR)
    return worst


async def started(home: Path, held: Held, *, is_mended: bool) -> tuple[str, str]:
    """Return the result of ``served`` after a start and an empty text, or an empty text and the reason of a refusal."""
    try:
        async with store_in(home) as store:
            if is_mended:
                await store.set_limbo(list(held))  # as a start does for the ledgers in the metadata
            return await served(store, held, may_lack_last=not is_mended), ""
    except FatalError as error:
        return "", str(error)


async def outcome(home: Path, held: Held) -> str:
    """Return the outcome of starting on the directories, after all remedies named by the refusals."""
    found, refusal = await started(home, held, is_mended=False)
    remedies: list[str] = []
    while not found and len(remedies) < REMEDIES_MAX:
        assert await started(home, held, is_mended=bool(remedies)) == ("", refusal), "the refusal has changed"
        remedies.append(await repaired_by_command(home, refusal))
        found, refusal = await started(home, held, is_mended=True)
    assert found, f"still refused after {remedies}: {refusal}"
    return " ".join(["refused,", *remedies]) if remedies else found


async def repaired_by_command(home: Path, refusal: str) -> str:
    """Run the command named in a refusal."""
    journal, ledgers, clock, rng = home / "journal", [home / "ledgers"], SystemClock(), random.Random(1)
    if "salvage-journal" in refusal:
        try:
            await salvage_journal([journal], ledgers, clock, rng)
            return "salvage-journal"
        except FatalError as error:
            refusal = str(error)
    assert "rebuild-index" in refusal, refusal
    await rebuild_index([journal], ledgers, clock, rng, may_replace=True)
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
    """Return the paths of a bookie's files, relative to ``home``."""
    found = (path for path in home.rglob("*") if path.is_file() and path.name not in IGNORED)
    return sorted(path.relative_to(home) for path in found if not path.name.startswith("LOG."))


def kind_of(path: Path) -> str:
    """Return the row of a file in the table in docs/failure-model.md."""
    if path.suffix == ".journal":
        return "journal"
    if path.name.startswith("mark-"):
        return "mark"
    if path.parent.name == "entries":
        return "entry log"
    if path.suffix in (".sst", ".log"):
        return "table" if path.suffix == ".sst" else "log"
    return "manifest" if path.name.startswith(("MANIFEST", "CURRENT")) else "text"


EXPECTED: Final = {
    "journal": {"whole", "refused, salvage-journal"},
    "mark": {"whole"},
    "entry log": {"whole", "damaged"},
    "table": {"whole", "damaged", "refused, rebuild-index"},
    "log": {"refused, salvage-journal", "refused, rebuild-index"},
    "manifest": {"whole", "refused, rebuild-index"},
    "text": {"whole"},
}


async def check(home: Path, path: Path, name: str, damage: Damage, held: Held = ACKNOWLEDGED) -> tuple[str, str]:
    """Damage one file of a copy of the directories, and check the outcome; return the kind of file and the outcome."""
    now, kind = home / "now", kind_of(path)
    shutil.rmtree(now, ignore_errors=True)
    shutil.copytree(home / "filled", now)
    (now / path).write_bytes(damage((now / path).read_bytes()))
    try:
        result = await outcome(now, held)
    except Exception as error:
        error.add_note(f"{path} {name}")
        raise
    assert result in EXPECTED[kind], f"{path} {name}: {result}"
    return kind, result


async def test_a_cut_or_a_bit_flip_in_each_kind_of_file_ends_as_documented(home: Path) -> None:
    await filled(home / "filled")
    last = {kind_of(path): path for path in files(home / "filled")}
    rng = random.Random(5)
    found = set()
    for kind, path in last.items():
        size = (home / "filled" / path).stat().st_size
        damage = next(flips(size, 1, rng)) if kind in ("mark", "entry log", "text") else next(cuts(size, 1))
        found.add(await check(home, path, *damage))
    assert {kind for kind, _ in found} == set(EXPECTED)


@pytest.mark.parametrize("kind", ["log", "manifest"])
async def test_an_index_record_on_which_the_database_would_loop_forever_is_refused(home: Path, kind: str) -> None:
    """One flipped bit changes the type of a record to one that occurs only in reused logs."""
    await filled(home / "filled")
    [path] = [path for path in files(home / "filled") if kind_of(path) == kind and path.name != "CURRENT"]
    place = second_record(home / "filled" / path) + TYPE_AT
    found = await check(home, path, f"bit 2 of byte {place}", partial(flip, 8 * place + 2))
    assert found == (kind, "refused, rebuild-index")


def second_record(log: Path) -> int:
    """Return the offset of the second record of a log of the index."""
    return HEADER_BYTES + int.from_bytes(log.read_bytes()[LENGTH_AT:TYPE_AT], "little")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "tail", "flip_count", "held"),
    [
        ("journal", 10, 10, ACKNOWLEDGED),
        ("mark", 5, 5, ACKNOWLEDGED),
        ("entry log", 10, 10, ACKNOWLEDGED),
        ("table", 4096, 100, ACKNOWLEDGED),
        ("table", 100, 500, WIDE),
        ("log", 4096, 1000, ACKNOWLEDGED),
        ("manifest", 4096, 1000, ACKNOWLEDGED),
        ("text", 512, 20, ACKNOWLEDGED),
    ],
)
async def test_cuts_of_the_last_bytes_and_bit_flips_end_as_documented(
    home: Path, kind: str, tail: int, flip_count: int, held: Held
) -> None:
    """The journal, its marks and the entry logs are cut at every byte by the unit tests, on the twins of the disks.

    Logs, the manifest and the small table of the index are no longer than ``tail``: they are cut at every byte.
    """
    await filled(home / "filled", held)
    rng = random.Random(5)
    found: Counter[tuple[str, str]] = Counter()
    for path in files(home / "filled"):
        if kind_of(path) == kind:
            size = (home / "filled" / path).stat().st_size
            for name, damage in [*cuts(size, tail), *flips(size, flip_count, rng)]:
                found[await check(home, path, name, damage, held)] += 1
    print(dict(found))
    assert sum(found.values()) >= min(tail, 200) + min(flip_count, 200)
