"""The errors that a bookie process reports at its end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from bookie.metadata.bookies.registration import DisksReplacedError
from bookie.model.exit_codes import ExitCode
from bookie.server import main
from bookie.server.settings import BookieSettings
from bookie.storage.port import DiskError


async def test_the_first_error_is_reported_even_if_the_disks_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def failing_start(settings: BookieSettings, stack: AsyncExitStack) -> NoReturn:
        stack.push_async_callback(asyncio.Event().wait)
        raise DiskError("cannot append to journal: Input/output error")

    def exit_now(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(main, "start_bookie", failing_start)
    monkeypatch.setattr(main, "_exit_now", exit_now)
    monkeypatch.setattr(main, "DISK_SILENCE_S_MAX", 0.001)
    settings = BookieSettings("zk+hierarchical://localhost/ledgers", str(tmp_path / "j"), str(tmp_path / "l"))
    with pytest.raises(SystemExit) as ended:
        await main.run_bookie(settings)
    assert ended.value.code == ExitCode.STORAGE_FAILED
    first, second = capsys.readouterr().err.splitlines()
    assert "Input/output error" in first
    assert "has not been closed" in second


async def test_a_process_whose_disks_were_replaced_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced = asyncio.get_running_loop().create_future()
    stops: list[float] = []

    async def stop(deadline_s: float) -> None:
        stops.append(deadline_s)

    async def start(settings: BookieSettings, stack: AsyncExitStack) -> SimpleNamespace:
        asyncio.get_running_loop().call_soon(replaced.set_result, DisksReplacedError("other disks"))
        storage = SimpleNamespace(fatal=asyncio.get_running_loop().create_future())
        return SimpleNamespace(storage=storage, keeper=SimpleNamespace(replaced=replaced), stop=stop)

    monkeypatch.setattr(main, "start_bookie", start)
    settings = BookieSettings("zk+hierarchical://localhost/ledgers", str(tmp_path / "j"), str(tmp_path / "l"))
    assert await main.run_bookie(settings) == ExitCode.CONFIGURATION
    assert stops == [settings.drain_deadline_s]
    assert capsys.readouterr().err == "bookie: other disks\n"
