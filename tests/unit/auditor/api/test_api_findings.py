"""Findings over HTTP: filters, pages, and runs without a table."""

from __future__ import annotations

import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from auditor.api.http import findings_routes
from spark_jobs.report.findings.filters import FindingFilter
from spark_jobs.report.findings.one_run import FindingPage, read_findings
from tests.deadlines import STATE_S
from tests.unit.auditor.api.test_api_http import check, good
from tests.worlds.api import ApiWorld, running

RUN = "20261120T100001Z-0a1b2c"
PATH = f"/api/v1/runs/{RUN}/findings"
SCHEMA = pa.schema(
    [
        ("run_id", pa.string()), ("kind", pa.string()), ("ledger_id", pa.int64()), ("fragment_index", pa.int32()),
        ("fragment_first_entry_id", pa.int64()), ("fragment_last_entry_id", pa.int64()),
        ("is_last_fragment", pa.bool_()), ("state", pa.string()), ("missing_positions", pa.list_(pa.int32())),
        ("missing", pa.list_(pa.string())), ("copies_min", pa.int32()), ("severity", pa.string()),
        ("severity_rank", pa.int32()), ("entries", pa.int64()), ("bytes_estimate", pa.int64()), ("detail", pa.string()),
    ]
)  # fmt: skip


def finding(ledger: int, fragment: int, bookie: str, severity: str = "critical", rank: int = 2) -> dict[str, Any]:
    return {
        "run_id": RUN, "kind": "MISSING_BOOKIE", "ledger_id": ledger, "fragment_index": fragment,
        "fragment_first_entry_id": 10 * fragment, "fragment_last_entry_id": 10 * fragment + 9,
        "is_last_fragment": True, "state": "CLOSED", "missing_positions": [0], "missing": [bookie], "copies_min": 1,
        "severity": severity, "severity_rank": rank, "entries": 10, "bytes_estimate": 100, "detail": None,
    }  # fmt: skip


HELD = "waiting until 2026-11-20T12:00:00Z (maintenance: rack:/r1, by me@host)"
UNREADABLE: dict[str, Any] = {
    **dict.fromkeys(SCHEMA.names), "run_id": RUN, "kind": "UNREADABLE_METADATA", "ledger_id": 4, "missing": [],
}  # fmt: skip
COOKIES: list[dict[str, Any]] = [
    {**dict.fromkeys(SCHEMA.names), "run_id": RUN, "kind": "DANGLING_COOKIE", "missing": [bookie]}
    for bookie in ("x:1", "y:1", "z:1")
]
ROWS = [
    *COOKIES,
    *(finding(ledger, fragment, "a:1") for ledger in (1, 2, 3) for fragment in (0, 1)),
    finding(2, 2, "b:1", "below_write_quorum", 4) | {"detail": HELD},
    UNREADABLE,
]


def write_findings(directory: Path) -> None:
    """Write the table of a run as Spark does: several files, in no particular order."""
    table = directory / "findings.parquet"
    table.mkdir(parents=True)
    rows = random.Random(1).sample(ROWS, len(ROWS))
    for number, part in enumerate((rows[:3], rows[3:])):
        pq.write_table(pa.Table.from_pylist(part, SCHEMA), table / f"part-{number}.parquet")
    (directory / "summary.json").write_text("{}")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    write_findings(tmp_path / "reports" / RUN)
    async with running(tmp_path) as made:
        yield made


def places(document: Any) -> list[tuple[int | None, int | None]]:
    return [(row["ledger_id"], row["fragment_index"]) for row in document["items"]]


async def test_pages_of_any_size_contain_every_finding_once_and_in_order(world: ApiWorld) -> None:
    expected = [*[(None, None)] * 3, (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (4, None)]
    for size in (1, 3, 8, 100):
        found: list[tuple[int | None, int | None]] = []
        bookies: list[str] = []
        after = ""
        while True:
            page = (await good(world, "GET", f"{PATH}?limit={size}{after}")).json
            found += places(page)
            bookies += [row["missing"][0] for row in page["items"] if row["ledger_id"] is None]
            if page["next_after"] is None:
                break
            after = f"&after={page['next_after']}"
        assert (found, bookies) == (expected, ["x:1", "y:1", "z:1"]), size


async def test_a_finding_that_was_not_marked_has_the_reason(world: ApiWorld) -> None:
    items = (await good(world, "GET", f"{PATH}?ledger=2")).json["items"]
    assert [row["detail"] for row in items] == [None, None, HELD]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("bookie=b:1", [(2, 2)]),
        ("severity=below_write_quorum", [(2, 2)]),
        ("ledger=3", [(3, 0), (3, 1)]),
        ("kind=unreadable_metadata", [(4, None)]),
        ("bookie=a:1&ledger=2", [(2, 0), (2, 1)]),
        ("bookie=nobody", []),
        ("kind=dangling_cookie&bookie=y:1", [(None, None)]),
    ],
)
async def test_findings_are_filtered(world: ApiWorld, query: str, expected: list[tuple[int, int | None]]) -> None:
    assert places((await good(world, "GET", f"{PATH}?{query}")).json) == expected


