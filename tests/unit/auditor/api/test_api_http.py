"""Every path of the HTTP API over a real socket; each answer matches its description in OpenAPI."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from auditor.api.http import cluster_routes
from bookie.model.run import RunKind, RunRecord, RunState
from bookie.runtime.access.tokens import Role
from tests.deadlines import STATE_S
from tests.worlds.api import EVIL, ApiWorld, Reply, running


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with running(tmp_path) as made:
        yield made


def closed(schema: Any) -> Any:
    """Return the schema with additional members forbidden at every level."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


async def check(world: ApiWorld, method: str, path: str, reply: Reply) -> None:
    """Check that the answer to ``method path`` matches its description exactly."""
    description = (await world.ask("GET", "/openapi.json")).json
    bare = path.partition("?")[0]
    patterns = {known: re.sub(r"\{[^}]+\}", "[^/]+", known) for known in description["paths"]}
    [known] = sorted((known for known, pattern in patterns.items() if re.fullmatch(pattern, bare)), key=len)[:1]
    responses = description["paths"][known][method.lower()]["responses"]
    response = responses.get(str(reply.status)) or responses["default"]
    content = response.get("content", {})
    kind = reply.headers.get("Content-Type", "").partition(";")[0]
    assert not content or kind in content
    schema = content.get(kind, {}).get("schema")
    if schema is not None:
        components = description["components"]
        if kind == "application/json" and schema["$ref"] != "#/components/schemas/Description":
            components = closed(components)
        jsonschema.Draft202012Validator({**schema, "components": components}).validate(reply.json)


async def good(world: ApiWorld, method: str, path: str, **options: Any) -> Reply:
    """Send a request as an operator, expect success, and check the answer against the description."""
    reply = await world.operate(method, path, **options)
    assert reply.status < 400, reply.body
    await check(world, method, path, reply)
    return reply


async def test_status_document_is_complete(world: ApiWorld) -> None:
    run_id = await world.start()
    await world.control.finish(run_id)
    await world.start(RunKind.REPLICAS)
    document = (await good(world, "GET", "/api/v1/status")).json
    assert (document["apiVersion"], document["kind"]) == ("bkheal/v1", "ServiceStatus")
    assert document["bookies"]["writable"] == ["a:3181", "b:3181"]
    assert document["bookies"]["lost"][0]["audit_due"] == "2023-11-14T22:14:20.000Z"
    assert document["backlog"]["ledgers"] == 5
    assert document["backlog"]["severities"]["critical"] == {
        "ledgers": 2,
        "bytes_estimate": 100,
        "oldest": "2023-11-14T22:13:20.000Z",
    }
    assert document["checks"]["bookies"]["last"]["verdict"] == "findings"
    assert document["checks"]["bookies"]["schedule"] == "24h"
    assert document["checks"]["placement"] == {
        "schedule": None,
        "period_seconds": None,
        "next_run": None,
        "last_success": None,
        "paused": False,
        "paused_until": None,
        "paused_by": None,
        "last": None,
    }
    assert [run["kind"] for run in document["running"]] == ["replicas"]


async def test_html_page_escapes_names_and_loads_nothing(world: ApiWorld) -> None:
    run_id = await world.start()
    await world.control.finish(run_id)
    reply = await good(world, "GET", "/status")
    text = reply.body.decode()
    assert f'href="reports/{run_id}/">findings</a>' in text
    assert EVIL not in text
    assert text.count("&lt;script&gt;") >= 3
    assert "script-src" not in reply.headers["Content-Security-Policy"]
    assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert "<script" not in text
    root = await good(world, "GET", "/")
    assert (root.status, root.headers["Location"]) == (302, "/status")


