"""A cluster with the whole service, for a person to try the pages and to kill processes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from auditor.progress import Display
from auditor.quickstart import workload_plan as plan
from auditor.quickstart.place import working_directory
from auditor.quickstart.workload import write_and_close
from bookie.client.connect import ConnectedBookKeeper, connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.process import ManagedProcess
from bookie.runtime.java import find_java
from bookie.runtime.listening import AddressInUseError
from bookie.runtime.ports import free_loopback_port, is_loopback_port_free

STEPS: Final = 3
BOOKIES: Final = 6
REPLICATORS: Final = 2
LOST_BOOKIE_DELAY_S: Final = 5
_READY_DEADLINE_S: Final = 60.0
_SPARK_DEADLINE_S: Final = 120.0
_STOP_GRACE_S: Final = 20.0
_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The options; documented in ``bkheal demo --help``."""

    http_port: int = 8080
    ui_port: int = 4040
    keep: Path | None = None


@dataclass(slots=True)
class _Service:
    """A process, and the function that starts it again."""

    start: Callable[[], ManagedProcess]
    process: ManagedProcess


async def demo(settings: DemoSettings, display: Display) -> None:
    """Serve a cluster and the service until cancelled. No process remains. See ``working_directory`` for the data.

    Raises:
        BkhealError: a process did not start; the message quotes its log.
    """
    with working_directory(settings.keep, "bkheal-demo-") as directory:
        with display.step(f"start ZooKeeper and {BOOKIES} bookies") as step:
            java = await asyncio.to_thread(find_java)
            cluster = await EmbeddedCluster.start(directory, bookies=BOOKIES, java=java)
            step.result.count = f"{BOOKIES + 1} processes"
        async with cluster, await connect(cluster.metadata_uri, session_timeout_s=6.0) as client:
            with display.step("write ledgers of every kind") as step:
                specs = plan.settled_ledgers(random.Random(1))
                step.total(len(specs))
                written = await write_and_close(client, specs, lambda _: step.advance())
                step.result.count = f"{len(written)} ledgers"
            async with _service(cluster, client, settings, display) as (line, processes):
                print_addresses(cluster, settings, line, display)
                await _keep_running(processes, display)


@contextlib.asynccontextmanager
async def _service(
    cluster: EmbeddedCluster, client: ConnectedBookKeeper, settings: DemoSettings, display: Display
) -> AsyncIterator[tuple[str, list[_Service]]]:
    """Start the auditor with its tab, and the replicators; yield the auditor's ready line, and all processes."""
    await client.ports.tasks.initialize()
    await client.ports.tasks.switches.set_lost_bookie_delay_s(LOST_BOOKIE_DELAY_S)
    starts = [partial(_start_auditor, cluster, settings)]
    starts += [partial(_start_replicator, cluster, number + 1) for number in range(REPLICATORS)]
    services = [_Service(start, start()) for start in starts]
    try:
        processes = [service.process for service in services]
        with display.step(f"start the auditor with Spark, and {REPLICATORS} replicators") as step:
            ready = await processes[0].wait_for_line(r"^(auditor ready on .*)$", _READY_DEADLINE_S)
            for process in processes[1:]:
                await process.wait_for_line(r"^replicator ready$", _READY_DEADLINE_S)
            await processes[0].wait_until(
                lambda: _listens(settings.ui_port), f"Spark's UI on port {settings.ui_port}", _SPARK_DEADLINE_S
            )
            step.result.count = f"{len(processes)} processes"
        yield ready[1], services
    finally:
        await asyncio.gather(*(service.process.stop(_STOP_GRACE_S) for service in services))


async def _keep_running(services: Sequence[_Service], display: Display) -> None:
    """Restart any process that exits, as a service manager would, because users of the demo kill processes."""
    while True:
        for service in services:
            if (code := service.process.exit_code) is not None:
                display.line(f"{service.process.name} ended with exit code {code} and is started again")
                service.process = service.start()
        await asyncio.sleep(_POLL_S)


def _start_auditor(cluster: EmbeddedCluster, settings: DemoSettings) -> ManagedProcess:
    arguments = [
        *(sys.executable, "-m", "auditor.cli.main", "--log-level", "INFO", "auditor"),
        *("--metadata-uri", cluster.metadata_uri, "--report-dir", str(cluster.directory / "reports")),
        *("--http-port", str(settings.http_port), "--grpc-port", "0", "--ui-port", str(settings.ui_port)),
        *("--ui-trigger-enabled", "--ui-allow-anonymous", "--allow-anonymous-write"),
        *("--session-timeout-s", "4", "--backlog-interval-s", "2", "--schedule-jitter-s", "0"),
        *("--placement-schedule", "off", "--replicas-schedule", "15m"),
    ]
    return ManagedProcess.start("auditor", arguments, log_path=cluster.directory / "auditor" / "log.txt")


def _start_replicator(cluster: EmbeddedCluster, number: int) -> ManagedProcess:
    arguments = [sys.executable, "-m", "replicator", "--metadata-uri", cluster.metadata_uri, "--http-port", "0"]
    log_path = cluster.directory / f"replicator-{number}" / "log.txt"
    return ManagedProcess.start(f"replicator-{number}", arguments, log_path=log_path)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def print_addresses(cluster: EmbeddedCluster, settings: DemoSettings, line: str, display: Display) -> None:
    """Print the addresses, and how to kill a bookie."""
    victim, session_s = cluster.bookies[0], cluster.session_timeout_s
    base = f"http://127.0.0.1:{settings.http_port}"
    for text in (
        "",
        line,
        f"  Spark UI, tab Auditor    http://127.0.0.1:{settings.ui_port}/auditor/",
        f"  status                   {base}/status",
        f"  reports                  {base}/reports/",
        f"  metrics                  {base}/metrics",
        f"  API description          {base}/openapi.json",
        "",
        f"Kill a bookie:  kill -9 {victim.running.pid}   (bookie {victim.bookie_id})",
        f"After about {session_s + LOST_BOOKIE_DELAY_S:g} s its ledgers are audited and repaired:",
        f"its session ends after {session_s:g} s, and the lost-bookie delay is {LOST_BOOKIE_DELAY_S} s.",
        "Ledgers whose only copy was on that bookie cannot be repaired: `bkheal dead-letters list`.",
        "In another terminal:",
        f"  export BKHEAL_METADATA_URI='{cluster.metadata_uri}'",
        "  bkheal status; bkheal underreplicated list; bkheal audit list",
        f"Logs and data are in {cluster.directory}{' until Ctrl-C' if settings.keep is None else ', and are kept'}.",
    ):
        display.line(text)


def wanted_or_free_port(wanted: int, what: str, option: str = "--http-port") -> int:
    """Return ``wanted``, or a free port if it is 0.

    Raises:
        AddressInUseError: another program listens on it, such as a second demo.
    """
    if not wanted:
        return free_loopback_port(random.SystemRandom())
    if not is_loopback_port_free(wanted):
        raise AddressInUseError(
            f"port {wanted} on 127.0.0.1, for {what}, is in use: stop what listens there, or choose another with "
            f"{option}; 0 picks a free one"
        )
    return wanted
