"""Taking a bookie out as in `docs/taking-a-bookie-out.md`, with real processes: drained, stopped, decommissioned."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import ConnectedBookKeeper
from bookie.client.writer.writer import LedgerWriter
from bookie.embedded.process import ManagedProcess
from bookie.metadata.bookies.cookies import CookieStore
from bookie.metadata.bookies.drains import Drains
from bookie.model.ids import BookieId, LedgerId
from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.clusters import connected, start_cluster
from tests.integration.command_process import CommandProcess
from tests.integration.commands import answer, bkheal
from tests.worlds.entries import numbered_payload

pytestmark = pytest.mark.integration

LEDGERS = 12
ENTRIES = 30


def payload(ledger: int, entry: int) -> bytes:
    return numbered_payload(ledger, entry, 1 + entry)


async def write(client: ConnectedBookKeeper) -> list[LedgerId]:
    ids = []
    for index in range(LEDGERS):
        options = LedgerOptions(*((3, 2, 2), (1, 1, 1), (3, 3, 2))[index % 3])
        async with await client.create_ledger(options) as writer:
            for entry in range(ENTRIES):
                await writer.submit(payload(index, entry))
        ids.append(writer.ledger_id)
    return ids


async def open_ledger_on(client: ConnectedBookKeeper, bookie: BookieId) -> LedgerWriter:
    """Return the writer of an open ledger with this bookie in its ensemble."""
    async with asyncio.timeout(STATE_S):
        while True:
            writer = await client.create_ledger(LedgerOptions(4, 2, 2))
            if bookie in (await client.ports.ledgers.read(writer.ledger_id)).metadata.members():
                return writer
            await writer.close()


async def read_all(client: ConnectedBookKeeper, ids: list[LedgerId]) -> list[list[bytes]]:
    return [[entry.payload async for entry in (await client.open_ledger(ledger_id)).read_all()] for ledger_id in ids]


async def wait_gone(client: ConnectedBookKeeper, bookie: BookieId) -> None:
    async with asyncio.timeout(STATE_S):
        seen = await client.ports.registrations.list()
        while bookie in seen.registered:
            seen = await client.ports.registrations.wait_changed(seen)


async def wait_read_only(client: ConnectedBookKeeper, bookie: BookieId, *, is_read_only: bool) -> None:
    async with asyncio.timeout(STATE_S):
        seen = await client.ports.registrations.list()
        while (bookie in seen.read_only) is not is_read_only:
            seen = await client.ports.registrations.wait_changed(seen)


def replicate_once(uri: str, directory: Path) -> ManagedProcess:
    command = [sys.executable, "-m", "replicator", "--metadata-uri", uri, "--once"]
    return ManagedProcess.start("replicator", command, log_path=directory / "r.log")


async def test_a_drained_bookie_is_stopped_and_decommissioned_and_every_entry_stays_readable(
    command_process: CommandProcess, tmp_path: Path
) -> None:
    async with (
        await start_cluster(tmp_path, 5) as cluster,
        await connected(cluster) as client,
    ):
        uri = cluster.metadata_uri

        async def asked(*arguments: str, code: int = 0) -> dict[str, Any]:
            """Return the answer of ``bkheal``, run in one process for all commands."""
            return answer(await command_process.run(uri, *arguments, "--output", "json"), code)

        ids = await write(client)
        once = replicate_once(uri, tmp_path)  # repairs what a writer marked because a bookie was slow
        assert await once.wait(PROGRAM_S) == 0, once.log_tail()
        expected = [[payload(index, entry) for entry in range(ENTRIES)] for index in range(LEDGERS)]
        single = await client.ports.ledgers.read(ids[1])
        leaving = next(b for b in cluster.bookies if b.bookie_id in single.metadata.members())
        name = leaving.bookie_id
        still_open = await open_ledger_on(client, name)
        await still_open.append(b"before")

        verdict = await bkheal(uri, "ok-to-stop", name, code=1)
        assert ids[1] in [risk["ledger_id"] for risk in verdict["worst"]]
        assert "running" in (await bkheal(uri, "decommission", name, "--yes", code=1))["error"]
        assert "drain start" in (await bkheal(uri, "recover", name, "--yes", code=1))["error"]
        planned = await bkheal(uri, "drain", "start", name, "--dry-run")
        assert planned["ledgers"] > 0
        assert await client.ports.tasks.list() == []

        begun = await asked("drain", "start", name, "--yes")
        assert begun["ledgers"] == planned["ledgers"]
        assert await bkheal(uri, "drain", "status", name, code=1)
        for entry in range(4):  # the bookie stores one of them, at each position of the ensemble of four
            await still_open.append(b"after %d" % entry)  # the writer replaces the bookie and continues
        replicator = ManagedProcess.start(
            "replicator", [sys.executable, "-m", "replicator", "--metadata-uri", uri], log_path=tmp_path / "r.log"
        )
        async with replicator:
            status = await asked("drain", "status", name, "--wait", "--timeout", str(STATE_S))
        assert status["bookies"][0]["state"] == "read_only"
        assert not (await client.ports.ledgers.read(still_open.ledger_id)).metadata.is_closed
        await still_open.close()
        assert (await asked("ok-to-stop", name))["ok"]
        assert await client.ports.tasks.list() == []

        await leaving.stop()
        await wait_gone(client, name)
        assert (await asked("decommission", name, "--dry-run"))["bookies"][0]["cookie"]
        done = await asked("decommission", name, "--yes")
        assert done["bookies"] == [{"bookie_id": name, "cookie": True, "drain": True, "noted_down": False}]
        assert await CookieStore(client.store, client.cluster).read(name) is None
        assert await Drains(client.store, client.cluster.root).read() == {}
        assert not (await asked("decommission", name, "--yes"))["bookies"][0]["cookie"]

        assert await read_all(client, ids) == expected
        assert await read_all(client, [still_open.ledger_id]) == [
            [b"before", *(b"after %d" % entry for entry in range(4))]
        ]
        for ledger_id in [*ids, still_open.ledger_id]:
            assert name not in (await client.ports.ledgers.read(ledger_id)).metadata.members()


async def test_lost_bookies_are_recovered_and_parked_tasks_are_retried(
    command_process: CommandProcess, tmp_path: Path
) -> None:
    async with (
        await start_cluster(tmp_path, 3) as cluster,
        await connected(cluster) as client,
    ):
        uri = cluster.metadata_uri

        async def asked(*arguments: str, code: int = 0) -> dict[str, Any]:
            """Return the answer of ``bkheal``, run in one process for all commands."""
            return answer(await command_process.run(uri, *arguments, "--output", "json"), code)

        async with await client.create_ledger(LedgerOptions(3, 3, 2)) as writer:
            await writer.append(b"one")
        lost, there = cluster.bookies[0], cluster.bookies[1].bookie_id
        assert "too few bookies" in (await asked("drain", "start", there, "--yes", code=1))["error"]
        await asked("drain", "start", there, "--yes", "--force")
        assert (await asked("drain", "start", there, "--yes", "--force"))["ledgers"] == 1
        await wait_read_only(client, there, is_read_only=True)
        assert (await bkheal(uri, "drain", "stop", there, "--dry-run"))["stopped"] == [there]
        assert (await asked("drain", "stop", there, "--yes"))["stopped"] == [there]
        await asked("drain", "stop", there, "--yes", code=1)
        await wait_read_only(client, there, is_read_only=False)
        once = replicate_once(uri, tmp_path)
        assert await once.wait(PROGRAM_S) == 0, once.log_tail()
        assert await client.ports.tasks.list() == []  # all marks were withdrawn
        before = await bkheal(uri, "recovery", "delay", "3600")
        assert (before["before_seconds"], before["lost_bookie_delay_seconds"]) == (0, 3600)
        assert (await bkheal(uri, "recovery", "status"))["lost_bookie_delay_seconds"] == 3600
        await lost.stop()
        await wait_gone(client, lost.bookie_id)
        assert (await asked("recover", lost.bookie_id, "--dry-run"))["ledgers"] == 1
        assert await client.ports.tasks.list() == []
        assert (await bkheal(uri, "recovery", "disable", "--dry-run"))["enabled"] is False
        assert not await client.ports.tasks.switches.is_disabled()
        assert (await asked("recover", lost.bookie_id, "--yes"))["fragments"] == 1
        assert [task.missing for task in await client.ports.tasks.list()] == [(lost.bookie_id,)]
        once = replicate_once(uri, tmp_path)
        assert await once.wait(PROGRAM_S) == 0, once.log_tail()
        (parked,) = (await bkheal(uri, "dead-letters", "list"))["items"]
        assert (parked["ledger_id"], parked["reason"]) == (writer.ledger_id, "no_candidate_bookie")
        assert (await bkheal(uri, "dead-letters", "show", str(writer.ledger_id)))["advice"]
        assert (await bkheal(uri, "dead-letters", "retry", "--all", "--dry-run"))["ledgers"] == [writer.ledger_id]
        assert await client.parked.get(writer.ledger_id) is not None
        await asked("dead-letters", "retry", "--reason", "no_live_copy", "--yes")
        assert await client.parked.get(writer.ledger_id) is not None
        await asked("dead-letters", "retry", str(writer.ledger_id), "--yes")
        assert await client.parked.get(writer.ledger_id) is None
        await asked("decommission", lost.bookie_id, "--yes", code=1)
        await asked("ok-to-stop", "no-such:1", code=1)