async def test_a_browser_gets_a_refusal_as_a_page_and_a_program_as_a_document(world: ApiWorld) -> None:
    opened = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    path = "/reports/20261120T101500Z-0a1b2c/<script>"
    page = await world.ask("GET", path, headers=opened)
    assert (page.status, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    text = page.body.decode()
    assert "a run that a command started leaves its report" in text
    assert '<a href="../../status">Status</a>' in text
    assert "<script" not in text
    assert "style-src 'sha256-" in page.headers["Content-Security-Policy"]
    assert (await world.ask("GET", "/nothing", headers=opened)).body.decode().count('<a href="status">') == 1
    for headers in ({}, {"Accept": "application/json"}):
        assert (await world.ask("GET", path, headers=headers)).headers["Content-Type"].startswith("application/problem")
    refused = await world.ask("POST", "/api/v1/runs", headers=opened, json={"kind": "bookies"})
    assert (refused.status, refused.headers["Content-Type"]) == (401, "application/problem+json; charset=utf-8")


async def test_a_follower_shows_schedules_without_times(world: ApiWorld) -> None:
    world.control.is_leader = False
    checks = (await good(world, "GET", "/api/v1/status")).json["checks"]
    assert (checks["bookies"]["schedule"], checks["bookies"]["next_run"]) == ("24h", None)
    page = (await good(world, "GET", "/status")).body.decode()
    assert '<td>bookies</td><td><span class="time">24h on the leader, next time unknown here</span>' in page
    assert '<td>placement</td><td><span class="time">not scheduled</span>' in page
    world.control.leader = ""
    page = (await good(world, "GET", "/status")).body.decode()
    assert '<td>bookies</td><td><span class="time">24h once an auditor leads</span>' in page


async def test_status_page_works_without_the_store(world: ApiWorld) -> None:
    world.control.is_connected = False
    assert b"no connection" in (await good(world, "GET", "/status")).body


async def test_run_lifecycle_from_start_to_end(world: ApiWorld) -> None:
    begun = await good(world, "POST", "/api/v1/runs", json={"kind": "bookies", "dry_run": True})
    run = begun.json["run"]
    assert begun.status == 202
    assert begun.headers["Location"] == f"/api/v1/runs/{run['run_id']}"
    assert (run["kind"], run["dry_run"], run["cause"]) == ("bookies", True, "http")
    assert run["owner"] == "somebody-who-may-administer"
    path = begun.headers["Location"]
    assert (await good(world, "GET", path)).json["run"] == run
    for method in ("PUT", "POST"):
        for name, state in (("paused", RunState.PAUSED), ("running", RunState.RUNNING)):
            changed = await good(world, method, f"{path}/state/{name}")
            assert changed.json["run"]["state"] == state.value
    cancelled = await good(world, "PUT", f"{path}/state/cancelled")
    assert cancelled.json["run"]["detail"] == "cancelled by somebody-who-may-administer"
    again = await world.operate("PUT", f"{path}/state/cancelled")
    assert (again.status, again.problem) == (409, "run-over")


async def test_runs_are_listed_newest_first_by_kind_and_up_to_a_limit(world: ApiWorld) -> None:
    ids = [await world.start(kind) for kind in RunKind]
    listed = await good(world, "GET", "/api/v1/runs")
    assert [run["run_id"] for run in listed.json["items"]] == ids[::-1]
    assert len((await good(world, "GET", "/api/v1/runs?limit=2")).json["items"]) == 2
    placement = await good(world, "GET", "/api/v1/runs?kind=placement&limit=1")
    assert [run["run_id"] for run in placement.json["items"]] == [ids[1]]


async def test_second_run_of_a_kind_is_refused_with_the_id_of_the_first(world: ApiWorld) -> None:
    run_id = await world.start()
    busy = await world.operate("POST", "/api/v1/runs", json={"kind": "bookies"})
    assert (busy.status, busy.problem) == (409, "run-busy")
    assert busy.json["run_id"] == run_id
    assert run_id in busy.json["detail"]
    await check(world, "POST", "/api/v1/runs", busy)


async def test_a_placement_run_without_a_topology_is_refused(world: ApiWorld) -> None:
    world.control.is_with_topology = False
    refused = await world.operate("POST", "/api/v1/runs", json={"kind": "placement"})
    assert (refused.status, refused.problem) == (409, "refused")


async def test_a_follower_names_the_leader(world: ApiWorld) -> None:
    run_id = await world.start()
    world.control.is_leader, world.control.leader = False, "auditor-1:3181"
    for method, path, body in (
        ("POST", "/api/v1/runs", {"kind": "replicas"}),
        ("PUT", f"/api/v1/runs/{run_id}/state/paused", None),
        ("PUT", "/api/v1/autorecovery/trigger_audit", None),
    ):
        reply = await world.operate(method, path, json=body)
        assert (reply.status, reply.problem) == (503, "not-leader")
        assert reply.json["leader"] == "auditor-1:3181"
        assert reply.headers["Retry-After"] == "1"
    assert (await good(world, "GET", f"/api/v1/runs/{run_id}")).json["run"]["state"] == "running"


async def test_repeated_request_with_the_same_key_starts_only_one_run(world: ApiWorld) -> None:
    headers = {"Idempotency-Key": "7d9f"}
    first = await good(world, "POST", "/api/v1/runs", json={"kind": "bookies"}, headers=headers)
    await world.control.finish(first.json["run"]["run_id"])
    again = await good(world, "POST", "/api/v1/runs", json={"kind": "bookies"}, headers=headers)
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json["run"]["run_id"] == first.json["run"]["run_id"]
    assert again.json["run"]["state"] == "done"
    assert world.control.started == 1
    other = await world.operate("POST", "/api/v1/runs", json={"kind": "bookies", "dry_run": True}, headers=headers)
    assert (other.status, other.problem) == (422, "key-reused")
    wrong = await world.operate("POST", "/api/v1/runs", json={"kind": "bookies"}, headers={"Idempotency-Key": "a b"})
    assert (wrong.status, wrong.problem) == (400, "invalid-request")


async def test_failed_request_can_be_repeated_with_the_same_key(world: ApiWorld) -> None:
    headers = {"Idempotency-Key": "7d9f"}
    world.control.is_connected = False
    failed = await world.operate("POST", "/api/v1/runs", json={"kind": "bookies"}, headers=headers)
    assert (failed.status, failed.problem) == (503, "store-unavailable")
    world.control.is_connected = True
    await good(world, "POST", "/api/v1/runs", json={"kind": "bookies"}, headers=headers)


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b"", "not JSON"),
        (b"[]", "one JSON object"),
        (b"{", "not JSON"),
        (b'{"kind": "\\ud800"}', "not JSON"),
        (b'{"kind": "nonsense"}', "bookies, placement, replicas"),
        (b'{"kind": ["bookies"]}', "bookies, placement, replicas"),
        (b"{}", "kind must be"),
        (b'{"kind": "bookies", "dryrun": true}', "unknown field: dryrun"),
        (b'{"kind": "bookies", "sample": 0.5}', "a bookies run has no sample"),
        (b'{"kind": "replicas", "sample": 0}', "more than 0"),
        (b'{"kind": "replicas", "sample": "0.5"}', "sample must be a number"),
        (b'{"kind": "replicas", "ledger_min": -1}', "ledger_min must be 0 to"),
        (b'{"kind": "replicas", "ledger_min": 1.5}', "ledger_min must be a whole number"),
        (b'{"kind": "placement", "mark_misplaced": 1}', "true or false"),
        (b'{"kind": "bookies", "missing_share_max": 1}', "unknown field"),
        (b'{"kind": "bookies", "dry_run": "yes"}', "dry_run must be true or false"),
        (b"[" * 10_000, "not JSON"),
    ],
)
async def test_invalid_body_is_refused_with_the_reason(world: ApiWorld, body: bytes, reported: str) -> None:
    reply = await world.operate("POST", "/api/v1/runs", data=body, headers={"Content-Type": "application/json"})
    assert (reply.status, reply.problem) == (400, "invalid-request")
    assert reported in reply.json["detail"]
    assert world.control.started == 0


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/drains"])
async def test_body_with_a_wrong_content_encoding_is_refused(
    world: ApiWorld, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for encoding in ("gzip", "deflate"):
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding, "Connection": "close"}
        reply = await world.operate("POST", path, data=b'{"kind": "bookies"}', headers=headers)
        assert (reply.status, reply.problem) == (400, "invalid-request")
        assert "Content-Encoding" in reply.json["detail"]
        refused = await world.ask("POST", path, data=b'{"kind": "bookies"}', headers=headers)
        assert refused.status == 401
    assert world.control.started == 0
    assert "ERROR" not in {record.levelname for record in caplog.records}


