"""Report files: which of them are served, and which are not."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from auditor.api.http.report_routes import find_file
from tests.deadlines import STATE_S
from tests.unit.auditor.api.test_api_http import good
from tests.worlds import report as report_world
from tests.worlds.api import ApiWorld, running

RUN = "20261120T101500Z-0a1b2c"
SECRET = b"the secret outside"


@pytest.fixture
def report_dir(tmp_path: Path) -> Path:
    reports = tmp_path / "reports"
    run = reports / RUN
    (run / "findings.parquet").mkdir(parents=True)
    (run / "findings.parquet" / "part-00000-4f.snappy.parquet").write_bytes(b"PAR1")
    (run / "report.html").write_text("<!doctype html><p>a report")
    (run / "summary.json").write_text('{"apiVersion": "bkheal/v1"}')
    (run / ".summary.json.tmp").write_bytes(SECRET)
    (run / "settings.toml").write_bytes(SECRET)
    (reports / "index.html").write_text("<!doctype html><p>all reports")
    (reports / "tokens.txt").write_bytes(SECRET)
    (reports / "20261119T101500Z-000000").mkdir()
    (reports / "notes.d").mkdir()
    (reports / "notes.d" / "summary.json").write_bytes(SECRET)
    (tmp_path / "secret.txt").write_bytes(SECRET)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "summary.json").write_bytes(SECRET)
    (run / "link.txt").symlink_to(tmp_path / "secret.txt")
    (run / "circle.txt").symlink_to(run / "circle.txt")
    (reports / "20261118T000000Z-111111").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(run / "pipe.txt")
    return reports


@pytest.fixture
async def world(report_dir: Path, tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with running(tmp_path) as made:
        yield made


async def test_files_are_served_with_their_content_types(world: ApiWorld) -> None:
    expected = {
        "/reports/": ("text/html; charset=utf-8", b"<!doctype html><p>all reports"),
        "/reports/index.html": ("text/html; charset=utf-8", b"<!doctype html><p>all reports"),
        f"/reports/{RUN}/": ("text/html; charset=utf-8", b"<!doctype html><p>a report"),
        f"/reports/{RUN}/report.html": ("text/html; charset=utf-8", b"<!doctype html><p>a report"),
        f"/reports/{RUN}/summary.json": ("application/json", b'{"apiVersion": "bkheal/v1"}'),
        f"/reports/{RUN}/findings.parquet/part-00000-4f.snappy.parquet": ("application/vnd.apache.parquet", b"PAR1"),
    }
    for path, (kind, body) in expected.items():
        reply = await world.ask("GET", path)
        assert (reply.status, reply.headers["Content-Type"], reply.body) == (200, kind, body)


async def test_pages_run_in_a_sandbox_without_an_origin(world: ApiWorld) -> None:
    policy = (await world.ask("GET", f"/reports/{RUN}/")).headers["Content-Security-Policy"]
    sandbox = next(part for part in policy.split("; ") if part.startswith("sandbox"))
    assert "allow-same-origin" not in sandbox
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy


async def test_reports_are_listed_with_their_paths(world: ApiWorld) -> None:
    [item] = (await world.ask("GET", "/api/v1/reports")).json["items"]
    assert item["run_id"] == RUN
    for name in ("page", "summary"):
        assert (await world.ask("GET", item[name])).status == 200


async def test_reports_are_listed_in_pages_newest_first(world: ApiWorld, report_dir: Path) -> None:
    written = [report_world.at(report_world.CLEAN, day) for day in range(3)]
    report_world.write(report_dir, *written)
    found, after = [], ""
    for _ in range(3):
        page = (await good(world, "GET", f"/api/v1/reports?limit=2{after}")).json
        found += page["items"]
        if page["next_after"] is None:
            break
        after = f"&after={page['next_after']}"
    assert [item["run_id"] for item in found] == sorted((RUN, *(run.run_id for run in written)), reverse=True)
    reports = {item["run_id"]: item["report"] for item in found}
    assert reports.pop(RUN) is None, "its summary.json is not a summary of a report"
    assert {report["verdict"] for report in reports.values()} == {"clean"}


async def test_a_page_reads_only_the_summaries_of_its_own_reports(
    world: ApiWorld, report_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [report_world.at(report_world.CLEAN, day) for day in range(6)]
    report_world.write(report_dir, *written)
    newest = sorted((run.run_id for run in written), reverse=True)
    read: list[str] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.parent.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    await good(world, "GET", f"/api/v1/reports?limit=2&after={newest[1]}")
    assert read == newest[2:4]
    read.clear()
    await good(world, "GET", "/api/v1/reports?limit=1")
    assert read == [RUN]


async def test_a_link_redirects_to_the_latest_report_of_a_kind(world: ApiWorld, report_dir: Path) -> None:
    kinds = {"20261121T000000Z-aaaaaa": "placement", "20261122T000000Z-bbbbbb": "bookies"}
    kinds["99981122T000000Z-cccccc"] = "bookies"  # from a run with a wrong clock
    for run_id, kind in kinds.items():
        (report_dir / run_id).mkdir()
        summary = {"apiVersion": "bkheal/v1", "kind": "AuditReport", "run_id": run_id, "run_kind": kind}
        (report_dir / run_id / "summary.json").write_text(json.dumps(summary))
    expected = {"": "20261122T000000Z-bbbbbb", "?kind=placement": "20261121T000000Z-aaaaaa"}
    for query, run_id in expected.items():
        reply = await world.ask("GET", f"/reports/latest/{query}")
        assert (reply.status, reply.headers["Location"]) == (302, f"../{run_id}/")
    assert (await world.ask("GET", "/reports/latest/?kind=replicas")).problem == "not-found"
    assert (await world.ask("GET", "/reports/latest/?kind=scrub")).problem == "invalid-request"


async def test_auditors_on_a_shared_volume_serve_each_others_reports(tmp_path: Path) -> None:
    """A change of leader loses no report: all auditors use the same directory."""
    async with running(tmp_path) as second:
        async with running(tmp_path) as first:
            (tmp_path / "reports" / RUN).mkdir(parents=True)
            (tmp_path / "reports" / RUN / "summary.json").write_text('{"written": "by the first"}')
            assert (await first.ask("GET", f"/reports/{RUN}/summary.json")).status == 200
        assert (await second.ask("GET", f"/reports/{RUN}/summary.json")).json == {"written": "by the first"}
        assert [item["run_id"] for item in (await second.ask("GET", "/api/v1/reports")).json["items"]] == [RUN]


async def test_a_directory_that_hangs_does_not_block_other_work_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, hung = threading.Event(), list[Path]()

    def hang(report_dir: Path, *_: object) -> None:
        hung.append(report_dir)
        released.wait(STATE_S)

    for name in ("find_file", "latest_report", "list_reports"):
        monkeypatch.setattr(f"auditor.api.http.report_routes.{name}", hang)
    paths = ("/api/v1/reports", "/reports/", "/reports/latest/", f"/reports/{RUN}/", f"/reports/{RUN}/summary.json")
    try:
        async with running(tmp_path, request_deadline_s=0.05) as world:
            replies = await asyncio.gather(*(world.ask("GET", path) for path in paths * 4))
            assert {reply.status for reply in replies} == {504}
            assert len(hung) == 2
            async with asyncio.timeout(STATE_S):
                await asyncio.to_thread(int)
    finally:
        released.set()


async def test_the_event_loop_reads_no_file(world: ApiWorld, report_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that hangs would stop the loop, and the leadership with it."""
    body, sent = os.urandom((1 << 21) + 1), os.sendfile
    (report_dir / RUN / "large.parquet").write_bytes(body)
    readers = list[threading.Thread]()

    def noted(*values: int) -> int:
        readers.append(threading.current_thread())
        return sent(*values)

    monkeypatch.setattr(os, "sendfile", noted)
    assert (await world.ask("GET", f"/reports/{RUN}/large.parquet")).body == body
    part = await world.ask("GET", f"/reports/{RUN}/large.parquet", headers={"Range": f"bytes={1 << 20}-"})
    assert (part.status, part.body) == (206, body[1 << 20 :])
    assert threading.current_thread() not in readers


