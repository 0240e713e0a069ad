"""Scenario 64 on real files and RocksDB: a killed process loses no acknowledged entry."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bookie.model.ids import EntryId, LedgerId
from bookie.storage.store import LedgerStorage
from bookie.wire.port import AddBatch, Status

pytestmark = pytest.mark.integration

CHILD = Path(__file__).with_name("storage_kill9_child.py")
RUNS_OF_CHILD = 3
Layout = tuple[int, int]
"""The number of journals and the number of ledger directories."""
LAYOUTS = [(1, 1), pytest.param((2, 1), marks=pytest.mark.long), (2, 2)]
ACKNOWLEDGEMENTS = (300, 1500, 700)
"""Numbers of acknowledgements before the kill: several megabytes, and so several flushes and journal files."""


def child_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("storage_kill9_child", CHILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_killed_child(root: Path, life: int, layout: Layout) -> list[list[str]]:
    """Start the child, kill it after a number of acknowledgements, and return its whole output."""
    command = [sys.executable, str(CHILD), str(root), *map(str, (life, *layout))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = []
    try:
        for _ in range(ACKNOWLEDGEMENTS[life]):
            line = child.stdout.readline()
            assert line, f"the child ended by itself with {child.wait()}"
            lines.append(line)
    finally:
        child.kill()
    rest = child.stdout.read()
    child.stdout.close()
    child.wait()
    lines += rest.splitlines(keepends=True)
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_acknowledged_add_and_fence_survives_kill_9(tmp_path: Path, layout: Layout) -> None:
    acknowledged = [words for life in range(RUNS_OF_CHILD) for words in run_killed_child(tmp_path, life, layout)]
    assert {words[0] for words in acknowledged} == {"added", "fenced"}
    journals, ledger_dirs = layout
    assert len(list(tmp_path.glob("journal*/journal"))) == journals
    assert len({path.parent for path in tmp_path.glob("ledgers*/entries/*.log")}) == ledger_dirs
    asyncio.run(check(tmp_path, acknowledged, layout))


async def check(root: Path, acknowledged: list[list[str]], layout: Layout) -> None:
    child = child_module()
    async with child.opened_store(root, *layout) as store:
        for kind, *numbers in acknowledged:
            if kind == "added":
                await check_added(store, child, LedgerId(int(numbers[0])), int(numbers[1]))
            else:
                await check_fenced(store, child, LedgerId(int(numbers[0])))


async def check_added(store: LedgerStorage, child: ModuleType, ledger_id: LedgerId, first: int) -> None:
    wanted = [EntryId(number) for number in range(first, first + child.ENTRIES)]
    reply = await store.read(ledger_id, wanted)
    assert [result.packet for result in reply.results] == [child.entry(ledger_id, number) for number in wanted]


async def check_fenced(store: LedgerStorage, child: ModuleType, ledger_id: LedgerId) -> None:
    reply = await store.add(AddBatch(ledger_id, b"key of %d" % ledger_id, [child.entry(ledger_id, 0)]))
    assert reply.status is Status.FENCED
