"""A replicator measures its turns, its copies, and the time until all copies exist again."""

from __future__ import annotations

import asyncio

import pytest

from bookie.metadata.tasks.parked import ParkReason
from bookie.model.ids import BookieId, EntryId, LedgerId
from bookie.runtime.telemetry.heartbeat import SILENCE_S_MAX, Heartbeat
from bookie.runtime.telemetry.metrics import MetricSet, render
from replicator.copying.throttle import Throttle
from replicator.knowledge.evidence import CorruptCopy
from replicator.telemetry import metrics as names
from replicator.telemetry.apache_metrics import ApacheEvents
from replicator.telemetry.events import Ending, EventSink, Fanout, QueueState, TaskResult, WorkerLoad
from replicator.telemetry.metrics import ReplicatorMetricsEvents, replicator_metrics
from tests.worlds.clocks import EPOCH_MS, ManualClock, VirtualClock
from tests.worlds.virtual_time import in_virtual_time

NOW_MS = EPOCH_MS
LEDGER = LedgerId(1)


class Measured:
    def __init__(self) -> None:
        self.metrics: MetricSet = replicator_metrics("1")
        self.events = ReplicatorMetricsEvents(self.metrics, ManualClock())

    def value(self, name: str, **labels: str) -> float:
        found = self.metrics.registry.get_sample_value(name, labels)
        assert found is not None, (name, labels)
        return found


@pytest.fixture
def world() -> Measured:
    return Measured()


def test_turns_are_counted_by_their_outcome(world: Measured) -> None:
    sink: EventSink = Fanout((world.events,))
    sink.task_ended(
        TaskResult(
            LEDGER,
            Ending.REPAIRED,
            fragments=2,
            entries=10,
            bytes=460,
            is_recovered=True,
            seconds=0.25,
            marked_ms=NOW_MS - 90_000,
        )
    )
    sink.task_ended(TaskResult(LEDGER, Ending.PARKED, reason=ParkReason.NO_LIVE_COPY, seconds=2.0))
    sink.task_ended(TaskResult(LEDGER, Ending.BUSY))
    sink.task_ended(TaskResult(LEDGER, Ending.FAILED, replaced_copies=3))
    sink.copy_corrupt(LEDGER, CorruptCopy(BookieId("b"), EntryId(3), "CRC32C digest mismatch"))
    assert world.value(names.TASKS_ENDED, ending="repaired") == world.value(names.TASKS_ENDED, ending="busy") == 1
    assert world.value(names.TASKS_ENDED, ending="failed") == 1
    assert world.value(names.REPLACED_COPIES) == 3
    assert world.value(names.PARKED, reason="no_live_copy") == 1
    assert (world.value(names.REPAIRED_FRAGMENTS), world.value(names.RECOVERED_LEDGERS)) == (2, 1)
    assert world.value(names.CORRUPT_COPIES) == 1
    assert world.value(f"{names.TASK_DURATION}_sum", ending="parked") == 2.0
    assert world.value(f"{names.TIME_TO_FULL}_sum") == 90
    assert world.value(f"{names.TIME_TO_FULL}_bucket", le="60.0") == 0
    assert world.value(f"{names.TIME_TO_FULL}_bucket", le="300.0") == 1


def test_only_a_repair_with_a_known_mark_is_timed_until_full_replication(world: Measured) -> None:
    for ending in Ending:
        world.events.task_ended(TaskResult(LEDGER, ending, marked_ms=-1 if ending is Ending.REPAIRED else NOW_MS))
    assert world.value(f"{names.TIME_TO_FULL}_count") == 0


def test_each_task_is_in_one_state(world: Measured) -> None:
    queue_state = QueueState(eligible=1, locked=2, backing_off=7, given_up=3, in_grace=4, parked=5, left=6)
    world.events.tasks_listed(queue_state)
    values = {state: world.value(names.LISTED_TASKS, state=state) for state in names.STATES}
    assert values == {"eligible": 1, "locked": 2, "backing_off": 4, "given_up": 3, "delayed": 4, "parked": 5, "left": 6}


