"""A bookie behind a link. It connects to ZooKeeper directly."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.model.ids import BookieId
from tests.deadlines import STATE_S
from tests.links import LINK_HOST, LOOPBACK, Link
from tests.sessions import LONG_SESSION_S


@dataclass
class LinkedBookie:
    """A bookie behind a link."""

    bookie_id: BookieId
    running: ManagedProcess
    link: Link


@asynccontextmanager
async def linked_bookie(cluster: EmbeddedCluster, name: str) -> AsyncIterator[LinkedBookie]:
    """Start a bookie of ``cluster`` behind a link."""
    directory = cluster.directory / name
    places = ("--journal-dir", str(directory / "journal"), "--ledger-dir", str(directory / "ledgers"))
    words = [sys.executable, "-m", "bookie.server", "--metadata-uri", cluster.metadata_uri, *places]
    words += ["--host", LOOPBACK, "--port", "0", "--advertised-host", LINK_HOST]
    words += ["--session-timeout", str(LONG_SESSION_S), "--read-only-below-bytes", str(1 << 20)]
    async with ManagedProcess.start(name, words, log_path=directory / "log.txt") as process:
        ready = await process.wait_for_line(r"^bookie (\S+) ready on \S+:(\d+)$", STATE_S)
        link = Link(int(ready[2]))
        await link.listen(LINK_HOST, int(ready[2]))
        try:
            yield LinkedBookie(BookieId(ready[1]), process, link)
        finally:
            await link.close()
