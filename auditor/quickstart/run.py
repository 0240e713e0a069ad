"""The tour: six steps with real processes. Each step is checked before the next one begins."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from auditor.progress import Display
from auditor.quickstart import cluster_steps, repair_steps
from auditor.quickstart.place import working_directory
from auditor.quickstart.settings import BOOKIES, QuickstartSettings
from auditor.quickstart.tour import Tour
from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.runtime.java import find_java

STEPS: Final = 6


async def quickstart(settings: QuickstartSettings, display: Display) -> None:
    """Run the tour. No process remains in any case. No directory remains, unless it is kept or a step fails.

    Raises:
        BkhealError: a step failed; the message has the cause, and the logs are kept.
    """
    with working_directory(settings.keep, "bkheal-quickstart-") as directory:
        with display.step(f"start ZooKeeper and {BOOKIES} bookies") as step:
            cluster = await EmbeddedCluster.start(directory, bookies=BOOKIES, java=await asyncio.to_thread(find_java))
            step.result.count = f"{BOOKIES} bookies, {BOOKIES + 1} processes"
        async with cluster, await connect(cluster.metadata_uri, session_timeout_s=6.0) as client:
            tour = Tour(directory, cluster, client, random.Random(settings.seed), settings.keep is not None)
            await cluster_steps.write_ledgers(tour, display)
            await cluster_steps.kill_bookie_under_load(tour, display)
            await repair_steps.audit(tour, display)
            await repair_steps.repair(tour, display)
            await repair_steps.prove(tour, display)
            repair_steps.summarize(tour, display)
            if settings.is_serving:
                await _serve(tour, display)
            else:
                display.line(
                    "next: `make demo` (or `bkheal demo`) keeps such a cluster running, with the auditor's pages"
                )


async def _serve(tour: Tour, display: Display) -> None:
    uri = tour.cluster.metadata_uri
    display.line("")
    display.line("The cluster keeps running until Ctrl-C. In another terminal:")
    display.line(f"  export BKHEAL_METADATA_URI='{uri}'")
    for command in ("status", "bookies", "underreplicated list", "ledger list --limit 10", "audit --dry-run"):
        display.line(f"  bkheal {command}")
    await asyncio.Event().wait()
