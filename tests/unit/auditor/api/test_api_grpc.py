"""The gRPC API over a real socket: every method, its permitted callers, health, and the limits of watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from auditor.api import control_pb2 as pb
from auditor.api import control_pb2_grpc as rpc
from auditor.api.grpc import server
from auditor.api.grpc.messages import KINDS, STATES
from auditor.api.grpc.server import LIVENESS, READINESS, GrpcApi
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.model.ids import BookieId
from bookie.model.run import RunKind, RunState
from bookie.runtime.access.access import peer_address
from bookie.runtime.access.tokens import Role
from tests.deadlines import STATE_S
from tests.worlds.api import EVIL, NOW_MS, TwinControl, settings_in
from tests.worlds.clocks import ManualClock

NONE: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class GrpcWorld:
    """A running API and a channel to it."""

    api: GrpcApi
    control: TwinControl
    clock: ManualClock
    channel: grpc.aio.Channel
    stub: Any
    read: tuple[tuple[str, str], ...]
    operate: tuple[tuple[str, str], ...]


@asynccontextmanager
async def serving(directory: Path, **changes: Any) -> AsyncIterator[GrpcWorld]:
    settings, tokens = settings_in(directory, **changes)
    control, clock = TwinControl(), ManualClock()
    api = GrpcApi(control, settings, clock)
    await api.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{api.port}")
    read, operate = ((("authorization", f"Bearer {tokens[role].token}"),) for role in (Role.READ, Role.OPERATE))
    stub: Any = rpc.AuditorServiceStub(channel)  # type: ignore[no-untyped-call]
    try:
        async with asyncio.timeout(STATE_S):
            yield GrpcWorld(api, control, clock, channel, stub, read, operate)
    finally:
        await channel.close(None)
        await api.stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[GrpcWorld]:
    async with serving(tmp_path) as made:
        yield made


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


def trailing(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    metadata: Any = error.trailing_metadata()  # the type stubs do not declare it as a sequence
    return {str(key): value for key, value in metadata}


async def test_run_lifecycle_from_start_to_end(world: GrpcWorld) -> None:
    request = pb.StartRunRequest(kind=pb.RUN_KIND_REPLICAS, is_dry_run=True)
    run = await world.stub.StartRun(request, metadata=world.operate)
    assert (run.kind, run.state, run.is_dry_run) == (pb.RUN_KIND_REPLICAS, pb.RUN_STATE_RUNNING, True)
    assert (run.cause, run.owner) == ("grpc", "somebody-who-may-operate")
    assert run.started.ToMilliseconds() == NOW_MS
    assert not run.HasField("exit_code")
    assert not run.HasField("finished")
    change = pb.ChangeRunRequest(run_id=run.run_id)
    assert (await world.stub.PauseRun(change, metadata=world.operate)).state == pb.RUN_STATE_PAUSED
    assert (await world.stub.ResumeRun(change, metadata=world.operate)).state == pb.RUN_STATE_RUNNING
    await world.control.finish(run.run_id)
    ended = await world.stub.GetRun(pb.GetRunRequest(run_id=run.run_id))
    assert (ended.state, ended.exit_code, dict(ended.findings)) == (pb.RUN_STATE_DONE, 1, {"critical": 2})
    assert ended.detail == EVIL
    over = await refusal(world.stub.CancelRun(change, metadata=world.operate))
    assert over.code() is grpc.StatusCode.FAILED_PRECONDITION
    listed = await world.stub.ListRuns(pb.ListRunsRequest())
    assert [found.run_id for found in listed.runs] == [run.run_id]


async def test_a_run_that_the_cluster_does_not_allow_is_refused(world: GrpcWorld) -> None:
    world.control.is_with_topology = False
    request = pb.StartRunRequest(kind=pb.RUN_KIND_PLACEMENT)
    refused = await refusal(world.stub.StartRun(request, metadata=world.operate))
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert not (await world.stub.ListRuns(pb.ListRunsRequest())).runs


async def test_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    async with serving(tmp_path) as world, AsyncExitStack() as stack:

        async def first_byte() -> bytes:
            """Connect, and return the first byte that an accepted client receives without a request."""
            reader, writer = await asyncio.open_connection("127.0.0.1", world.api.port)
            stack.callback(writer.close)
            with suppress(ConnectionResetError):
                return await reader.read(1)
            return b""

        assert [await first_byte() != b"" for _ in range(5)] == [True] * 3 + [False] * 2


async def test_status_is_that_of_the_service(world: GrpcWorld) -> None:
    status = await world.stub.GetStatus(pb.GetStatusRequest())
    assert (status.version, status.is_leader, status.underreplicated_ledgers) == ("1.2.3", True, 5)
    assert dict(status.underreplicated_by_severity) == {"critical": 2, "drain": 1}
    assert list(status.read_only) == ["c:3181"]


def test_every_kind_and_state_has_a_unique_number() -> None:
    assert set(KINDS) == set(RunKind)
    assert set(STATES) == set(RunState)
    assert len(set(KINDS.values())) == len(KINDS)
    assert len(set(STATES.values())) == len(STATES)


async def test_a_watch_returns_each_change_until_the_end(world: GrpcWorld) -> None:
    run = await world.stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES), metadata=world.operate)
    seen = []
    async for shown in world.stub.WatchRun(pb.GetRunRequest(run_id=run.run_id)):
        seen.append(shown.state)
        if shown.state == pb.RUN_STATE_RUNNING:
            await world.control.pause_run(run.run_id, owner="x", via="http")
        elif shown.state == pb.RUN_STATE_PAUSED:
            await world.control.finish(run.run_id)
    assert seen == [pb.RUN_STATE_RUNNING, pb.RUN_STATE_PAUSED, pb.RUN_STATE_DONE]


async def test_watchers_are_bounded_and_a_cancelled_one_frees_its_place(tmp_path: Path) -> None:
    async with serving(tmp_path, watchers_max=1) as world:
        run = await world.stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES), metadata=world.operate)
        request = pb.GetRunRequest(run_id=run.run_id)
        first = world.stub.WatchRun(request)
        await first.read()
        full = await refusal(world.stub.WatchRun(request).read())
        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
        while (shown := await first_of(world.stub.WatchRun(request))) is None:
            pass  # the server notices the end of the stream a moment later
        assert shown.run_id == run.run_id


async def first_of(stream: Any) -> pb.Run | None:
    """Return the first message of a stream, or None if there are too many streams."""
    try:
        shown: pb.Run = await stream.read()
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return None
    stream.cancel()
    return shown


async def test_health_watches_do_not_use_up_request_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditor.api.grpc.server._REQUESTS_AT_ONCE", 2)
    monkeypatch.setattr("bookie.wire.health.WATCHES_MAX", 20)
    async with serving(tmp_path, watchers_max=1) as world:
        host = f"127.0.0.1:{world.api.port}"
        channels = [grpc.aio.insecure_channel(host, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(12)]
        watches = [
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            for channel in channels
            for _ in range(2)
        ]
        first = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        assert sum(isinstance(one, grpc.aio.AioRpcError) for one in first) == 4
        assert (await world.stub.GetStatus(pb.GetStatusRequest())).version
        for channel in channels:
            await channel.close(None)


async def test_stopping_ends_streams(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        run = await world.stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES), metadata=world.operate)
        stream = world.stub.WatchRun(pb.GetRunRequest(run_id=run.run_id))
        await stream.read()
        await world.api.stop()
        await refusal(stream.read())


CHANGES = ("StartRun", "CancelRun", "PauseRun", "ResumeRun")
READS = ("GetStatus", "ListRuns", "GetRun")
REQUESTS: dict[str, Any] = {
    "StartRun": pb.StartRunRequest(kind=pb.RUN_KIND_PLACEMENT),
    "GetStatus": pb.GetStatusRequest(),
    "ListRuns": pb.ListRunsRequest(),
    "GetRun": pb.GetRunRequest(run_id="none"),
}


@pytest.mark.parametrize("is_open", [True, False])
async def test_each_method_admits_only_callers_with_its_role(tmp_path: Path, is_open: bool) -> None:
    async with serving(tmp_path, allow_anonymous_read=is_open) as world:
        callers: dict[str, tuple[tuple[str, str], ...]] = {
            "anonymous": NONE,
            "read": world.read,
            "operate": world.operate,
            "unknown": (("authorization", "Bearer nonsense"),),
            "no bearer": (("authorization", "nonsense"),),
        }
        for method in (*CHANGES, *READS):
            for caller, metadata in callers.items():
                code = await code_of(world, method, metadata)
                if caller in ("unknown", "no bearer"):
                    expected: grpc.StatusCode | None = grpc.StatusCode.UNAUTHENTICATED
                elif caller == "anonymous" and (method in CHANGES or not is_open):
                    expected = grpc.StatusCode.UNAUTHENTICATED
                elif caller == "read" and method in CHANGES:
                    expected = grpc.StatusCode.PERMISSION_DENIED
                else:
                    expected = None
                refused = code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                assert (code if refused else None) is expected, (method, caller, code)
        assert world.control.started == 1
        watch = await refusal(world.stub.WatchRun(REQUESTS["GetRun"], metadata=callers["unknown"]).read())
        assert watch.code() is grpc.StatusCode.UNAUTHENTICATED


async def code_of(world: GrpcWorld, method: str, metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode:
    request = REQUESTS.get(method, pb.ChangeRunRequest(run_id="none"))
    try:
        await getattr(world.stub, method)(request, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_errors_contain_advice(world: GrpcWorld) -> None:
    start = pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES)
    run = await world.stub.StartRun(start, metadata=world.operate)
    busy = await refusal(world.stub.StartRun(start, metadata=world.operate))
    assert busy.code() is grpc.StatusCode.ALREADY_EXISTS
    assert trailing(busy)["run-id"] == run.run_id
    wrong = await refusal(world.stub.StartRun(pb.StartRunRequest(), metadata=world.operate))
    assert wrong.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "bookies, placement, replicas" in str(wrong.details())
    many = await refusal(world.stub.ListRuns(pb.ListRunsRequest(limit=1000)))
    assert many.code() is grpc.StatusCode.INVALID_ARGUMENT
    unknown = await refusal(world.stub.GetRun(pb.GetRunRequest(run_id="none")))
    assert unknown.code() is grpc.StatusCode.NOT_FOUND
    world.control.is_leader, world.control.leader = False, "auditor-1:3181"
    follower = await refusal(world.stub.CancelRun(pb.ChangeRunRequest(run_id=run.run_id), metadata=world.operate))
    assert follower.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert trailing(follower)["leader"] == "auditor-1:3181"
    world.control.is_connected = False
    gone = await refusal(world.stub.ListRuns(pb.ListRunsRequest()))
    assert gone.code() is grpc.StatusCode.UNAVAILABLE


async def test_repeated_request_with_the_same_key_starts_only_one_run(world: GrpcWorld) -> None:
    request = pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES, idempotency_key="7d9f")
    first = await world.stub.StartRun(request, metadata=world.operate)
    again = await world.stub.StartRun(request, metadata=world.operate)
    assert (again.run_id, world.control.started) == (first.run_id, 1)
    request.is_dry_run = True
    reused = await refusal(world.stub.StartRun(request, metadata=world.operate))
    assert reused.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_limits(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_per_second=2, request_deadline_s=0.05) as world:
        for _ in range(4):
            await world.stub.GetStatus(pb.GetStatusRequest())
        refused = await refusal(world.stub.GetStatus(pb.GetStatusRequest()))
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert trailing(refused)["retry-after"] == "1"
        large = pb.GetRunRequest(run_id="x" * 100_000)
        assert (await refusal(world.stub.GetRun(large))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        world.control.may_start.clear()
        stuck = await refusal(world.stub.StartRun(REQUESTS["StartRun"], metadata=world.operate))
        assert stuck.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_health_checks_distinguish_liveness_from_readiness(world: GrpcWorld) -> None:
    serving_, not_serving = (health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING)
    stub = health_pb2_grpc.HealthStub(world.channel)

    async def status(service: str) -> int:
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

    async def until_readiness_is(expected: int) -> None:
        while await status(READINESS) != expected:
            world.clock.now_s += 1

    assert [await status(service) for service in ("", LIVENESS, READINESS)] == [serving_] * 3
    world.control.is_connected = False
    await until_readiness_is(not_serving)
    assert [await status(service) for service in ("", LIVENESS, READINESS)] == [serving_, serving_, not_serving]
    world.control.is_connected = True
    await until_readiness_is(serving_)
    world.control.problems = ("ZooKeeper denies it to write /bkheal",)
    await until_readiness_is(not_serving)
    await world.api.report_stopping()
    assert [await status(service) for service in ("", LIVENESS, READINESS)] == [not_serving] * 3
    assert (await world.stub.GetStatus(pb.GetStatusRequest())).version == "1.2.3"


async def test_changing_requests_are_logged(world: GrpcWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bkheal.audit")
    run = await world.stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES), metadata=world.operate)
    await refusal(world.stub.PauseRun(pb.ChangeRunRequest(run_id=run.run_id)))
    await world.stub.GetStatus(pb.GetStatusRequest())
    kept = [record.__dict__ for record in caplog.records if record.name == "bkheal.audit"]
    names = ("api", "action", "who", "address", "run_id", "outcome")
    assert [[record.get(name) for name in names] for record in kept] == [
        ["grpc", "start_run", "somebody-who-may-operate", "127.0.0.1", run.run_id, "ok"],
        ["grpc", "pause_run", "anonymous", "127.0.0.1", None, "unauthenticated"],
    ]


def test_address_is_parsed_from_a_grpc_peer() -> None:
    assert peer_address("ipv4:10.0.0.1:5123") == "10.0.0.1"
    assert peer_address("ipv6:%5B::1%5D:5123") == "::1"
    assert peer_address("ipv6:[2001:db8::1]:5123") == "2001:db8::1"
    assert peer_address("unix:") == "unix:"


async def test_a_run_is_started_with_options_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        options = pb.RunOptions(sample=0.5, ledger_min=0, ledger_max=9)
        request = pb.StartRunRequest(kind=pb.RUN_KIND_REPLICAS, options=options)
        run = await world.stub.StartRun(request, metadata=world.operate)
        assert world.control.options[run.run_id] == {"ledger_min": 0, "ledger_max": 9, "sample": 0.5}
        for kind, wrong in (
            (pb.RUN_KIND_BOOKIES, options),
            (pb.RUN_KIND_PLACEMENT, pb.RunOptions(sample=0.5)),
            (pb.RUN_KIND_REPLICAS, pb.RunOptions(sample=0)),
            (pb.RUN_KIND_REPLICAS, pb.RunOptions(ledger_min=9, ledger_max=8)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await world.stub.StartRun(pb.StartRunRequest(kind=kind, options=wrong), metadata=world.operate)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert world.control.started == 1


async def test_pauses_and_maintenance_windows_are_shown_with_their_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        await world.control.pause_kind(RunKind.REPLICAS, owner="me", via="http")
        (pause,) = (await world.stub.GetStatus(pb.GetStatusRequest(), metadata=world.read)).pauses
        world.control.windows = (
            MaintenanceWindow("rack:/r1", (BookieId("a"),), "me", NOW_MS, NOW_MS + 9_000, True, "switch"),
        )
        (window,) = (await world.stub.GetStatus(pb.GetStatusRequest(), metadata=world.read)).maintenance
        assert (window.target, list(window.bookies), window.by, window.until.seconds, window.hold_critical) == (
            "rack:/r1", ["a"], "me", NOW_MS // 1000 + 9, True,
        )  # fmt: skip
        assert (pause.kind, pause.owner, pause.until.seconds) == (pb.RUN_KIND_REPLICAS, "me", NOW_MS // 1000 + 3600)
        run = await world.stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES), metadata=world.operate)
        assert not run.HasField("paused_until")
        record = await world.control.run(run.run_id)
        await world.control.put(replace(record, state=RunState.PAUSED, pause_ends_ms=NOW_MS + 5_000))
        shown = await world.stub.GetRun(pb.GetRunRequest(run_id=run.run_id), metadata=world.read)
        assert shown.paused_until.seconds == NOW_MS // 1000 + 5
