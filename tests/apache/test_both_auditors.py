"""Apache's auditor and ours as candidates of one election: each leader finds the loss of a bookie, once."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.apache import LEDGERS_ROOT, ApacheBookie
from bookie.embedded.process import ManagedProcess
from bookie.metadata.layout import COOKIES, lost_bookie_delay_path, task_path
from bookie.metadata.runs.election import current_auditor, election_path
from bookie.metadata.runs.records import Runs
from bookie.model.ids import LedgerId
from tests.apache.conftest import OwnServers
from tests.apache.programs import bkheal
from tests.apache.waiting import until
from tests.apache.worlds import (
    QUICK,
    ApacheWorld,
    Ledger,
    check_all_nodes_known,
    check_healthy,
    connect,
    gone,
    no_work_left,
    written,
)
from tests.deadlines import PROGRAM_S, STATE_S

pytestmark = [pytest.mark.apache, pytest.mark.usefixtures("quick_spark")]

SESSION_TIMEOUT_S = 40
"""The maximum an auditor accepts; ``ApacheWorld.kill9`` ends sessions earlier."""
LONG_S = 4321
"""Much longer than any test."""


@pytest.fixture
async def client(lent: ApacheWorld) -> AsyncIterator[ConnectedBookKeeper]:
    async with await connect(lent.uri) as ours:
        yield ours


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """A stack that closes its contents at the end of a test, also after a failure."""
    async with AsyncExitStack() as held:
        yield held


@dataclass
class Auditor:
    """A ``bkheal auditor`` that runs checks only after the loss of a bookie."""

    process: ManagedProcess
    url: str = ""

    @classmethod
    def launch(cls, uri: str, directory: Path) -> Auditor:
        """Start an auditor; ``ready`` waits until it serves."""
        options = {
            "metadata-uri": uri,
            "report-dir": directory / "reports",
            "bookies-schedule": "off",
            "session-timeout-s": SESSION_TIMEOUT_S,
            "http-port": 0,
            "grpc-port": 0,
            "spark-master": "local[1]",
            "driver-memory": "512m",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "auditor.cli.main", "auditor", *words, "--no-ui-enabled"]
        return cls(ManagedProcess.start("auditor", command, log_path=directory / "log.txt"))

    async def ready(self) -> Auditor:
        """Wait until it serves."""
        self.url = (await self.process.wait_for_line(r"^auditor ready on (http://\S+) and", PROGRAM_S))[1]
        return self

    async def lost(self) -> list[str]:
        """Return the bookies that its status lists as lost."""
        return [lost["bookie_id"] for lost in (await self.status())["bookies"]["lost"]]

    async def status(self) -> Any:
        """Return its status."""

        def get() -> Any:
            with urllib.request.urlopen(f"{self.url}/api/v1/status", timeout=STATE_S) as answer:
                return json.load(answer)

        return await asyncio.to_thread(get)


async def leader(client: ConnectedBookKeeper) -> str:
    return await current_auditor(client.store, LEDGERS_ROOT)


async def candidates(client: ConnectedBookKeeper) -> int:
    return len((await client.store.children(election_path(LEDGERS_ROOT))).names)


async def all_agree_on(here: ApacheWorld, name: str) -> None:
    """Check that Apache's client, Apache's shell and our command report this leader."""
    assert (await here.java.call("auditor"))["auditor"] == name
    assert name in await here.cluster.shell("whoisauditor")
    assert (await bkheal("status", "--output", "json", uri=here.uri)).document["auditor"] == name


async def marked_once(
    here: ApacheWorld, client: ConnectedBookKeeper, ledgers: list[Ledger], lost: ApacheBookie
) -> None:
    """Wait until every ledger is marked for the lost bookie, and check that each mark was written once."""
    wanted = {ledger.ledger_id: [lost.bookie_id] for ledger in ledgers}
    await until(here.tasks, lambda found: found == wanted, "every ledger is marked", PROGRAM_S)
    for ledger in ledgers:
        assert (await client.store.get(task_path(LEDGERS_ROOT, LedgerId(ledger.ledger_id)))).stat.version == 0


async def test_each_auditor_succeeds_the_other_and_finds_what_was_lost_before(
    lent: ApacheWorld, client: ConnectedBookKeeper, stack: AsyncExitStack, tmp_path: Path
) -> None:
    """Every bookie has a copy of every ledger, so no worker can repair while one is down."""
    here, cluster = lent, lent.cluster
    ledgers = await written(here.java, ((4, 4, 4),), 3)
    first, second, third, _ = cluster.bookies
    ours = Auditor.launch(here.uri, tmp_path / "ours")
    await stack.enter_async_context(ours.process)
    await ours.ready()
    our_name = await until(lambda: leader(client), bool, "our auditor leads")
    assert our_name.endswith(f":{ours.process.pid}")
    recovery = await cluster.start_auto_recovery(QUICK)
    await until(lambda: candidates(client), lambda count: count == 2, "both auditors are candidates")
    await all_agree_on(here, our_name)

    # Our auditor reads the delay set by Apache's shell.
    await cluster.shell("lostbookierecoverydelay", "-set", str(LONG_S))
    delay = await bkheal("recovery", "delay", "--output", "json", uri=here.uri)
    assert delay.document["lost_bookie_delay_seconds"] == LONG_S
    await first.stop()
    await until(ours.lost, lambda names: names == [first.bookie_id], "our auditor has recorded the loss")
    (waiting,) = (await ours.status())["bookies"]["lost"]
    assert waiting["audit_due"] is not None
    assert await here.tasks() == {}
    await cluster.shell("lostbookierecoverydelay", "-set", "1")  # the minimum it accepts
    await marked_once(here, client, ledgers, first)
    await first.start()
    await no_work_left(here, client)  # Apache's worker finds no missing copies any more

    await here.kill9(ours.process)
    await second.stop()
    await until(lambda: leader(client), lambda name: name == recovery.address, "Apache's auditor leads")
    await marked_once(here, client, ledgers, second)
    await all_agree_on(here, recovery.address)
    await second.start()
    await no_work_left(here, client)

    # Apache's auditor reads the delay set by our command.
    assert (await bkheal("recovery", "delay", str(LONG_S), uri=here.uri)).exit_code == 0
    assert str(LONG_S) in await cluster.shell("lostbookierecoverydelay", "-get")
    await third.stop()
    await gone(client, third.bookie_id)
    assert await here.tasks() == {}
    assert (await bkheal("recovery", "delay", "0", uri=here.uri)).exit_code == 0
    await marked_once(here, client, ledgers, third)
    await third.start()
    await no_work_left(here, client)

    again = Auditor.launch(here.uri, tmp_path / "again")
    await stack.enter_async_context(again.process)
    await again.ready()
    await until(lambda: candidates(client), lambda count: count == 2, "both auditors are candidates again")
    assert await leader(client) == recovery.address
    await here.kill9(recovery)
    await first.stop()
    await until(lambda: leader(client), lambda name: name.endswith(f":{again.process.pid}"), "our auditor leads again")
    await marked_once(here, client, ledgers, first)
    await all_agree_on(here, await leader(client))
    bookies = [bookie.bookie_id for bookie in cluster.bookies]
    await check_all_nodes_known(client.store, LEDGERS_ROOT, bookies)  # while our auditor leads, and its marks exist
    await first.start()
    await again.process.stop(STATE_S)
    await check_healthy(here.java, ledgers)
    await check_all_nodes_known(client.store, LEDGERS_ROOT, bookies)


@pytest.mark.long  # test_service_lost_bookies.py writes the nodes of these requests itself
async def test_apaches_shell_requests_audits_where_only_our_auditor_ever_ran(
    own_servers: OwnServers, stack: AsyncExitStack, tmp_path: Path
) -> None:
    cluster = await own_servers(bookies=2)
    ours = Auditor.launch(cluster.metadata_uri, tmp_path / "ours")
    await stack.enter_async_context(ours.process)
    await ours.ready()
    async with await connect(cluster.metadata_uri) as client:
        path = lost_bookie_delay_path(LEDGERS_ROOT)
        await until(lambda: client.store.stat(path), lambda stat: stat is not None, "our leader has created the node")
        await cluster.shell("triggeraudit")
        await until(lambda: Runs(client.store, LEDGERS_ROOT).list(1, 0), bool, "our leader has started an audit")
        lost = cluster.bookies[1]
        await lost.stop()
        await cluster.shell("decommissionbookie", "-bookieid", lost.bookie_id)
        names = (await client.store.children(f"{LEDGERS_ROOT}/{COOKIES}")).names
        assert lost.bookie_id not in names
