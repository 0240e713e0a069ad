"""Processes and their configuration file: changes at run time take effect and are logged."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookie.embedded.process import ManagedProcess
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from tests.deadlines import STATE_S

pytestmark = pytest.mark.integration


class Follower:
    """A real process with a watched file."""

    def __init__(self, process: ManagedProcess, path: Path) -> None:
        self.process = process
        self.path = path

    def write(self, text: str) -> None:
        """Replace the file with another one, as Kubernetes and editors do."""
        made = self.path.with_suffix(".new")
        made.write_text(text)
        made.rename(self.path)

    def send_sighup(self) -> None:
        """Signal that the file is complete."""
        os.kill(self.process.pid, signal.SIGHUP)

    async def until_log(self, *words: str) -> str:
        def lines() -> list[str]:
            text = self.process.log_path.read_text()
            return [line for line in text.splitlines() if all(word in line for word in words)]

        async def is_there() -> bool:
            return bool(lines())

        await self.process.wait_until(is_there, f"{words} in the log", STATE_S)
        return lines()[0]


class Replicator(Follower):
    """A replicator process and the address of its metrics."""

    def __init__(self, process: ManagedProcess, path: Path, url: str) -> None:
        super().__init__(process, path)
        self._url = url

    def write(self, text: str) -> None:
        """Replace the file. ``text`` is added to the constant part."""
        super().write(f"[replicator]\nhttp_port = 0\n{text}")

    async def rate(self) -> float:
        text = await asyncio.to_thread(_get, f"{self._url}/metrics")
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return next(one.value for one in samples if one.name == "bkheal_replicator_throttle_bytes_per_second")

    async def until_rate(self, rate: float) -> None:
        async def is_there() -> bool:
            return await self.rate() == rate

        await self.process.wait_until(is_there, f"a rate of {rate}", STATE_S)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=STATE_S) as reply:
        text: str = reply.read().decode()
        return text


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=STATE_S) as reply:
            code: int = reply.status
            return code
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def _cluster(zookeeper: EmbeddedZooKeeper, root: str) -> str:
    store = await ZooKeeperStore.connect(zookeeper.connect_string)
    try:
        await format_cluster(store, root, rng=random.Random(1))
    finally:
        await store.close()
    return f"zk+hierarchical://{zookeeper.connect_string}{root}"


@asynccontextmanager
async def replicator(zookeeper: EmbeddedZooKeeper, root: str, home: Path, *options: str) -> AsyncIterator[Replicator]:
    uri = await _cluster(zookeeper, root)
    path = home / "bkheal.toml"
    path.write_text("[replicator]\nhttp_port = 0\nbytes_per_second = 1000000\n")
    command = [sys.executable, "-m", "auditor.cli.main", "replicator", "--metadata-uri", uri, "--config", str(path)]
    process = ManagedProcess.start("replicator", [*command, *options], log_path=home / "replicator.log")
    try:
        line = await process.wait_for_line(r"metrics on (http://127\.0\.0\.1:\d+)$", STATE_S)
        await process.wait_for_line("^replicator ready$", STATE_S)
        yield Replicator(process, path, line[1])
    finally:
        await process.stop(STATE_S)


async def test_a_replicator_reloads_its_configuration_file(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    async with replicator(zookeeper, fresh_root, tmp_path) as running:
        await running.until_rate(1_000_000)

        running.write("bytes_per_second = 2000000\nledgers_in_flight = 3\n")
        await running.until_rate(2_000_000)
        assert "old=1000000 new=2000000" in await running.until_log("option changed", "option=bytes_per_second")
        assert "old=64 new=3" in await running.until_log("option needs a restart", "option=ledgers_in_flight")

        running.write("bytes_per_second = -1\nbytes_a_second = 3000000\n")
        refused = await running.until_log("configuration file is refused")
        assert "bytes_a_second is unknown" in refused
        assert "bytes_per_second = -1" in refused
        assert await running.rate() == 2_000_000

        running.write("bytes_per_second = 0\n")
        running.send_sighup()
        await running.until_rate(0)
        running.send_sighup()
        await running.until_log("configuration reloaded, no changes")
        assert await running.process.stop(STATE_S) == 0


async def test_a_flag_takes_precedence_over_a_changed_file(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    async with replicator(zookeeper, fresh_root, tmp_path, "--bytes-per-second", "5000000") as running:
        await running.until_rate(5_000_000)
        running.write("bytes_per_second = 2000000\n")
        running.send_sighup()
        await running.until_log("option does not follow the file", "stays_with=--bytes-per-second")
        assert await running.rate() == 5_000_000


async def test_an_auditor_reloads_its_file_even_without_a_connection_to_the_store(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    start = "[auditor]\nhttp_port = 0\ngrpc_port = 0\nui_enabled = false\n"
    path.write_text(f"{start}requests_per_second = 1\n")
    command = [sys.executable, "-m", "auditor.cli.main", "--log-level", "INFO", "auditor", "--config", str(path)]
    where = ["--metadata-uri", "zk://127.0.0.1:1/ledgers", "--report-dir", str(tmp_path / "reports")]
    async with ManagedProcess.start("auditor", [*command, *where], log_path=tmp_path / "auditor.log") as process:
        running = Follower(process, path)
        listens = re.search(r"port=(\d+)", await running.until_log("http api listens"))
        assert listens is not None
        url = f"http://127.0.0.1:{listens[1]}/api/v1/status"

        async def are_all_answered() -> bool:
            return 429 not in [await asyncio.to_thread(_status, url) for _ in range(20)]

        async def is_one_refused() -> bool:
            return not await are_all_answered()

        await process.wait_until(is_one_refused, "more requests than it answers", STATE_S)
        running.write(f"{start}requests_per_second = 1000\n")
        await running.until_log("option changed", "old=1.0 new=1000.0")
        await process.wait_until(are_all_answered, "20 answers in a row", STATE_S)
        assert await process.stop(STATE_S) == 0


async def test_a_bookie_logs_which_changes_need_a_restart(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    uri, path = await _cluster(zookeeper, fresh_root), tmp_path / "bkheal.toml"
    path.write_text("[bookie]\nport = 0\nread_only_below_bytes = 0\n")
    folders = ["--journal-dir", str(tmp_path / "journal"), "--ledger-dir", str(tmp_path / "ledgers")]
    command = [sys.executable, "-m", "auditor.cli.main", "bookie", "--metadata-uri", uri, "--config", str(path)]
    async with ManagedProcess.start("bookie", [*command, *folders], log_path=tmp_path / "bookie.log") as process:
        await process.wait_for_line("^bookie .* ready on", STATE_S)
        running = Follower(process, path)
        running.write("[bookie]\nport = 0\nread_only_below_bytes = 0\ncollect_interval = 60\n")
        running.send_sighup()
        await running.until_log("option needs a restart", "option=collect_interval old=3600.0 new=60.0")
        assert await process.stop(STATE_S) == 0
