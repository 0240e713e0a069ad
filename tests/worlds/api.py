"""A service in memory with the real APIs, on real sockets of this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import jsonschema

from auditor.api.control import (
    Backlog,
    LostBookie,
    NotLeaderError,
    RunBusyError,
    RunEndedError,
    ServiceStatus,
    SeverityBacklog,
    UnknownRunError,
)
from auditor.api.http.schemas import SCHEMAS
from auditor.api.http.server import HttpApi
from auditor.api.operations_port import (
    ALL_MARKS,
    BookieView,
    MarkFilter,
    MarkPage,
    TaskPage,
    TaskState,
    TaskView,
)
from auditor.api.peer_port import PeerReports
from auditor.api.settings import ApiSettings
from auditor.api.upkeep_port import Work
from auditor.operating.client import ClusterClient, Document, RefusedError
from auditor.service.upkeep import CachedRepairProgress, SharedLongWork
from auditor.service.watch.cluster_status import cluster_status
from auditor.service.watch.progress import make_repair_watch, progress_document
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.metadata.bookies.registration import BookieState
from bookie.metadata.port import StoreUnavailableError
from bookie.metadata.runs.notes import KindPause
from bookie.metadata.tasks.locks import Task
from bookie.metadata.tasks.parked import ParkReason
from bookie.metadata.tasks.switches import DELAY_S_MAX, InvalidDelayError
from bookie.model.ids import BookieId, LedgerId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.severity import Severity
from bookie.runtime.access.tokens import NewToken, Role, make_token
from bookie.runtime.telemetry.metrics import Exposition
from tests.worlds.clocks import EPOCH_MS, ManualClock
from tests.worlds.commands import CommandCluster

T = TypeVar("T")

NOW_MS = EPOCH_MS
EVIL = '<script>alert("x")</script>'
"""A hostile name, as an attacker might choose it."""


class TwinControl:
    """A complete ``Control`` in memory."""

    def __init__(self) -> None:
        self.is_leader = True
        self.is_connected = True
        self.is_with_topology = True
        self.problems: tuple[str, ...] = ()
        self.windows: tuple[MaintenanceWindow, ...] = ()
        self.may_start = asyncio.Event()
        """The start of a run waits until this is set."""
        self.may_start.set()
        self.leader = "auditor-0:3181"
        self.started = 0
        self.options: dict[str, Mapping[str, Any]] = {}
        """The options of each started run."""
        self.paused_kinds: dict[RunKind, KindPause] = {}
        self.changed = asyncio.Condition()
        self._runs: dict[str, RunRecord] = {}

    def status(self) -> ServiceStatus:
        running = [run for run in self._runs.values() if not run.state.is_final]
        last = {run.kind: run for run in self._runs.values() if run.state.is_final}
        return ServiceStatus(
            version="1.2.3",
            process="auditor-0/17",
            is_leader=self.is_leader,
            leader=self.leader,
            is_store_connected=self.is_connected,
            metadata_uri=f"zk://zk:2181/ledgers{EVIL}",
            instance_id="1f0c",
            is_recovery_enabled=True,
            lost_bookie_delay_s=60,
            writable=("a:3181", "b:3181"),
            read_only=("c:3181",),
            lost=(LostBookie(f"d{EVIL}", NOW_MS, NOW_MS + 60_000),),
            held_because="",
            problems=self.problems,
            windows=self.windows,
            backlog=Backlog(
                counted_ms=NOW_MS,
                severities={Severity.CRITICAL: SeverityBacklog(2, 100, NOW_MS), Severity.DRAIN: SeverityBacklog(1)},
                healthy=SeverityBacklog(1),
                unreadable=1,
                parked={ParkReason.NO_LIVE_COPY: 1},
                locked=1,
            ),
            running=running,
            last=last,
            last_success_ms={RunKind.BOOKIES: NOW_MS},
            period_s={RunKind.BOOKIES: 86_400.0},
            schedules={RunKind.BOOKIES: "24h"},
            next_run_ms={RunKind.BOOKIES: NOW_MS + 1} if self.is_leader else {},
            paused_kinds=self.paused_kinds,
        )

    async def runs(self, limit: int = 50) -> Sequence[RunRecord]:
        self._connected()
        return sorted(self._runs.values(), key=lambda run: run.run_id, reverse=True)[:limit]

    async def refusal_reason(self, kind: RunKind) -> str:
        self._connected()
        return "there is no topology" if kind is RunKind.PLACEMENT and not self.is_with_topology else ""

    async def run(self, run_id: str) -> RunRecord:
        self._connected()
        if run_id not in self._runs:
            raise UnknownRunError(f"there is no run {run_id[:100]}")
        return self._runs[run_id]

    async def start_run(
        self, kind: RunKind, *, cause: RunCause, owner: str, is_dry_run: bool = False, options: Mapping[str, Any] = {}
    ) -> RunRecord:
        self._leads()
        self._connected()
        await self.may_start.wait()
        if refusal_reason := await self.refusal_reason(kind):
            raise RefusedError(refusal_reason)
        for run in self._runs.values():
            if run.kind is kind and not run.state.is_final:
                raise RunBusyError(kind, run.run_id, run.process)
        self.started += 1
        run = RunRecord(
            run_id=f"20261120T10{self.started:04d}Z-0a1b2c",
            kind=kind,
            cause=cause,
            owner=owner,
            process="auditor-0/17",
            state=RunState.RUNNING,
            is_dry_run=is_dry_run,
            phase="scan",
            done=1,
            total=4,
            started_ms=NOW_MS,
            updated_ms=NOW_MS + 1_000,
        )
        self.options[run.run_id] = options
        await self.put(run)
        return run

    async def cancel_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._move(run_id, RunState.CANCELLED, f"cancelled by {owner}")

    async def pause_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._move(run_id, RunState.PAUSED, f"paused by {owner}")

    async def resume_run(self, run_id: str, *, owner: str, via: str) -> RunRecord:
        return await self._move(run_id, RunState.RUNNING, "")

    async def pause_kind(self, kind: RunKind, *, owner: str, via: str) -> KindPause:
        self._connected()
        self.paused_kinds[kind] = KindPause(owner, NOW_MS + 3_600_000)
        return self.paused_kinds[kind]

    async def resume_kind(self, kind: RunKind, *, owner: str, via: str) -> None:
        self._connected()
        self.paused_kinds.pop(kind, None)

    async def wait_changed(self, run_id: str, seen: RunRecord) -> RunRecord:
        async with self.changed:
            await self.changed.wait_for(lambda: self._runs[run_id] != seen)
            return self._runs[run_id]

    async def put(self, run: RunRecord) -> None:
        """Set the present state of a run."""
        async with self.changed:
            self._runs[run.run_id] = run
            self.changed.notify_all()

    async def finish(self, run_id: str) -> None:
        """End a run with findings."""
        ended = replace(
            self._runs[run_id], state=RunState.DONE, verdict="findings", exit_code=1, finished_ms=NOW_MS + 5_000,
            findings={"critical": 2}, ledgers=10, detail=EVIL, report="reports/x/summary.json",
        )  # fmt: skip
        await self.put(ended)

    async def _move(self, run_id: str, state: RunState, detail: str) -> RunRecord:
        self._leads()
        run = await self.run(run_id)
        if run.state.is_final:
            raise RunEndedError(f"run {run_id} has already ended")
        await self.put(replace(run, state=state, detail=detail))
        return self._runs[run_id]

    def _leads(self) -> None:
        if not self.is_leader:
            raise NotLeaderError(self.leader)

    def _connected(self) -> None:
        if not self.is_connected:
            raise StoreUnavailableError("no answer from the store")


class TwinOperations:
    """A complete ``Operations`` in memory."""

    def __init__(self) -> None:
        self.is_on = True
        self.delay_s = 60
        self.tasks = [
            TaskView(LedgerId(3), (BookieId("a:3181"),), NOW_MS, TaskState.WAITING, "critical", 1, 4_096),
            TaskView(LedgerId(7), (BookieId("b:3181"),), 0, TaskState.IN_PROGRESS, "healthy"),
            TaskView(
                LedgerId(9), (BookieId("a:3181"), BookieId("b:3181")), NOW_MS, TaskState.PARKED, "no_live_copy", 0,
                None, ParkReason.NO_LIVE_COPY, EVIL,
            ),
        ]  # fmt: skip
        self.known = [
            BookieView(BookieId("a:3181"), BookieState.WRITABLE, "host-a", 3181, "bookie-grpc", 1_000, 400, 12),
            BookieView(BookieId("c:3181"), BookieState.READ_ONLY, "host-c", 3181, "bookie-rpc"),
            BookieView(BookieId(f"d{EVIL}"), BookieState.UNREGISTERED),
        ]

    async def list_tasks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> TaskPage:
        marks = await self.list_marks(limit, after, wanted)
        chosen = {task.ledger_id for task in marks.tasks}
        return TaskPage([task for task in self.tasks if task.ledger_id in chosen], marks.next_after)

    async def list_marks(self, limit: int, after: LedgerId | None = None, wanted: MarkFilter = ALL_MARKS) -> MarkPage:
        marks = [Task(task.ledger_id, tuple(task.missing), task.marked_ms, 0) for task in self.tasks]
        left = [mark for mark in marks if wanted.matches(mark) and (after is None or mark.ledger_id > after)]
        page = left[:limit]
        return MarkPage(page, page[-1].ledger_id if len(left) > limit else None)

    async def is_any_marked(self) -> bool:
        return bool(self.tasks)

    async def bookies(self) -> Sequence[BookieView]:
        return self.known

    async def is_recovery_enabled(self) -> bool:
        return self.is_on

    async def set_recovery(self, *, is_on: bool) -> None:
        self.is_on = is_on

    async def lost_bookie_delay_s(self) -> int:
        return self.delay_s

    async def set_lost_bookie_delay_s(self, seconds: int) -> None:
        if not 0 <= seconds <= DELAY_S_MAX:
            raise InvalidDelayError(f"not a delay in seconds: {seconds}")
        self.delay_s = seconds


class TwinUpkeep:
    """A complete ``Upkeep`` over a cluster in memory: ``tests.worlds.commands.CommandCluster``."""

    def __init__(self) -> None:
        self.cluster = CommandCluster()
        self.cluster.clock = ManualClock()
        self.is_filled = False
        self.long = SharedLongWork(ManualClock())

    async def run(self, work: Work[T]) -> T:
        await self.fill()
        async with self.cluster.connected("") as client:
            return await work(client)

    async def run_long(
        self, key: Hashable, work: Work[Document], circumstances: Work[Hashable] | None = None
    ) -> Document:
        if circumstances is None:
            return await self.long.result(key, lambda: self.run(work))
        return await self.long.result(key, lambda: self.run(work), lambda: self.run(circumstances))

    async def cancel_matching(self, is_meant: Callable[[Hashable], bool]) -> None:
        await self.long.cancel_matching(is_meant)

    async def progress(self) -> Document:
        return await self.run(self._progressed)

    async def cluster_status(self) -> Document:
        return await self.run(self._status)

    async def _progressed(self, client: ClusterClient) -> Document:
        return progress_document(*await CachedRepairProgress(make_repair_watch(client), ManualClock()).observe())

    async def _status(self, client: ClusterClient) -> Document:
        return await cluster_status(
            client, *await CachedRepairProgress(make_repair_watch(client), ManualClock()).observe()
        )

    async def fill(self) -> None:
        """Create the cluster, once."""
        if not self.is_filled:
            self.is_filled = True
            await self.cluster.fill()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer from the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The name of the problem that it reports."""
        assert self.headers["Content-Type"].startswith("application/problem+json")
        jsonschema.validate(self.json, dict(SCHEMAS["Problem"]))
        assert self.json["status"] == self.status
        return str(self.json["type"]).removeprefix("urn:bkheal:problem:")


