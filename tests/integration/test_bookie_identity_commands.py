"""The commands about the identity of a bookie's directories, with a real bookie and a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from bookie.metadata.bookies.cookies import CookieStore, encode_cookie
from bookie.metadata.tasks.changes import ChangeRecords
from bookie.model.exit_codes import ExitCode
from bookie.runtime.clock import SystemClock
from bookie.server.joining.directories import CURRENT, VERSION_FILE
from tests.integration.test_bookie_process import Machine, machine

__all__ = ["machine"]

pytestmark = pytest.mark.integration


async def bkheal_bookie(machine: Machine, *words: str, exit_code: ExitCode = ExitCode.OK) -> dict[str, Any]:
    places = ["--journal-dir", str(machine.home / "journal"), "--ledger-dir", str(machine.home / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", *words, *places, "--output", "json"]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, text=True)
    assert ended.returncode == exit_code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout) if ended.stdout else {"error": ended.stderr}
    return found


@pytest.mark.long
async def test_the_cookies_of_a_running_bookie_are_shown_and_compared(machine: Machine) -> None:
    _, bookie = await machine.ready(port=0, bookie_id="named")
    shown = await bkheal_bookie(machine, "cookie", "show")
    assert [row["bookie_id"] for row in shown["items"]] == [bookie, bookie]
    where = ("--metadata-uri", f"zk+hierarchical://{machine.hosts}{machine.root}")
    checked = await bkheal_bookie(machine, "cookie", "verify", *where)
    assert (checked["registered"], checked["mismatches"]) == (True, [])
    stored = await CookieStore(machine.store, machine.cluster).read(bookie)
    assert stored is not None
    version_file = machine.home / "journal" / CURRENT / VERSION_FILE
    version_file.write_bytes(encode_cookie(replace(stored.cookie, ledger_dirs=("/elsewhere",))))
    checked = await bkheal_bookie(machine, "cookie", "verify", *where, exit_code=ExitCode.FAILED)
    assert [(row["field"], row["found"]) for row in checked["mismatches"]] == [
        ("ledger_dirs", "/elsewhere"),
        ("index_dirs", "/elsewhere"),
    ]
    await CookieStore(machine.store, machine.cluster).delete(bookie, stored.version)
    checked = await bkheal_bookie(machine, "cookie", "verify", *where, exit_code=ExitCode.FAILED)
    assert checked["registered"] is False


async def test_directories_are_formatted_only_after_the_bookie_is_stopped_and_its_loss_confirmed(
    machine: Machine,
) -> None:
    where = ("--metadata-uri", f"zk+hierarchical://{machine.hosts}{machine.root}")
    process, bookie = await machine.ready(port=0, bookie_id="erased")
    refused = await bkheal_bookie(machine, "format", *where, "--yes", exit_code=ExitCode.FAILED)
    assert "is in use" in refused["error"]
    await process.stop()
    refused = await bkheal_bookie(machine, "format", *where, "--yes", exit_code=ExitCode.FAILED)
    assert "--delete-cookie" in refused["error"]
    erased = await bkheal_bookie(machine, "format", *where, "--yes", "--delete-cookie")
    assert (erased["bookie_id"], erased["cookie_deleted"], erased["lost"]["problem"]) == (bookie, True, None)
    assert await CookieStore(machine.store, machine.cluster).read(bookie) is None
    (change,) = await ChangeRecords(machine.store, machine.cluster.root, SystemClock()).newest(9)
    assert (change.via, change.action) == ("command", "bookie format")
    assert bookie in change.detail
    await machine.ready(port=0, bookie_id="erased")