async def test_client_that_disconnects_within_its_body_is_not_an_error(
    world: ApiWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bkheal.audit")
    _, writer = await asyncio.open_connection("127.0.0.1", world.api.port)
    head = "POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n"
    writer.write(f"{head}Authorization: Bearer {world.tokens[Role.OPERATE].token}\r\n\r\n{{".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with asyncio.timeout(STATE_S):
        while "bkheal.audit" not in {record.name for record in caplog.records}:  # noqa: ASYNC110  # no event for it
            await asyncio.sleep(0)
    assert {record.levelname for record in caplog.records if record.name != "bkheal.audit"} <= {"INFO"}
    [outcome] = [record.__dict__["outcome"] for record in caplog.records if record.name == "bkheal.audit"]
    assert outcome == "400"


async def test_empty_ledger_range_is_a_contradiction(world: ApiWorld) -> None:
    body = {"kind": "replicas", "ledger_min": 9, "ledger_max": 8}
    reply = await world.operate("POST", "/api/v1/runs", json=body)
    assert (reply.status, reply.problem) == (422, "contradiction")
    assert world.control.started == 0


async def test_unknown_state_is_not_checked_before_the_token(world: ApiWorld) -> None:
    assert (await world.ask("PUT", "/api/v1/runs/1/state/flying")).status == 401
    assert (await world.operate("PUT", "/api/v1/runs/1/state/flying")).status == 400


async def test_unknown_type_of_bookies_is_refused(world: ApiWorld) -> None:
    for wrong in ("type=AAA", "print_hostnames=yes"):
        assert (await world.ask("GET", f"/api/v1/bookie/list_bookies?{wrong}")).status == 400


async def test_form_does_not_start_a_run(world: ApiWorld) -> None:
    reply = await world.operate("POST", "/api/v1/runs", data={"kind": "bookies"})
    assert (reply.status, reply.problem) == (400, "invalid-request")
    assert world.control.started == 0


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/runs?limit=0",
        "/api/v1/runs?limit=201",
        "/api/v1/runs?limit=%D9%A3",
        "/api/v1/runs?kind=all",
        "/api/v1/runs?page=2",
        "/api/v1/underreplicated?limit=1001",
        "/api/v1/underreplicated?after=-1",
        "/api/v1/underreplicated?after=99999999999999999999",
        "/api/v1/underreplicated?bookie=a",
        "/api/v1/status?full=1",
        "/api/v1/bookies?type=ro",
        "/api/v1/reports?limit=501",
        "/api/v1/reports?after=..",
    ],
)
async def test_wrong_or_unknown_parameter_is_refused(world: ApiWorld, path: str) -> None:
    reply = await world.operate("GET", path)
    assert (reply.status, reply.problem) == (400, "invalid-request")
    await check(world, "GET", path, reply)