async def test_missing_reports_are_an_empty_list_or_not_found(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert (await world.ask("GET", "/api/v1/reports")).json["items"] == []
        for path in ("/reports/", f"/reports/{RUN}/", f"/reports/{RUN}/summary.json"):
            assert (await world.ask("GET", path)).problem == "not-found"


async def test_a_directory_that_cannot_be_read_is_not_reported_as_one_without_reports(
    world: ApiWorld, report_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Any, *_: object, **__: object) -> Any:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected", str(path))

    monkeypatch.setattr(os, "lstat", broken)
    monkeypatch.setattr(os, "listdir", broken)
    for path in (
        "/api/v1/reports",
        "/reports/",
        "/reports/latest/",
        f"/reports/{RUN}/",
        f"/reports/{RUN}/summary.json",
    ):
        reply = await world.ask("GET", path)
        assert (reply.status, reply.problem) == (503, "unavailable"), path
        assert "not connected" in reply.json["detail"]


TRAVERSALS = [
    "/reports/../secret.txt",
    f"/reports/{RUN}/../../secret.txt",
    f"/reports/{RUN}/../../../../../../etc/passwd",
    f"/reports/{RUN}/%2e%2e/%2e%2e/secret.txt",
    f"/reports/{RUN}/..%2f..%2fsecret.txt",
    f"/reports/{RUN}/%252e%252e/secret.txt",
    f"/reports/{RUN}/..\\..\\secret.txt",
    f"/reports/{RUN}/..%5c..%5csecret.txt",
    "/reports/%2e%2e/elsewhere/summary.json",
    "/reports/..%2felsewhere/summary.json",
    "/reports//etc/passwd",
    f"/reports/{RUN}//etc/passwd",
    f"/reports/{RUN}/%2fetc%2fpasswd",
    f"/reports/{RUN}/summary.json%00.txt",
    f"/reports/{RUN}/secret.txt%00.json",
    f"/reports/{RUN}/link.txt",
    f"/reports/{RUN}/circle.txt",
    f"/reports/{RUN}/pipe.txt",
    "/reports/20261118T000000Z-111111/summary.json",
    f"/reports/{RUN}/.summary.json.tmp",
    f"/reports/{RUN}/settings.toml",
    "/reports/tokens.txt",
    "/reports/tokens.txt/",
    f"/reports/{RUN}/findings.parquet/",
    f"/reports/{RUN}/findings.parquet",
    "/reports/./tokens.txt",
    "/reports/notes.d/summary.json",
    f"/reports/{RUN}/" + "a/" * 50 + "x.txt",
    f"/reports/{RUN}/" + "a" * 5000 + ".txt",
    f"/reports/{RUN}/\xff.txt",
]


@pytest.mark.parametrize("path", TRAVERSALS)
async def test_files_outside_the_reports_are_not_served(world: ApiWorld, path: str) -> None:
    """The paths are sent as raw bytes, because a client would normalize them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.api.port)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("latin-1"))
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.split(b" ", 2)[1] in (b"400", b"404"), answer[:200]
    assert SECRET not in answer
    assert b"root:" not in answer


@given(
    st.lists(
        st.sampled_from(["..", ".", "", RUN, "link.txt", "secret.txt", "elsewhere", "summary.json", "/"]), max_size=9
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_files_that_are_found_lie_inside_the_report_directory(report_dir: Path, parts: list[str]) -> None:
    found = find_file(report_dir, "/".join(parts))
    assert found is None or (found.is_relative_to(report_dir.resolve()) and SECRET not in found.read_bytes())
