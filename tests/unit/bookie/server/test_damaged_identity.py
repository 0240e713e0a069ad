"""The identity files of a bookie are cut at any byte and changed at any bit: the same start, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bookie.metadata.bookies.cookies import encode_cookie
from bookie.server.joining.directories import (
    INCARNATION_FILE,
    LIMBO_FILE,
    REBUILT_FILE,
    VERSION_FILE,
    DirectoryRole,
    LocalDirectory,
    read_directory,
)
from bookie.server.joining.identity import Decision, Evidence, IdentityError, KnownBookie, NewIncarnation, decide
from bookie.storage.disks.memory import MemoryDisk
from tests.unit.bookie.server.test_bookie_identity import EMPTY_JOURNAL, EMPTY_LEDGERS, NEW, OLD, OURS

Files = dict[str, bytes]

RUNNING: Files = {VERSION_FILE: encode_cookie(OURS), INCARNATION_FILE: NEW.encode()}
REBUILT: Files = {**RUNNING, LIMBO_FILE: NEW.encode(), REBUILT_FILE: OLD.encode()}
STATES: dict[str, tuple[Files, list[str], Decision]] = {
    "running": (RUNNING, [OLD, NEW], KnownBookie(NEW)),
    "rebuilt": (REBUILT, [OLD], NewIncarnation(NEW)),
    "rebuilt and recorded": (REBUILT, [OLD, NEW], NewIncarnation(NEW)),
}


def damaged(data: bytes, step: int) -> Iterator[bytes]:
    for size in range(0, len(data), step):
        yield data[:size]
    for bit in range(0, 8 * len(data), step):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


async def directory(empty: LocalDirectory, files: Files) -> LocalDirectory:
    disk = MemoryDisk()
    for name, content in files.items():
        await disk.replace(name, content)
    return replace(await read_directory(empty.role, empty.path, disk), has_data=True)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("role", list(DirectoryRole))
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long), 11])
async def test_a_damaged_identity_file_is_refused_or_changes_nothing(
    state: str, role: DirectoryRole, step: int
) -> None:
    files, history, expected = STATES[state]
    whole = [await directory(empty, files) for empty in (EMPTY_JOURNAL, EMPTY_LEDGERS)]
    assert decide(Evidence(OURS, OURS, history, whole)) == expected
    outcomes: Counter[str] = Counter()
    for name, content in files.items():
        for data in damaged(content, step):
            changed = [await directory(each, {**files, name: data}) if each.role is role else each for each in whole]
            try:
                decision = decide(Evidence(OURS, OURS, history, changed))
            except IdentityError:
                outcomes["refused"] += 1
                continue
            assert decision == expected, f"{name} {data!r}"
            outcomes["same"] += 1
    assert outcomes["refused"] > 10 * outcomes["same"] or state != "running"
