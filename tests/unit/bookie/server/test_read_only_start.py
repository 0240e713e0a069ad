"""A bookie knows whether it is read-only before it serves: writers of the process before it continue at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bookie.metadata.bookies.drains import Drain, Drains
from bookie.metadata.cluster import NotAClusterError, format_cluster
from bookie.metadata.store.memory import MemoryCell, MemoryStore
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from bookie.server.grpc.server import GrpcServer
from bookie.server.main import run_bookie
from bookie.server.measured import MeasuredService
from bookie.server.settings import BookieSettings
from bookie.server.upkeep.operator_read_only import READ_ONLY_FILE
from bookie.wire.requests import Info

ROOT = "/ledgers"
BOOKIE = BookieId("b")


@pytest.mark.parametrize("reason", ["", "request", "drain", "low disk"])
async def test_a_bookie_that_is_read_only_is_so_from_its_first_answer(
    reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cell = MemoryCell()
    first_states: list[bool] = []
    await format_cluster(MemoryStore(cell), ROOT, rng=random.Random(0))

    async def connect(hosts: str, **settings: Any) -> MemoryStore:
        return MemoryStore(cell)

    async def start(self: GrpcServer, service: MeasuredService, administration: Any) -> None:
        answer = await service.answer("", Info())
        assert answer.info is not None
        first_states.append(answer.info.is_read_only)
        raise NotAClusterError("that is enough")

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    monkeypatch.setattr(GrpcServer, "start", start)
    settings = BookieSettings(
        f"zk://127.0.0.1:1{ROOT}",
        str(tmp_path / "j"),
        str(tmp_path / "l"),
        bookie_id=BOOKIE,
        port=0,
        read_only_below_bytes=1 << 60 if reason == "low disk" else 0,
    )
    if reason == "request":
        assert await run_bookie(settings) == ExitCode.CONFIGURATION
        (tmp_path / "l" / "current" / READ_ONLY_FILE).write_bytes(b"\xff")
    if reason == "drain":
        await Drains(MemoryStore(cell), ROOT).start(Drain(BOOKIE))
    assert await run_bookie(settings) == ExitCode.CONFIGURATION
    assert first_states[-1] == bool(reason)
