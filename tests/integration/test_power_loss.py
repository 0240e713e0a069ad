"""A store loses the page cache of a real file system, but no acknowledged entry, because all of them were synced."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest

from bookie.model.errors import FatalError
from tests.integration.power_cut import FragileDisk, fragile_disk
from tests.integration.test_storage_kill9 import CHILD, Layout, check

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.needs("loop")]

RUNS_OF_CHILD = 12
UNSYNCED = (
    "import os, runpy, sys; os.fsync = os.fdatasync = lambda descriptor: None; "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a program whose file syncs have no effect."""


def run_until_power_loss(
    disk: FragileDisk, command: list[str], life: int, count: int, layout: Layout = (1, 1)
) -> list[list[str]]:
    """Start the child, cut the power after ``count`` acknowledgements, and return these acknowledgements.

    Later acknowledgements of the child do not count: without power it would not run. During its shutdown, ext4 may
    report success for a sync that is not durable.
    """
    words = [*command, str(CHILD), str(disk.root), *map(str, (life, *layout))]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = []
    try:
        for _ in range(count):
            line = child.stdout.readline()
            assert line, f"the child ended by itself with {child.wait()}"
            lines.append(line)
    finally:
        disk.cut_power()
        child.kill()
    child.stdout.close()
    child.wait()
    disk.power_on()
    return [line.split() for line in lines]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (2, 2)])
def test_nothing_acknowledged_is_lost_with_the_page_cache(tmp_path: Path, layout: Layout) -> None:
    rng, acknowledged = random.Random(3), list[list[str]]()
    with fragile_disk(tmp_path) as disk:
        for life in range(RUNS_OF_CHILD):
            found = run_until_power_loss(disk, [sys.executable], life, rng.randint(1, 1500), layout)
            acknowledged += found
            asyncio.run(check(disk.root, acknowledged if life == RUNS_OF_CHILD - 1 else found, layout))
    assert {words[0] for words in acknowledged} == {"added", "fenced"}


def test_the_loss_of_the_page_cache_shows_a_store_that_does_not_sync(tmp_path: Path) -> None:
    with fragile_disk(tmp_path) as disk:
        acknowledged = run_until_power_loss(disk, [sys.executable, "-c", UNSYNCED], 0, 300)
        with pytest.raises((AssertionError, FatalError)):
            asyncio.run(check(disk.root, acknowledged, (1, 1)))
