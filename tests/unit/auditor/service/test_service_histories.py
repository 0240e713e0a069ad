"""Random histories of several auditors: elections, runs and schedules under faults, on virtual time.

Every second, at most one auditor leads and none has ended by itself. At most one run of a lane passes its gates. After
the faults have ended, one auditor leads, every schedule is kept, every loss was audited, and no record of a run is left
open. A failing history is reported with its seed and its events.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast
from unittest.mock import patch

import pytest

from auditor.service.leader_term import Housekeeping
from auditor.service.runs.manager import RunRequest
from bookie.metadata.bookies.first_seen_down import FirstSeenDown
from bookie.metadata.own_state import own_path
from bookie.metadata.port import AccessDeniedError, StoreUnavailableError, WriteOutcomeUnknownError
from bookie.metadata.runs.election import election_path
from bookie.metadata.runs.records import RunLane, Runs
from bookie.metadata.store.memory import Fault
from bookie.model.errors import BkhealError
from bookie.model.run import RunCause, RunKind, RunState
from spark_jobs.runs.gate import RunGate
from tests.seeds import seeds
from tests.worlds.clocks import VirtualClock
from tests.worlds.cluster import ROOT
from tests.worlds.service import BOOKIES, SESSION_TIMEOUT_S, Auditor, FakeCheck, ServiceWorld
from tests.worlds.virtual_time import run_virtual

EVENTS: Final = {
    "start_auditor": 2,
    "kill": 1,
    "stop": 1,
    "expire": 2,
    "disconnect": 4,
    "fault": 3,
    "deny": 2,
    "jump": 2,
    "lose": 4,
    "bring_back": 4,
    "fail_run": 2,
    "pace": 3,
    "request_run": 4,
    "cancel_run": 3,
    "pause_run": 2,
    "resume_run": 2,
    "pause_kind": 1,
    "resume_kind": 1,
}
"""The events, with their frequencies."""
RUNS_KEPT: Final = 20
PAUSE_S: Final = 120.0
PERIODS_S: Final = {RunKind.BOOKIES: 300, RunKind.PLACEMENT: 600}
AUDITORS_MAX: Final = 4
API_S: Final = 60.0


class HistoryError(AssertionError):
    """A history broke a rule."""


class PassedGate:
    """A gate that notes each time when its run may continue."""

    def __init__(self, gate: RunGate, lane: RunLane, run_id: str, passed: list[tuple[RunLane, str]]) -> None:
        self._gate, self._lane, self._run_id, self._passed = gate, lane, run_id, passed

    def check(self) -> None:
        self._gate.check()
        self._passed.append((self._lane, self._run_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


class History:
    """One history."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._alive: list[Auditor] = []
        self._count = 0
        self._denied: set[str] = set()
        self._faults: set[asyncio.Task[None]] = set()
        self.passed: list[tuple[RunLane, str]] = []
        self.log: list[str] = []

    async def play(self) -> None:
        world = self._world = await ServiceWorld.create()
        await world.set_delay(self._rng.choice([0, 0, 120, 300]))
        for _ in range(2):
            await self._start_auditor()
        watching = asyncio.ensure_future(self._watch())
        for _ in range(self._rng.randint(5, 30)):
            name = self._rng.choices(list(EVENTS), list(EVENTS.values()))[0]
            self.log.append(f"{world.clock.monotonic_s():.1f} {name}")
            await getattr(self, f"_{name}")()
            await asyncio.sleep(self._rng.choice([0, 0.05, 0.5, 2, 7, 20, 100]))
        await self._heal()
        await self._check_end()
        if watching.done():
            watching.result()
        watching.cancel()
        self._check_lanes()
        await world.close()

    # The events

    async def _start_auditor(self) -> None:
        if len(self._alive) == AUDITORS_MAX:
            return
        self._count += 1
        schedules = {f"{kind.value}_schedule": f"{period_s // 60}m" for kind, period_s in PERIODS_S.items()}
        auditor = await self._world.auditor(
            f"a{self._count}", **schedules, runs_kept=RUNS_KEPT, pause_s=PAUSE_S, backlog_interval_s=60.0
        )
        self._alive.append(auditor)

    async def _kill(self) -> None:
        if len(self._alive) > 1:
            self._in_background(self._killed(self._removed()))

    async def _killed(self, auditor: Auditor) -> None:
        auditor.store.suspend()
        await auditor.kill()

    async def _stop(self) -> None:
        if len(self._alive) > 1:
            self._in_background(self._removed().stop())

    async def _expire(self) -> None:
        store = self._any().store
        store.expire()
        await asyncio.sleep(self._rng.choice([0, 0.1, 3]))
        store.resume()

    async def _disconnect(self) -> None:
        self._in_background(self._disconnected(self._any(), self._rng.choice([0.5, 2, 5, 8, 9.9, 12, 40, 300])))

    async def _disconnected(self, auditor: Auditor, seconds: float) -> None:
        auditor.store.suspend()
        await asyncio.sleep(min(seconds, SESSION_TIMEOUT_S))
        if seconds >= SESSION_TIMEOUT_S:
            auditor.store.expire()
            await asyncio.sleep(seconds - SESSION_TIMEOUT_S)
        auditor.store.resume()

    async def _fault(self) -> None:
        share, seconds = self._rng.choice([0.01, 0.1, 0.5, 1.0]), self._rng.choice([2, 20, 200])
        self._in_background(self._failing(self._any(), random.Random(self._rng.random()), share, seconds))

    async def _failing(self, auditor: Auditor, rng: random.Random, share: float, seconds: float) -> None:
        async def fail(operation: str, path: str) -> Fault | None:
            return rng.choice([Fault.FAIL_BEFORE, Fault.LOSE_ANSWER]) if rng.random() < share else None

        auditor.store.fault_hook = fail
        await asyncio.sleep(seconds)
        auditor.store.fault_hook = None

    async def _deny(self) -> None:
        runs = own_path("runs", ROOT)
        path = self._rng.choice([runs, f"{runs}/records", f"{runs}/locks", election_path(ROOT)])
        self._in_background(self._without(path, self._rng.choice([5, 60, 300])))

    async def _without(self, path: str, seconds: float) -> None:
        self._world.cell.deny(path)
        await asyncio.sleep(seconds)
        self._world.cell.allow(path)

    async def _jump(self) -> None:
        minutes = self._rng.choice([-30 * 1440, -60, -0.5, 0.5, 60, 1440])
        cast(VirtualClock, self._world.clock).skew_ms += int(60_000 * minutes)

    async def _lose(self) -> None:
        if len(self._world.bookies) > 3:
            await self._world.down(self._rng.choice(sorted(self._world.bookies)))

    async def _bring_back(self) -> None:
        if gone := [bookie for bookie in BOOKIES if bookie not in self._world.bookies]:
            await self._world.up(self._rng.choice(gone))

    async def _fail_run(self) -> None:
        errors = (StoreUnavailableError("x"), ValueError("x"), WriteOutcomeUnknownError("x"), AccessDeniedError("x"))
        self._world.failures.append(self._rng.choice(errors))

    async def _pace(self) -> None:
        self._world.check_s = self._rng.choice([0.5, 1, 5, 60, 300])

    async def _request_run(self) -> None:
        kind, is_dry_run = self._kind(), self._rng.random() < 0.3
        start = self._any().service.start_run(kind, cause=RunCause.HTTP, owner="me", is_dry_run=is_dry_run)
        await self._requested(start)

    async def _cancel_run(self) -> None:
        await self._of_run("cancel_run")

    async def _pause_run(self) -> None:
        await self._of_run("pause_run")

    async def _resume_run(self) -> None:
        await self._of_run("resume_run")

    async def _of_run(self, name: str) -> None:
        if running := [record.run_id for auditor in self._alive for record in auditor.service.status().running]:
            request = getattr(self._any().service, name)
            await self._requested(request(self._rng.choice(running), owner="me", via="http"))

    async def _pause_kind(self) -> None:
        await self._requested(self._any().service.pause_kind(self._kind(), owner="me", via="http"))

    async def _resume_kind(self) -> None:
        await self._requested(self._any().service.resume_kind(self._kind(), owner="me", via="http"))

    # Parts

    def _any(self) -> Auditor:
        return self._rng.choice(self._alive)

    def _removed(self) -> Auditor:
        auditor = self._any()
        self._alive.remove(auditor)
        return auditor

    def _kind(self) -> RunKind:
        return self._rng.choice([RunKind.BOOKIES, RunKind.PLACEMENT, RunKind.REPLICAS])

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._faults.add(asyncio.ensure_future(work))

    async def _requested(self, request: Coroutine[Any, Any, object]) -> None:
        """Send a request of an operator. It may be refused, but it is answered."""
        try:
            async with asyncio.timeout(API_S):
                await request
        except BkhealError as refused:
            self.log.append(f"   refused: {refused}")

    async def _watch(self) -> None:
        while True:
            if sum(auditor.leads for auditor in self._world.auditors if not auditor.task.done()) > 1:
                raise HistoryError("two auditors lead")
            if any(auditor.task.done() for auditor in self._alive):
                raise HistoryError("an auditor has ended by itself")
            await asyncio.sleep(1.0)

    async def _heal(self) -> None:
        """End all faults, and wait until all pauses have ended and the longest period has passed."""
        self.log.append(f"{self._world.clock.monotonic_s():.1f} heal")
        await asyncio.gather(*self._faults)
        for auditor in self._alive:
            auditor.store.fault_hook = None
            auditor.store.resume()
        self._world.check_s = 1.0
        self._world.failures.clear()
        await asyncio.sleep(PAUSE_S + PERIODS_S[RunKind.PLACEMENT])

    async def _check_end(self) -> None:
        world, period_s = self._world, PERIODS_S[RunKind.PLACEMENT]
        for auditor in self._alive:
            auditor.counted.ended.clear()
        lost = set(BOOKIES) - world.bookies.keys()
        await asyncio.sleep(1.5 * period_s)
        if sum(auditor.leads for auditor in self._alive) != 1:
            raise HistoryError("not one auditor leads at the end")
        ended = [record for auditor in self._alive for record in auditor.counted.ended]
        done = Counter(record.kind for record in ended if record.state is RunState.DONE)
        for kind, every_s in PERIODS_S.items():
            if done[kind] < 1.5 * period_s // every_s - 1:
                raise HistoryError(f"only {done[kind]} runs of {kind.value}: {ended}")
        now_ms = world.clock.epoch_ms()
        records = await Runs(world.store, ROOT).list(1000, now_ms)
        if left := [each for each in records if not each.state.is_final and now_ms - each.started_ms > 60_000]:
            raise HistoryError(f"records of runs are left open: {left}")
        if len(records) > RUNS_KEPT + len(PERIODS_S):
            raise HistoryError(f"{len(records)} records of runs are kept")
        noted = await FirstSeenDown(world.store, ROOT).read()
        if left_out := [bookie for bookie in lost if bookie not in noted or not noted[bookie].audited_ms]:
            raise HistoryError(f"the loss of {left_out} was not audited")
        if problems := [each for auditor in self._alive for each in auditor.service.status().problems]:
            raise HistoryError(f"problems at the end: {problems}")

    def _check_lanes(self) -> None:
        """Check that no run continues after a later one of its lane has begun (S14)."""
        last: dict[RunLane, str] = {}
        over: set[str] = set()
        for lane, run_id in self.passed:
            if run_id in over:
                raise HistoryError(f"run {run_id} of {lane.name} continued after a later one had begun")
            if (before := last.get(lane)) not in (None, run_id):
                over.add(str(before))
            last[lane] = run_id