async def test_a_schedule_is_paused_for_a_time_and_resumed(world: ApiWorld) -> None:
    path = "/api/v1/schedules/replicas/state"
    paused = (await good(world, "PUT", f"{path}/paused")).json
    assert (paused["check"], paused["paused"], paused["paused_until"]) == ("replicas", True, "2023-11-14T23:13:20.000Z")
    check = (await good(world, "GET", "/api/v1/status")).json["checks"]["replicas"]
    assert (check["paused"], check["paused_until"], check["paused_by"]) == (
        True,
        paused["paused_until"],
        "somebody-who-may-administer",
    )
    page = await world.ask("GET", "/status")
    assert b"replicas (paused until 2023-11-14 23:13:20 UTC)" in page.body
    assert (await good(world, "PUT", f"{path}/running")).json["paused"] is False
    for wrong in (f"{path}/cancelled", "/api/v1/schedules/nonsense/state/paused"):
        assert (await world.operate("PUT", wrong)).status == 400


async def test_marked_ledgers_are_listed_in_pages(world: ApiWorld) -> None:
    first = (await good(world, "GET", "/api/v1/underreplicated?limit=2")).json
    assert [task["ledger_id"] for task in first["items"]] == [3, 7]
    assert (first["next_after"], first["total"]) == (7, 5), "the total is the one of the last count"
    assert first["counted"] == "2023-11-14T22:13:20.000Z"
    assert first["items"][0]["ledger_bytes"] == 4_096
    second = (await good(world, "GET", "/api/v1/underreplicated?limit=2&after=7")).json
    assert [task["ledger_id"] for task in second["items"]] == [9]
    assert second["next_after"] is None
    assert (second["items"][0]["park_reason"], second["items"][0]["detail"]) == ("no_live_copy", EVIL)
    missing = (await good(world, "GET", "/api/v1/underreplicated?missing=b:3181")).json
    assert [task["ledger_id"] for task in missing["items"]] == [7, 9]
    assert missing["total"] is None, "there is no count for a filter"