def test_totals_of_the_worker_are_exported(world: Measured) -> None:
    world.events.sample(
        WorkerLoad(
            ledgers_in_flight=3,
            bytes_in_flight=4096,
            bytes_per_second=1000,
            copied_entries=10,
            copied_bytes=460,
            throttled_s=1.5,
        )
    )
    world.events.sample(
        WorkerLoad(ledgers_in_flight=1, copied_entries=25, copied_bytes=1150, throttled_s=2.0, unreachable_bookies=2)
    )
    assert world.value(names.UNREACHABLE_BOOKIES) == 2
    assert (world.value(names.IN_FLIGHT_LEDGERS), world.value(names.IN_FLIGHT_BYTES)) == (1, 0)
    assert (world.value(names.COPIED_ENTRIES), world.value(names.COPIED_BYTES)) == (25, 1150)
    assert (world.value(names.THROTTLE), world.value(names.THROTTLED)) == (0, 2.0)


def test_progress_is_a_copied_entry_or_a_turn_with_a_result(world: Measured) -> None:
    for ending in (Ending.BUSY, Ending.FAILED, Ending.STOPPED):
        world.events.task_ended(TaskResult(LEDGER, ending))
    world.events.sample(WorkerLoad(ledgers_in_flight=1))
    assert world.value(names.LAST_PROGRESS) == 0
    world.events.sample(WorkerLoad(copied_entries=1))
    assert world.value(names.LAST_PROGRESS) == NOW_MS / 1000


def test_the_throttle_measures_how_long_copies_waited() -> None:
    @in_virtual_time
    async def run() -> None:
        clock = VirtualClock()
        throttle = Throttle(clock, 1000)
        await throttle.take(250)
        assert throttle.waited_s == 0
        await asyncio.gather(*(throttle.take(1000) for _ in range(4)))
        assert throttle.waited_s == pytest.approx(3.0, abs=0.1)  # the last request leaves its debt to the next one

    run()


def test_a_hanging_event_loop_is_detected() -> None:
    @in_virtual_time
    async def run() -> None:
        clock, beats = VirtualClock(), []
        heart = Heartbeat(clock, lambda: beats.append(clock.monotonic_s()))
        beating = asyncio.create_task(heart.run())
        await clock.sleep(5.5)
        assert heart.problem() == ""
        assert len(beats) == 6
        beating.cancel()
        await asyncio.wait([beating])
        await clock.sleep(SILENCE_S_MAX + 2)
        assert "has not answered" in heart.problem()

    run()


def test_apaches_names_are_exported_if_requested(world: Measured) -> None:
    apache = ApacheEvents()
    assert "replication_worker" not in render(world.metrics.registry).body.decode()
    world.metrics.registry.register(apache)
    apache.task_ended(TaskResult(LEDGER, Ending.REPAIRED, fragments=1, entries=10, bytes=460, seconds=0.5))
    apache.task_ended(TaskResult(LEDGER, Ending.FAILED, seconds=0.1))
    apache.task_ended(TaskResult(LEDGER, Ending.BUSY, seconds=9.0))
    apache.sample(WorkerLoad(copied_entries=10, copied_bytes=460))
    assert world.value("replication_worker_rereplicate_count", success="true") == 1
    assert world.value("replication_worker_rereplicate_sum", success="true") == 500
    assert world.value("replication_worker_rereplicate_count", success="false") == 1
    assert world.value("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") == 1
    assert world.value("replication_worker_NUM_ENTRIES_WRITTEN") == 10
    assert world.value("replication_worker_NUM_BYTES_READ_sum", success="true") == 460
    text = render(world.metrics.registry).body.decode()
    assert "# TYPE replication_worker_NUM_ENTRIES_READ untyped" in text
