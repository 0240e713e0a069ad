"""Maintenance windows: the same on the twin, the simulator's store and a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.bookies import maintenance
from bookie.metadata.bookies.maintenance import WINDOW_S_MAX, MaintenanceWindow, MaintenanceWindows, TooManyWindowsError
from bookie.metadata.port import MetadataStore
from bookie.model.ids import BookieId
from tests.contract.conftest import Backend

HOUR_MS = 3_600_000


def window(target: str, since_ms: int = 1000, until_ms: int = HOUR_MS) -> MaintenanceWindow:
    return MaintenanceWindow(target, (BookieId("bk1:3181"),), "me@host", since_ms, until_ms, note="new disks")


@pytest.fixture
def windows(store: MetadataStore, base: str) -> MaintenanceWindows:
    return MaintenanceWindows(store, base)


async def test_a_window_is_open_until_its_end_and_outlives_the_session(
    windows: MaintenanceWindows, backend: Backend, store: MetadataStore, base: str
) -> None:
    assert await windows.open_at(0) == ()
    await windows.start(window("rack:/dc1/r1"))
    await windows.start(window("bk1:3181", until_ms=2 * HOUR_MS))
    await backend.expire(store)
    other = MaintenanceWindows(await backend.open(), base)
    expected = (window("bk1:3181", until_ms=2 * HOUR_MS), window("rack:/dc1/r1"))
    assert await other.open_at(HOUR_MS - 1) == expected
    assert await other.open_at(HOUR_MS) == expected[:1]


async def test_starting_again_replaces_the_window_and_ending_it_is_idempotent(windows: MaintenanceWindows) -> None:
    await windows.start(window("bk1:3181"))
    again = window("bk1:3181", 2000, 3 * HOUR_MS)
    await windows.start(again)
    assert await windows.open_at(HOUR_MS) == (again,)
    await windows.end("bk1:3181")
    await windows.end("bk1:3181")
    assert await windows.open_at(HOUR_MS) == ()


async def test_ended_windows_are_removed_and_others_stay(windows: MaintenanceWindows, store: MetadataStore) -> None:
    for target, until_ms in (("a:1", HOUR_MS), ("b:1", 2 * HOUR_MS)):
        await windows.start(window(target, until_ms=until_ms))
    await windows.remove_ended(HOUR_MS)
    assert await store.stat(windows.path("a:1")) is None
    assert [each.target for each in await windows.open_at(HOUR_MS)] == ["b:1"]


async def test_the_number_of_windows_is_bounded(
    windows: MaintenanceWindows, backend: Backend, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "WINDOWS_MAX", 2)
    others = [MaintenanceWindows(await backend.open(), base) for _ in range(4)]
    results = await asyncio.gather(
        *(each.start(window(f"bk{number}:1")) for number, each in enumerate(others)), return_exceptions=True
    )
    assert sum(isinstance(result, TooManyWindowsError) for result in results) == 2
    await windows.start(window("late:1", since_ms=HOUR_MS, until_ms=2 * HOUR_MS))  # the others have ended by then


@pytest.mark.parametrize(
    ("since_ms", "until_ms", "now_ms", "is_open"),
    [
        (1000, 2000, 1000, True),
        (1000, 2000, 1999, True),
        (1000, 2000, 2000, False),
        (1000, 2000, -59_000, True),
        (1000, 2000, -59_001, False),
        (0, WINDOW_S_MAX * 1000, 1000, True),
        (0, WINDOW_S_MAX * 1000 + 1, 1000, False),
        (10**15, 10**15 + 1000, 1000, False),
    ],
)
def test_only_a_window_of_a_bounded_length_is_used(since_ms: int, until_ms: int, now_ms: int, is_open: bool) -> None:
    assert window("bk1:3181", since_ms, until_ms).is_open(now_ms) is is_open
