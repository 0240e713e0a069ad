"""The entry point of the replicator: settings, exit codes, and reports."""

from __future__ import annotations

import asyncio
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from typing_extensions import override

import replicator.__main__
from bookie.metadata.cluster import format_cluster
from bookie.metadata.nodes import put
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.uri import parse_uri
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_pages import Health, Pages
from bookie.wire.circuits import SILENCES_MAX
from bookie.wire.port import Status
from bookie.wire.requests import Info
from replicator.__main__ import main
from replicator.knowledge.evidence import CorruptCopy
from replicator.main import _ports, _stop_if_migrated, _Telemetry
from replicator.settings import ReplicatorSettings
from replicator.telemetry.events import Ending, Fanout, QueueState, TaskResult
from replicator.telemetry.status import JsonEvents, LogEvents, ReplicatorProgress
from replicator.worker import Worker


def test_all_problems_of_the_settings_are_named() -> None:
    with pytest.raises(ConfigurationError) as raised:
        ReplicatorSettings(
            "", ledgers_in_flight=0, bytes_per_second=-1, poll_interval_s=0, grace_s=-1, open_ledger_grace_s=-1
        )
    assert len(raised.value.problems) == 6


def test_wrong_settings_and_uris_are_configuration_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--metadata-uri", "zk://h/ledgers", "--ledgers-in-flight", "0"]) == 78
    assert "ledgers_in_flight" in capsys.readouterr().err
    assert main(["--metadata-uri", "http://h/ledgers"]) == 78
    assert "only 'zk'" in capsys.readouterr().err


def test_options_that_are_not_reloaded_from_a_file_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(settings: ReplicatorSettings) -> int:
        return 0

    monkeypatch.setattr(replicator.__main__, "run_replicator", ends)
    path = tmp_path / "bkheal.toml"
    for text, reported in (("", 0), ("[replicator]\nledgers_in_flight = 2\n", 1)):
        path.write_text(f'metadata_uri = "zk://h:1/ledgers"\n{text}')
        assert main(["--config", str(path)]) == 0
        assert [getattr(record, "path", "") for record in caplog.records] == [str(path)] * reported


def test_a_replicator_process_loads_no_spark_and_no_command_line_framework() -> None:
    code = "import sys, replicator.__main__; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    top_level = {name.partition(".")[0] for name in loaded}
    assert not top_level & {"pyspark", "py4j", "typer", "rich", "pandas", "pyarrow", "spark_jobs", "auditor"}


async def test_a_replicator_stops_when_the_metadata_migrates(caplog: pytest.LogCaptureFixture) -> None:
    """R88; this holds even if the session is lost during the watch."""
    store, stopped = MemoryStore(MemoryCell()), asyncio.Event()
    worker = cast("Worker", SimpleNamespace(stop=stopped.set))
    guarding = asyncio.create_task(_stop_if_migrated(store, "/p/ledgers", worker))
    await asyncio.sleep(0.01)
    store.expire()
    await asyncio.sleep(0.01)
    store.resume()
    await put(store, "/p/pulsar/migration-coordinator/migration", b'{"phase":"NOT_STARTED"}')
    assert not stopped.is_set()
    await put(store, "/p/pulsar/migration-coordinator/migration", b'{"phase":"COPYING","targetUrl":"oxia://o"}')
    async with asyncio.timeout(10):
        await guarding
    assert stopped.is_set()


def test_a_refused_replicator_is_not_ready_and_reports_the_reason() -> None:
    telemetry = _Telemetry(has_apache_names=False)
    pages = Pages(telemetry.metrics, Health(ready=telemetry.ready()), needs_certificate=False)

    def ready() -> str:
        return pages.page("/readyz?verbose", "", "", has_certificate=False).body.decode()

    assert ready().splitlines()[1] == "[+]permissions ok", "without a session, nothing has been refused"
    worker = SimpleNamespace(problem="the tasks: list /ledgers/available: not allowed")
    telemetry.watch_worker(cast(Worker, worker))
    assert "[-]permissions: the tasks: list /ledgers/available: not allowed" in ready()
    worker.problem = ""
    assert "[+]permissions ok" in ready()