async def test_bookies_are_listed_with_state_address_and_space(world: ApiWorld) -> None:
    items = (await good(world, "GET", "/api/v1/bookies")).json["items"]
    assert [item["state"] for item in items] == ["writable", "read_only", "lost"]
    assert (items[0]["host"], items[0]["disk_free_bytes"], items[1]["disk_free_bytes"]) == ("host-a", 400, None)
    assert items[2]["first_seen_down"] == "2023-11-14T22:13:20.000Z"


async def test_apaches_paths_return_apaches_formats(world: ApiWorld) -> None:
    root = "/api/v1/autorecovery"
    assert (await good(world, "GET", f"{root}/status")).json == {"enabled": True}
    assert (await good(world, "PUT", f"{root}/status?enabled=false")).json == {"enabled": False}
    assert world.operations.is_on is False
    assert (await good(world, "PUT", f"{root}/status?enabled=TRUE")).json == {"enabled": True}
    listing = f"{root}/list_under_replicated_ledger"
    assert (await good(world, "GET", listing)).json == [3, 7, 9]
    assert (await good(world, "GET", f"{listing}?missingreplica=a:3181")).json == [3, 9]
    both = f"{listing}?missingreplica=a:3181&excludingmissingreplica=b:3181"
    assert (await good(world, "GET", both)).json == [3]
    assert (await good(world, "GET", f"{listing}?missingreplica=b:3181&printmissingreplica=true")).json == {
        "7": ["b:3181"],
        "9": ["a:3181", "b:3181"],
    }
    assert (await good(world, "GET", f"{root}/who_is_auditor")).body == b"Auditor: auditor-0:3181"
    for _ in range(2):  # the second time, a run is already active
        assert (await good(world, "PUT", f"{root}/trigger_audit")).body == b"Success trigger audit."
    assert world.control.started == 1
    delay = f"{root}/lost_bookie_recovery_delay"
    assert (await good(world, "GET", delay)).body == b"lostBookieRecoveryDelay value: 60"
    curl = {"Content-Type": "application/x-www-form-urlencoded"}  # the content type that curl -d sends
    changed = await good(world, "PUT", delay, data=b'{"delay_seconds": 120}', headers=curl)
    assert changed.body == b"Success set lostBookieRecoveryDelay to 120"
    assert world.operations.delay_s == 120
    assert (await good(world, "GET", "/api/v1/bookie/cluster_info")).json == {
        "auditorElected": True,
        "auditorId": "auditor-0:3181",
        "clusterUnderReplicated": True,
        "ledgerReplicationEnabled": True,
        "totalBookiesCount": 3,
        "writableBookiesCount": 1,
        "readonlyBookiesCount": 1,
        "unavailableBookiesCount": 1,
    }
    assert (await good(world, "GET", "/api/v1/bookie/list_bookies")).json == {"a:3181": None}
    named = await good(world, "GET", "/api/v1/bookie/list_bookies?type=ro&print_hostnames=true")
    assert named.json == {"c:3181": "host-c"}


