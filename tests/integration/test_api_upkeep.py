"""Operators' requests on a real auditor and a real cluster, through the command line with ``--at``, and the doctor."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from auditor.api import control_pb2 as pb
from auditor.api import control_pb2_grpc as rpc
from bookie.client.bookkeeper import LedgerOptions
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import BookieId
from tests.deadlines import STATE_S
from tests.integration.auditors import AuditorProcess, when
from tests.integration.clusters import connected, start_cluster
from tests.integration.commands import Ended, started

pytestmark = pytest.mark.integration


@pytest.mark.long  # test_api_operations.py and test_at_commands.py have each of these requests
async def test_operators_work_through_an_auditor_that_reconnects(tmp_path: Path) -> None:
    async with await start_cluster(tmp_path, 2) as cluster:
        options = ("--no-ui-enabled", "--allow-anonymous-write")
        auditor = await AuditorProcess(cluster, tmp_path, "auditor", *options).ready()
        bookies = [bookie.bookie_id for bookie in cluster.bookies]

        async def call(*words: str, uri: str | None = None) -> Ended:
            where = () if uri else ("--at", auditor.base)
            return await asyncio.to_thread(started, uri, *words, *where, "--output", "json")

        async def document(*words: str, uri: str | None = None) -> Any:
            ended = await call(*words, uri=uri)
            assert ended.returncode == ExitCode.OK, ended.stderr
            return json.loads(ended.stdout)

        async with auditor.process, await connected(cluster) as client:
            async with await client.create_ledger(LedgerOptions(2, 2, 2)) as writer:
                await writer.append(b"entry")
            assert (await call("ok-to-stop", *bookies)).returncode == ExitCode.FAILED
            assert (await document("recovery", "delay", "600"))["before_seconds"] == 0
            assert await client.ports.tasks.switches.lost_bookie_delay_s() == 600
            (change,) = (await document("changes", uri=cluster.metadata_uri))["items"]
            assert (change["by"], change["via"], change["action"]) == ("anonymous", "http", "recovery delay")

            direct, there = await document("status", uri=cluster.metadata_uri), await document("status")
            assert there.keys() == direct.keys()
            for name in ("bookies", "auditor", "held_because", "maintenance", "running"):
                assert there[name] == direct[name]
            assert (await document("underreplicated", "list"))["items"] == []

            window = await document("maintenance", "start", bookies[0], "--note", "disk")
            listed = await document("maintenance", "list", uri=cluster.metadata_uri)
            assert [(each["target"], each["until"]) for each in listed["items"]] == [(bookies[0], window["until"])]
            assert (await document("maintenance", "end", bookies[0]))["was_open"] is True
            left = await call("drain", "status", bookies[0])
            assert (left.returncode, json.loads(left.stdout)["ledgers_left"]) == (ExitCode.FAILED, 1)
            assert (await document("report", "list"))["items"] == []

            async with grpc.aio.insecure_channel(auditor.grpc_address) as channel:
                stub = rpc.AuditorServiceStub(channel)  # type: ignore[no-untyped-call]
                run = await stub.StartRun(pb.StartRunRequest(kind=pb.RUN_KIND_BOOKIES, is_dry_run=True))
                await stub.CancelRun(pb.ChangeRunRequest(run_id=run.run_id))
            recorded = json.loads((await auditor.get("/api/v1/changes?limit=2"))[1])["items"]
            assert [(each["via"], each["action"], each["detail"]) for each in reversed(recorded)] == [
                ("grpc", "run start", f"{run.run_id} bookies dry run"),
                ("grpc", "run cancel", f"{run.run_id} bookies"),
            ]

            cluster.zookeeper.kill()
            await auditor.served.until_status("/readyz", 503)
            asked = asyncio.create_task(auditor.get("/api/v1/recovery"))  # waits up to its deadline for the connection
            await cluster.zookeeper.restart()
            assert (await asked)[0] in (200, 503)

            async def answers() -> bool:
                return (await auditor.get("/api/v1/recovery"))[0] == 200

            await when(answers)
            diagnosis = await call("doctor", uri=cluster.metadata_uri)
            rows = {(row["check"], row["target"]): row["state"] for row in json.loads(diagnosis.stdout)["checks"]}
            assert set(rows.values()) <= {"ok", "warning"}, rows
            assert all(rows["bookie", BookieId(bookie)] == "ok" for bookie in bookies)
            assert [state for (check, _), state in rows.items() if check == "permission"] == ["ok"] * 6
            assert await auditor.process.stop(STATE_S) == 0