def test_a_filter_by_bookie_returns_the_rows_that_list_it(tmp_path: Path) -> None:
    rng = random.Random(2)
    lists: list[list[str | None] | None] = [None, [], [None], ["a:1", "a:1"], ["a:11"], ["b:1", None, "a:1"]]
    rows = [finding(ledger, 0, "a:1") | {"missing": rng.choice(lists)} for ledger in range(200)]
    table = tmp_path / RUN / "findings.parquet"
    table.mkdir(parents=True)
    for number in range(4):
        pq.write_table(
            pa.Table.from_pylist(rows[number::4], SCHEMA), table / f"part-{number}.parquet", row_group_size=7
        )
    for bookie in ("a:1", "b:1", "a:11", "nobody"):
        found = read_findings(tmp_path, RUN, 1000, FindingFilter(bookie=bookie)).rows
        expected = [row["ledger_id"] for row in rows if bookie in (row["missing"] or ())]
        assert [row["ledger_id"] for row in found] == expected
        assert all(row["missing"] == rows[row["ledger_id"]]["missing"] for row in found)


async def test_timed_out_requests_add_no_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, go_on, readers, most = threading.Lock(), threading.Event(), 0, 0

    def slow(*_: Any) -> FindingPage:
        nonlocal readers, most
        with lock:
            readers += 1
            most = max(most, readers)
        go_on.wait(STATE_S)
        with lock:
            readers -= 1
        return FindingPage([], None)

    monkeypatch.setattr(findings_routes, "read_findings", slow)
    monkeypatch.setattr(findings_routes, "read_impact_page", slow)
    async with running(tmp_path, request_deadline_s=0.05) as world:
        for path in (PATH, PATH, PATH, f"/api/v1/runs/{RUN}/impact"):
            reply = await world.operate("GET", path)
            assert (reply.status, reply.problem) == (504, "deadline")
        go_on.set()
    assert most == 2


async def test_tables_of_earlier_releases_with_upper_case_severities_are_read(world: ApiWorld, tmp_path: Path) -> None:
    now = (await good(world, "GET", PATH)).json
    (path,) = list(tmp_path.rglob(f"{RUN}/findings.parquet"))
    for part in path.iterdir():
        part.unlink()
    old = [row | {"severity": row["severity"] and row["severity"].upper()} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(old, SCHEMA), path / "part.parquet")
    assert (await good(world, "GET", PATH)).json == now
    assert {row["severity"] for row in now["items"]} == {"critical", "below_write_quorum", None}
    wrong = [finding(1, 0, "a:1", "terrible")]
    pq.write_table(pa.Table.from_pylist(wrong, SCHEMA), path / "part.parquet")
    assert (await world.operate("GET", PATH)).status == 404


async def test_a_run_without_findings_is_empty_and_an_unknown_run_is_not_found(world: ApiWorld, tmp_path: Path) -> None:
    (tmp_path / "reports" / "20261120T100002Z-0a1b2c").mkdir()
    assert places((await good(world, "GET", PATH.replace("100001", "100002"))).json) == []
    for run in ("20261120T100003Z-0a1b2c", "..", "%2e%2e", "."):
        assert (await world.operate("GET", f"/api/v1/runs/{run}/findings")).status == 404
    damaged = tmp_path / "reports" / RUN / "findings.parquet" / "part-9.parquet"
    damaged.write_bytes(b"PAR1")
    assert (await world.operate("GET", PATH)).status == 404


@pytest.mark.parametrize(
    "query", ["severity=CRITICAL", "kind=x", "ledger=-1", "limit=0", "limit=1001", "after=1", "after=1:x:y", "page=2"]
)
async def test_wrong_parameters_are_refused(world: ApiWorld, query: str) -> None:
    reply = await world.operate("GET", f"{PATH}?{query}")
    assert (reply.status, reply.problem) == (400, "invalid-request")
    await check(world, "GET", f"{PATH}?{query}", reply)


@pytest.mark.parametrize(
    ("query", "topics"),
    [
        ("", ["persistent://t/n/a", "persistent://t/n/b"]),
        ("?namespace=t/n&limit=1", ["persistent://t/n/a"]),
        ("?topic=persistent://t/n/b", ["persistent://t/n/b"]),
        ("?severity=lost", []),
    ],
)
async def test_topics_are_listed_with_the_effect_on_them(
    world: ApiWorld, tmp_path: Path, query: str, topics: list[str]
) -> None:
    named = {"tenant": "t", "namespace": "t/n", "component": "managed-ledger", "subscription": None}
    quorums = {"write_quorum": 2, "ack_quorum": 2}
    rows = [
        finding(1, 0, "a:1") | named | quorums | {"topic": "persistent://t/n/b"},
        finding(2, 0, "a:1", "no_live_copy", 1) | named | quorums | {"topic": "persistent://t/n/a"},
    ]
    fields = [*((name, pa.string()) for name in (*named, "topic")), *((name, pa.int32()) for name in quorums)]
    (path,) = list(tmp_path.rglob(f"{RUN}/findings.parquet"))
    for part in path.iterdir():
        part.unlink()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([*SCHEMA, *fields])), path / "part.parquet")
    document = (await good(world, "GET", f"/api/v1/runs/{RUN}/impact{query}")).json
    assert [row["topic"] for row in document["items"]] == topics


@pytest.mark.parametrize("query", ["severity=CRITICAL", "limit=0", "limit=1001", "after=1", "page=2"])
async def test_wrong_parameters_of_impact_are_refused(world: ApiWorld, query: str) -> None:
    assert (await world.operate("GET", f"/api/v1/runs/{RUN}/impact?{query}")).status == 400
    assert (await world.operate("GET", f"/api/v1/runs/{RUN[:-1]}f/impact")).status == 404