@contextmanager
def noting_gates(history: History) -> Iterator[None]:
    """Note which runs pass their gates."""
    run = FakeCheck.run

    async def noted(self: FakeCheck, request: RunRequest, gate: RunGate, progress: Any) -> Any:
        lane = RunLane(request.kind, request.is_dry_run)
        passed = cast(RunGate, PassedGate(gate, lane, request.run_id, history.passed))
        return await run(self, request, passed, progress)

    with patch.object(FakeCheck, "run", noted):
        yield


def play(seed: int) -> None:
    """Play a history.

    Raises:
        HistoryError: it broke a rule.
    """
    history = History(seed)
    try:
        with noting_gates(history):
            run_virtual(history.play())
    except Exception as error:
        raise HistoryError("\n".join([f"seed {seed}: {error!r}", *history.log])) from error


@pytest.mark.parametrize("seed", seeds(0, 60, in_gate=2))
def test_auditors_recover_from_any_history(seed: int) -> None:
    play(seed)


def _nothing_ends_a_run(self: RunGate) -> None:
    pass


async def _no_house_is_kept(self: Housekeeping) -> None:
    pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("target", "name", "replacement"),
    [(RunGate, "check", _nothing_ends_a_run), (Housekeeping, "clean_up", _no_house_is_kept)],
)
def test_a_planted_defect_is_found(target: type, name: str, replacement: object) -> None:
    with patch.object(target, name, replacement):
        for seed in range(60):
            try:
                play(seed)
            except HistoryError:
                return
    pytest.fail("no history shows the defect")