@dataclass(slots=True)
class ApiWorld:
    """A running API and its service."""

    api: HttpApi
    control: TwinControl
    operations: TwinOperations
    upkeep: TwinUpkeep
    clock: ManualClock
    session: aiohttp.ClientSession
    url: str
    tokens: Mapping[Role, NewToken]
    tokens_file: Path

    async def ask(
        self, method: str, path: str, *, token: str | None = None, headers: Mapping[str, str] = {}, **options: Any
    ) -> Reply:
        """Send one request, without following redirects."""
        sent = dict(headers)
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method, self.url + path, headers=sent, allow_redirects=False, **options
        ) as response:
            return Reply(response.status, response.headers.copy(), await response.read())

    async def operate(self, method: str, path: str, **options: Any) -> Reply:
        """Send one request with every permission."""
        return await self.ask(method, path, token=self.tokens[Role.ADMINISTER].token, **options)

    async def start(self, kind: RunKind = RunKind.BOOKIES) -> str:
        """Begin a run and return its id."""
        reply = await self.operate("POST", "/api/v1/runs", json={"kind": kind.value})
        assert reply.status == 202
        return str(reply.json["run"]["run_id"])


def render(accept: str, accept_encoding: str) -> Exposition:
    return Exposition((("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),), b"up 1\n")


def settings_in(directory: Path, **changes: Any) -> tuple[ApiSettings, Mapping[Role, NewToken]]:
    """Settings with free ports and two tokens."""
    tokens = {role: make_token(f"somebody-who-may-{role.value}", role) for role in Role}
    tokens_file = directory / "tokens"
    tokens_file.write_text("# tokens\n" + "".join(f"{made.line}\n" for made in tokens.values()))
    settings = ApiSettings(
        report_dir=directory / "reports", http_port=0, grpc_port=0, tokens_file=tokens_file, requests_per_second=1e6
    )
    return replace(settings, **changes), tokens


@asynccontextmanager
async def running(
    directory: Path,
    *,
    connector: aiohttp.BaseConnector | None = None,
    peers: PeerReports | None = None,
    **changes: Any,
) -> AsyncIterator[ApiWorld]:
    """Run an API during the block."""
    settings, tokens = settings_in(directory, **changes)
    control, operations, clock, upkeep = TwinControl(), TwinOperations(), ManualClock(), TwinUpkeep()
    await upkeep.fill()
    api = HttpApi(control, operations, settings, clock, upkeep=upkeep, metrics=render, peers=peers)
    await api.start()
    scheme = "http" if settings.tls is None else "https"
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"{scheme}://127.0.0.1:{api.port}"
            assert settings.tokens_file is not None
            yield ApiWorld(api, control, operations, upkeep, clock, session, url, tokens, settings.tokens_file)
    finally:
        await api.stop()