async def test_apaches_list_links_to_its_next_page(world: ApiWorld) -> None:
    listing = "/api/v1/autorecovery/list_under_replicated_ledger"
    first = await good(world, "GET", f"{listing}?limit=1&missingreplica=a:3181")
    assert first.json == [3]
    target = first.headers["Link"].removeprefix("<").removesuffix('>; rel="next"')
    second = await good(world, "GET", target)
    assert (second.json, "Link" in second.headers) == ([9], False)
    reply = await world.operate("GET", f"{listing}?limit=10001")
    assert (reply.status, reply.problem) == (400, "invalid-request")


async def test_apaches_paths_with_a_trailing_slash_work(world: ApiWorld) -> None:
    reply = await world.ask("GET", "/api/v1/autorecovery/list_under_replicated_ledger/?missingreplica=a:3181")
    assert (reply.status, reply.json) == (200, [3, 9])


async def test_apaches_paths_without_a_backlog_or_a_leader(world: ApiWorld) -> None:
    world.operations.tasks, world.control.leader = [], ""
    for path in ("list_under_replicated_ledger", "who_is_auditor"):
        reply = await world.ask("GET", f"/api/v1/autorecovery/{path}")
        assert (reply.status, reply.problem) == (404, "not-found")
    info = (await good(world, "GET", "/api/v1/bookie/cluster_info")).json
    assert (info["auditorElected"], info["clusterUnderReplicated"]) == (False, False)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("status", None),
        ("status?enabled=1", None),
        ("lost_bookie_recovery_delay", b"120"),
        ("lost_bookie_recovery_delay", b'{"delay_seconds": -1}'),
        ("lost_bookie_recovery_delay", b'{"delay_seconds": true}'),
    ],
)
async def test_invalid_changes_by_apaches_paths_change_nothing(world: ApiWorld, path: str, body: bytes | None) -> None:
    reply = await world.operate("PUT", f"/api/v1/autorecovery/{path}", data=body)
    assert (reply.status, reply.problem) == (400, "invalid-request")
    assert (world.operations.is_on, world.operations.delay_s) == (True, 60)


async def test_readiness_depends_on_the_store_and_liveness_does_not(world: ApiWorld) -> None:
    for path in ("/livez", "/healthz", "/readyz"):
        assert (await good(world, "GET", path)).body == b"ok"
    world.control.is_connected = False
    for path in ("/livez", "/healthz"):
        assert (await good(world, "GET", path)).body == b"ok"
    reply = await world.ask("GET", "/readyz")
    assert reply.status == 503
    assert b"[-]metadata-store failed" in reply.body
    await check(world, "GET", "/readyz", reply)
    world.control.is_connected = True
    verbose = (await good(world, "GET", "/readyz?verbose")).body
    assert verbose == b"[+]metadata-store ok\n[+]permissions ok\n[+]not-stopping ok\nreadyz check passed\n"
    world.api.report_stopping()
    assert (await world.ask("GET", "/readyz")).status == 503
    assert (await world.ask("GET", "/livez")).status == 200


async def test_an_auditor_that_the_store_refuses_is_alive_and_reports_why_it_is_not_ready(world: ApiWorld) -> None:
    world.control.problems = ("create /ledgers/underreplication/auditorelection: its ACL does not allow this",)
    assert (await good(world, "GET", "/livez")).body == b"ok"
    reply = await world.ask("GET", "/readyz")
    assert reply.status == 503
    assert b"[-]permissions failed" in reply.body
    assert b"auditorelection: its ACL does not allow this" in reply.body
    assert b"auditorelection: its ACL does not allow this" in (await good(world, "GET", "/status")).body


