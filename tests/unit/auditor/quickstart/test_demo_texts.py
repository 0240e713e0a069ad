"""The texts that ``bkheal demo`` prints."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from auditor.quickstart.demo import LOST_BOOKIE_DELAY_S, DemoSettings, print_addresses, wanted_or_free_port
from bookie.runtime.listening import AddressInUseError


@pytest.mark.parametrize(("keep", "end"), [(None, "/d until Ctrl-C."), (Path("/d"), "/d, and are kept.")])
def test_the_demo_prints_when_a_loss_is_repaired_and_how_long_its_data_are_kept(keep: Path | None, end: str) -> None:
    bookie = SimpleNamespace(bookie_id="b", running=SimpleNamespace(pid=1))
    cluster: Any = SimpleNamespace(
        bookies=[bookie], session_timeout_s=10.0, metadata_uri="zk://h/l", directory=Path("/d")
    )
    lines: list[str] = []
    display: Any = SimpleNamespace(line=lines.append)
    print_addresses(cluster, DemoSettings(keep=keep), "ready", display)
    assert any(
        line.startswith(f"After about {10 + LOST_BOOKIE_DELAY_S} s its ledgers are audited and repaired")
        for line in lines
    )
    assert any("`bkheal dead-letters list`" in line for line in lines), "a ledger without a copy remains"
    assert lines[-1].endswith(end)


def test_a_port_in_use_is_refused_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(AddressInUseError) as refused:
        wanted_or_free_port(other.getsockname()[1], "Spark's UI", "--ui-port")
    assert "for Spark's UI, is in use" in str(refused.value)
    assert "--ui-port" in str(refused.value)
    assert wanted_or_free_port(0, "Spark's UI") > 0
