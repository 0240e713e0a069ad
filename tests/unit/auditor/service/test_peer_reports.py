"""Reports of another auditor: requested with the caller's authorization, within limits, and never in a loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from auditor.api.peer_port import PeerAnswer, PeerReports, PeersUnknownError
from auditor.service import peer_reports
from auditor.service.peer_reports import ElectionPeerReports
from bookie.metadata.port import StoreUnavailableError
from bookie.runtime.access.tokens import Role
from tests.worlds.api import ApiWorld, running

RUN = "20261120T101500Z-0a1b2c"
PAGE = "<!doctype html><p>a report"
OWN = "127.0.0.9"
"""The name of the requesting auditor; it does not listen there."""
UNUSED_ADDRESS = "127.0.0.8"


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    """Yield an auditor with the report in its own directory, and a host where no process listens on its port."""
    directory = tmp_path / "first"
    run = directory / "reports" / RUN
    (run / "findings.parquet").mkdir(parents=True)
    (run / "report.html").write_text(PAGE)
    summary = {"apiVersion": "bkheal/v1", "kind": "AuditReport", "run_id": RUN, "run_kind": "bookies"}
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "findings.parquet" / "part-0.parquet").write_bytes(b"PAR1")
    (run / "settings.toml").write_text("secret")
    async with running(directory) as made:
        yield made


def others(first: ApiWorld, *hosts: str, port: int | None = None) -> ElectionPeerReports:
    async def candidates() -> Sequence[str]:
        return [f"{host}:{port or first.api.port}" for host in hosts]

    return ElectionPeerReports(candidates, f"{OWN}:{first.api.port}", first.api.port, None)


@asynccontextmanager
async def second(tmp_path: Path, peers: PeerReports, **changes: Any) -> AsyncIterator[ApiWorld]:
    (tmp_path / "second").mkdir()
    async with running(tmp_path / "second", peers=peers, **changes) as made:
        yield made


async def test_an_auditor_serves_the_reports_of_another_one(first: ApiWorld, tmp_path: Path) -> None:
    async with second(tmp_path, others(first, OWN, UNUSED_ADDRESS, "127.0.0.1")) as world:
        for path in (f"/reports/{RUN}/", f"/reports/{RUN}/report.html"):
            page = await world.ask("GET", path)
            assert (page.status, page.body.decode()) == (200, PAGE)
            assert "sandbox" in page.headers["Content-Security-Policy"]
        part = await world.ask("GET", f"/reports/{RUN}/findings.parquet/part-0.parquet")
        assert (part.body, part.headers["Content-Type"]) == (b"PAR1", "application/vnd.apache.parquet")
        latest = await world.ask("GET", "/reports/latest/?kind=bookies")
        assert (latest.status, latest.headers["Location"]) == (302, f"../{RUN}/")
        for path in ("/reports/latest/?kind=replicas", f"/reports/{RUN}/no.json"):
            assert (await world.ask("GET", path)).status == 503  # the auditor that does not answer may have it
        assert (await world.ask("GET", f"/reports/{RUN}/settings.toml")).problem == "not-found"


async def test_a_report_that_no_auditor_has_does_not_exist(first: ApiWorld, tmp_path: Path) -> None:
    async with second(tmp_path, others(first, OWN, "127.0.0.1")) as world:
        for path in ("/reports/latest/?kind=replicas", f"/reports/{RUN}/no.json"):
            assert (await world.ask("GET", path)).problem == "not-found"


async def test_the_other_auditor_checks_the_callers_permission_itself(first: ApiWorld, tmp_path: Path) -> None:
    """Here every caller may read, but the other auditor requires a token."""
    guarded = tmp_path / "guarded"
    guarded.mkdir()
    first_reports = first.tokens_file.parent / "reports"
    async with running(guarded, report_dir=first_reports, allow_anonymous_read=False) as there:
        open_to_all = {"tokens_file": there.tokens_file, "allow_anonymous_read": True}
        async with second(tmp_path, others(there, "127.0.0.1"), **open_to_all) as world:
            path = f"/reports/{RUN}/summary.json"
            assert (await world.ask("GET", path)).problem == "not-found"
            assert (await world.ask("GET", path, token=there.tokens[Role.READ].token)).status == 200


async def test_candidates_of_another_kind_are_not_contacted(first: ApiWorld, tmp_path: Path) -> None:
    async with second(tmp_path, others(first, "127.0.0.1", port=3181)) as world:
        assert (await world.ask("GET", f"/reports/{RUN}/")).problem == "not-found"


async def test_a_request_from_another_auditor_is_not_forwarded(first: ApiWorld, tmp_path: Path) -> None:
    asked: list[str] = []

    class Third(PeerReports):
        async def get(self, path: str, authorization: str | None) -> PeerAnswer | None:
            asked.append(path)
            return None

    async with (
        second(tmp_path, Third()) as middle,
        running(first.tokens_file.parent, peers=others(middle, "127.0.0.1")) as world,
    ):
        assert (await world.ask("GET", "/reports/20261120T101500Z-ffffff/")).problem == "not-found"
    assert asked == []


@pytest.mark.parametrize("location", ["https://evil.example/", "//evil.example/", "../../api/v1/status", f"../{RUN}"])
async def test_a_redirect_from_another_auditor_leads_to_a_report_or_nowhere(tmp_path: Path, location: str) -> None:
    class WrongPeer(PeerReports):
        async def get(self, path: str, authorization: str | None) -> PeerAnswer | None:
            return PeerAnswer(location=location)

    async with second(tmp_path, WrongPeer()) as world:
        reply = await world.ask("GET", "/reports/latest/")
        assert reply.headers.get("Location", f"../{RUN}/") == f"../{RUN}/"
        assert (await world.ask("GET", f"/reports/{RUN}/")).problem == "not-found"


async def test_size_and_number_of_responses_are_bounded(
    first: ApiWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = others(first, "127.0.0.1")
    monkeypatch.setattr(peer_reports, "BYTES_MAX", len(PAGE) - 1)
    assert await peers.get(f"/reports/{RUN}/report.html", None) is None
    monkeypatch.setattr(peer_reports, "BYTES_MAX", len(PAGE))
    assert await peers.get(f"/reports/{RUN}/report.html", None) == PeerAnswer(PAGE.encode())
    asked = (peers.get(f"/reports/{RUN}/report.html", None) for _ in range(5))
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(answer, PeerAnswer) for answer in found) == peer_reports.FETCHES_MAX
    assert sum(isinstance(answer, PeersUnknownError) for answer in found) == len(found) - peer_reports.FETCHES_MAX


async def test_without_the_store_it_is_unknown_whether_there_is_a_report() -> None:
    async def candidates() -> Sequence[str]:
        raise StoreUnavailableError("no answer")

    with pytest.raises(PeersUnknownError):
        await ElectionPeerReports(candidates, OWN, 8080, None).get(f"/reports/{RUN}/report.html", None)