class _Written(io.StringIO):
    """An output that contains only flushed text, as the reader of a pipe would see it."""

    seen = ""

    @override
    def flush(self) -> None:
        self.seen = self.getvalue()


async def test_events_are_counted_and_written_as_json_lines() -> None:
    progress, stream = ReplicatorProgress(), _Written()
    sink = Fanout((progress, JsonEvents(stream)))
    sink.task_ended(TaskResult(LedgerId(1), Ending.REPAIRED, fragments=2, entries=10, bytes=460, seconds=0.25))
    sink.task_ended(TaskResult(LedgerId(2), Ending.PARKED, reason=ParkReason.NO_LIVE_COPY, detail="none is left"))
    sink.task_ended(TaskResult(LedgerId(3), Ending.BUSY))
    sink.copy_corrupt(LedgerId(1), CorruptCopy(BookieId("b"), EntryId(3), "CRC32C digest mismatch"))
    snapshot = progress.snapshot()
    assert snapshot.count(Ending.REPAIRED) == snapshot.count(Ending.BUSY) == 1
    assert (snapshot.fragments, snapshot.entries, snapshot.bytes, snapshot.corrupt_copies) == (2, 10, 460, 1)
    assert snapshot.parked == ((ParkReason.NO_LIVE_COPY, 1),)
    await asyncio.sleep(0)
    events = [json.loads(line) for line in stream.seen.splitlines()]
    assert [event["event"] for event in events] == ["task_ended", "task_ended", "copy_corrupt"]
    assert events[0] == {
        "event": "task_ended",
        "ledger_id": 1,
        "ending": "repaired",
        "fragments": 2,
        "entries": 10,
        "bytes": 460,
        "seconds": 0.25,
    }
    assert events[1]["reason"] == "no_live_copy"


async def test_listed_tasks_are_reported_and_written_only_if_they_changed() -> None:
    progress, stream = ReplicatorProgress(), _Written()
    sink = Fanout((progress, LogEvents(), JsonEvents(stream)))
    for queue_state in (
        QueueState(),
        QueueState(in_grace=2),
        QueueState(in_grace=2),
        QueueState(eligible=1, in_grace=1),
    ):
        sink.tasks_listed(queue_state)
    await asyncio.sleep(0)
    sink.task_ended(TaskResult(LedgerId(1), Ending.REPAIRED, is_recovered=True))
    await asyncio.sleep(0)
    assert progress.snapshot().queue_state == QueueState(eligible=1, in_grace=1)
    assert progress.snapshot().recovered == 1
    events = [json.loads(line) for line in stream.seen.splitlines()]
    assert [event.get("delayed") for event in events] == [2, 1, None]
    assert events[-1]["recovered"] is True


def test_a_run_is_settled_only_if_nothing_is_delayed() -> None:
    assert QueueState(parked=3, backing_off=1, given_up=1).is_settled
    assert not QueueState(parked=3, in_grace=1).is_settled


async def test_a_process_does_not_wait_for_a_bookie_with_an_open_circuit() -> None:
    store, bookie = MemoryStore(MemoryCell()), BookieId("silent")
    uri = parse_uri("zk+hierarchical://h:1/ledgers")
    try:
        await format_cluster(store, uri.ledgers_root, rng=random.Random(0))
        ports = await _ports(cast(ZooKeeperStore, store), uri, ReplicatorSettings("zk+hierarchical://h:1/ledgers"))
        try:
            for _ in range(SILENCES_MAX):
                ports.circuits.record_unanswered(bookie, ports.clock.monotonic_s())
            reply = await ports.transport.ask(bookie, Info(), 1.0)
            assert (reply.status, ports.circuits.open_count) == (Status.UNREACHABLE, 1)
            assert reply.detail == "bookie silent has not answered for a while, and was not asked"
        finally:
            await ports.transport.close()
    finally:
        await store.close()
