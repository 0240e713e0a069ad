"""A cluster on this machine is refused on a disk without room, before any process starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookie.embedded.cluster import NEEDED_BYTES, EmbeddedCluster, NoSpaceError


async def test_a_disk_without_room_is_named_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=NEEDED_BYTES - 1))
    place = tmp_path / "new" / "cluster"
    with pytest.raises(NoSpaceError) as refused:
        await EmbeddedCluster.start(place, bookies=1)
    assert str(place) in str(refused.value)
    assert list(tmp_path.iterdir()) == []
