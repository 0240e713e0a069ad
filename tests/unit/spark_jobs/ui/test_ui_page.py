"""The text of the tab's page: complete, escaped, and without buttons for users who may not use them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.times import utc_text
from spark_jobs.ui.page import render_notice, render_page
from spark_jobs.ui.port import BacklogRow, Fact, KindRow, RunView, TabState
from spark_jobs.ui.settings import TabSettings
from spark_jobs.ui.view import PageInput
from tests.worlds.html import read

NOW_MS = 1_795_200_000_000
RECORD = RunRecord(
    "20261120T101500Z-0a1b2c",
    RunKind.BOOKIES,
    RunCause.SCHEDULE,
    "auditor-0",
    "host:1",
    RunState.DONE,
    started_ms=NOW_MS - 60_000,
    updated_ms=NOW_MS - 30_000,
    finished_ms=NOW_MS - 30_000,
    verdict="clean",
)
STATE = TabState(
    NOW_MS,
    (Fact("Leader", "auditor-0"), Fact("Brake", "holds", is_bad=True)),
    (KindRow("bookies"), KindRow("placement", is_startable=False, why_not="no topology is known")),
    (BacklogRow("below_write_quorum", 7, 3 << 30, NOW_MS - 90_000),),
    (RunView(RECORD, "https://auditor/reports/1"),),
    in_progress=2,
    parked={"no_live_copy": 1},
)
VIEW = PageInput(STATE, TabSettings(), NOW_MS, token="t" * 32)

ALLOWED = {"meta", "input"} | {
    *("a", "ul", "li", "strong", "span", "div", "p", "h4", "small"),
    *("table", "thead", "tbody", "tr", "th", "td", "form", "button", "code"),
}


def running(**changes: object) -> PageInput:
    record = replace(RECORD, state=RunState.RUNNING, finished_ms=0, verdict="", **changes)  # type: ignore[arg-type]
    return replace(VIEW, state=replace(STATE, runs=(RunView(record),)))


def targets(page: str) -> list[str | None]:
    return [attributes["action"] for tag, attributes in read(page).elements if tag == "form"]


def test_everything_is_shown() -> None:
    page = read(render_page(VIEW))
    for words in (
        "auditor-0",
        "holds",
        "below write quorum",
        "3.0 GiB",
        "7 ledgers: 4 waiting, 2 in progress, 1 parked (no live copy).",
        "1 min 30 s ago",
        "clean",
        "no topology is known",
    ):
        assert words in page.text
    assert ("a", {"href": "https://auditor/reports/1", "rel": "noopener"}) in page.elements


def test_marks_that_are_not_counted_are_not_called_absent() -> None:
    uncounted = replace(STATE, backlog=(), in_progress=0, parked={}, why_not_counted="only the leader counts")
    text = read(render_page(replace(VIEW, state=uncounted))).text
    assert "only the leader counts" in text
    assert "No ledger is marked" not in text
    assert "No ledger is marked" in read(render_page(replace(VIEW, state=replace(uncounted, why_not_counted="")))).text


def test_buttons_contain_the_token_and_post_to_the_servlet() -> None:
    page = read(render_page(replace(VIEW, base="/proxy/app-1")))
    forms = [attributes for tag, attributes in page.elements if tag == "form"]
    assert [form["action"] for form in forms] == ["/proxy/app-1/auditor/api/v1/runs"]
    assert all(form["method"] == "post" for form in forms)
    hidden = {a["name"]: a["value"] for tag, a in page.elements if tag == "input"}
    assert hidden == {"token": "t" * 32, "kind": "bookies"}


def test_a_current_run_can_be_paused_and_cancelled() -> None:
    run = f"/auditor/api/v1/runs/{RECORD.run_id}"
    assert targets(render_page(running()))[1:] == [f"{run}/pause", f"{run}/cancel"]
    paused = running()
    assert paused.state is not None
    record = replace(paused.state.runs[0].record, state=RunState.PAUSED)
    paused = replace(paused, state=replace(STATE, runs=(RunView(record),)))
    assert targets(render_page(paused))[1:] == [f"{run}/resume", f"{run}/cancel"]


def test_a_current_run_shows_its_progress() -> None:
    page = render_page(running(done=5, total=10, phase="checking", updated_ms=NOW_MS))
    assert "running: checking 5/10, about 1 min left" in read(page).text
    assert "width: 50%" in page
    assert "width: 100%" in render_page(running(done=15, total=10))


def test_a_lost_bookie_is_shown_as_the_cause_of_a_run_and_not_as_its_owner() -> None:
    loss = running(cause=RunCause.BOOKIE_LOSS, owner="bk1:3181")
    assert "<td>loss of bk1:3181</td>" in render_page(loss)
    assert "<td>auditor-0 (schedule)</td>" in render_page(VIEW)


def test_an_unauthorized_user_sees_the_reason_and_no_token() -> None:
    page = render_page(replace(running(), no_buttons="switched off", token=""))
    assert targets(page) == []
    assert "switched off" in page


def test_the_page_refreshes_often_during_a_run() -> None:
    def refresh(view: PageInput) -> str | None:
        return next(a["content"] for tag, a in read(render_page(view)).elements if tag == "meta")

    assert refresh(VIEW) == "10; url=/auditor/"
    assert refresh(replace(running(), base="/p")) == "2; url=/p/auditor/"
    assert refresh(PageInput(None, TabSettings(), NOW_MS, trouble="no answer")) == "2; url=/auditor/"


def test_a_problem_is_shown_with_the_last_known_state() -> None:
    page = read(render_page(replace(VIEW, trouble="no answer")))
    assert "no answer" in page.text
    assert "auditor-0" in page.text
    assert "no answer" in read(render_page(PageInput(None, TabSettings(), NOW_MS, trouble="no answer"))).text


@pytest.mark.parametrize("link", ["javascript:alert(1)", "//evil.example.com"])
def test_a_report_url_that_is_not_valid_is_not_a_link(link: str) -> None:
    page = read(render_page(replace(VIEW, state=replace(STATE, runs=(RunView(RECORD, link),)))))
    assert [tag for tag, _ in page.elements if tag == "a"] == []


HOSTILE = st.one_of(
    st.sampled_from(["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x", "\udcff\x00"]),
    st.text(max_size=20),
    st.text(alphabet="<>\"'&=/ abc", max_size=30),
)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_all_values_are_escaped(first: str, second: str, third: str) -> None:
    record = replace(RECORD, run_id=first, owner=second, verdict=third, detail=first, phase=second)
    state = TabState(
        NOW_MS,
        (Fact(first, second),),
        (KindRow(first, is_startable=False, why_not=second), KindRow(third)),
        (BacklogRow(first, 1), BacklogRow(third, 1)),
        (RunView(record, second), RunView(replace(record, state=RunState.RUNNING))),
    )
    page = render_page(PageInput(state, TabSettings(), NOW_MS, trouble=first, last_request=third, token=second))
    page.encode()
    seen = read(page)
    assert {tag for tag, _ in seen.elements} <= ALLOWED
    assert not any(name.startswith("on") for _, attributes in seen.elements for name in attributes)


def test_a_notice_is_escaped() -> None:
    assert "<script>" not in render_notice("<script>", "<script>", "")


def test_times_are_formatted() -> None:
    assert utc_text(0) == utc_text(1 << 60) == ""
    assert utc_text(1_795_200_000_000) == "2026-11-20 18:40:00 UTC"


def test_an_unknown_next_start_is_described_in_words() -> None:
    rows = (KindRow("bookies", why_no_next="24h on <the leader>"), KindRow("placement"))
    text = read(render_page(replace(VIEW, state=replace(STATE, kinds=rows)))).text
    assert "24h on <the leader>" in text
    assert "not scheduled" in text