async def test_follower_is_ready(world: ApiWorld) -> None:
    world.control.is_leader = False
    assert (await world.ask("GET", "/readyz")).status == 200


async def test_metrics_and_version(world: ApiWorld) -> None:
    metrics = await good(world, "GET", "/metrics")
    assert metrics.body == b"up 1\n"
    assert metrics.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    version = (await good(world, "GET", "/version")).json
    assert (version["kind"], version["version"], version["component"]) == ("Version", "1.2.3", "auditor")


async def test_not_found_is_a_problem_document(world: ApiWorld) -> None:
    for path in ("/nothing", "/api/v2/runs", "/api/v1/runs/", "/api/v1/runs/20990101T000000Z-ffffff"):
        reply = await world.ask("GET", path)
        assert (reply.status, reply.problem) == (404, "not-found")
    reply = await world.operate("DELETE", "/api/v1/runs")
    assert (reply.status, reply.problem) == (405, "method-not-allowed")
    assert reply.headers["Allow"] == "GET, HEAD, POST"
    reply = await world.operate("PUT", f"/api/v1/runs/{await world.start()}/state/done")
    assert (reply.status, reply.problem) == (400, "invalid-request")


async def test_every_response_has_the_headers_that_protect_browsers(world: ApiWorld) -> None:
    for path in ("/api/v1/status", "/status", "/livez", "/nothing", "/api/v1/runs?x=1", "/reports/"):
        headers = (await world.ask("GET", path)).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Server"] == "bkheal"


async def test_head_responds_like_get_without_a_body(world: ApiWorld) -> None:
    reply = await world.ask("HEAD", "/api/v1/status")
    assert (reply.status, reply.body) == (200, b"")


async def test_unresponsive_store_is_reported(world: ApiWorld) -> None:
    world.control.is_connected = False
    reply = await world.ask("GET", "/api/v1/runs")
    assert (reply.status, reply.problem) == (503, "store-unavailable")
    assert reply.headers["Retry-After"] == "5"
    assert (await world.ask("GET", "/api/v1/status")).json["store_connected"] is False


async def test_the_status_page_does_not_wait_for_an_unresponsive_store(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(limit: int = 50) -> Sequence[RunRecord]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(cluster_routes, "_PAGE_PATIENCE_S", 0.01)
    monkeypatch.setattr(world.control, "runs", silent)
    await good(world, "GET", "/status")


async def test_internal_error_does_not_leak_its_cause(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr(world.control, "status", broken)
    reply = await world.ask("GET", "/api/v1/status")
    assert (reply.status, reply.problem) == (500, "internal")
    assert b"hunter2" not in reply.body
    assert "request failed" in caplog.text


async def test_openapi_document_has_every_route_and_nothing_else(world: ApiWorld) -> None:
    description = (await good(world, "GET", "/openapi.json")).json
    described = {(method.upper(), path) for path, operations in description["paths"].items() for method in operations}
    assert description["openapi"] == "3.1.0"
    runner = world.api._runner
    assert runner is not None
    served = {
        (route.method, route.resource.canonical.rstrip("/") or "/")
        for route in runner.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert {(method, path.rstrip("/") or "/") for method, path in described} == served
    operations = [operation for path in description["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert operation["summary"].endswith((".", "!"))
        assert operation["responses"]
    for schema in description["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_openapi_document_has_the_required_roles(world: ApiWorld) -> None:
    paths = (await world.ask("GET", "/openapi.json")).json["paths"]
    assert paths["/api/v1/runs"]["post"]["security"] == [{"token": []}]
    assert paths["/api/v1/runs"]["post"]["x-bkheal-role"] == Role.OPERATE.value
    assert {"token": []} in paths["/api/v1/runs"]["get"]["security"]
    assert paths["/livez"]["get"]["security"] == []
