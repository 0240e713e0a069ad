"""The page at ``/status``: its content and its security policy; values are never interpreted as markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from auditor.api.control import Backlog, ServiceStatus, SeverityBacklog
from auditor.api.http.status_page import status_page
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from bookie.model.severity import Severity
from tests.worlds.api import NOW_MS, TwinControl
from tests.worlds.html import read

STATUS = replace(TwinControl().status(), metadata_uri="zk://zk:2181/ledgers", lost=())
QUIET = replace(STATUS, backlog=Backlog(counted_ms=NOW_MS))
RUN = RunRecord("r1", RunKind.BOOKIES, RunCause.COMMAND, "alice", "host:1", RunState.DONE, verdict="clean")
ALLOWED = {"meta"} | {
    *("html", "head", "title", "style", "body", "h1", "h2", "div", "p", "a", "span", "b", "code"),
    *("header", "section", "footer", "table", "tr", "th", "td"),
}


def page_of(status: ServiceStatus, runs: Sequence[RunRecord] = ()) -> str:
    return status_page(status, runs, NOW_MS).html


def heading(status: ServiceStatus) -> tuple[str, str]:
    """The tone and the text of the headline."""
    found = re.search(r'<section class="headline (\w+)">\s*<h1>(.*?)</h1>', page_of(status))
    assert found is not None
    return found[1], found[2]


def links(html: str) -> list[str | None]:
    return [attributes["href"] for tag, attributes in read(html).elements if tag == "a"][:-4]


def test_the_content_security_policy_allows_only_the_style_sheet_of_the_page() -> None:
    page = status_page(STATUS, (), NOW_MS)
    (style,) = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert page.policy == (f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'")


def test_a_run_links_to_its_record_and_to_its_report_if_there_is_one() -> None:
    assert links(page_of(STATUS, [RUN])) == ["api/v1/runs/r1"]
    unnamed = replace(RUN, verdict="", report="r1")
    html = page_of(STATUS, [unnamed])
    assert links(html) == ["api/v1/runs/r1", "reports/r1/"]
    assert ">report</a>" in html


def test_the_id_of_a_run_stays_one_segment_of_a_path() -> None:
    strange = replace(RUN, run_id="a/../b?c#d", report="r")
    quoted = "a%2F..%2Fb%3Fc%23d"
    assert links(page_of(STATUS, [strange])) == [f"api/v1/runs/{quoted}", f"reports/{quoted}/"]


def test_what_needs_attention_is_highlighted() -> None:
    def marked(html: str) -> list[str]:
        return re.findall(r'<span class="bad">(.*?)</span>', html)

    assert marked(page_of(STATUS)) == []
    troubled = replace(
        STATUS,
        is_store_connected=False,
        is_recovery_enabled=False,
        lost=TwinControl().status().lost,
        held_because="most are gone",
        problems=("no right to write", "no right to read"),
    )
    lost = "d&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; (missing for 0.0 s, held back for 1 min)"
    assert marked(page_of(troubled, ())) == [
        *("no connection", "disabled", lost, "most are gone", "no right to write", "no right to read")
    ]


def test_a_run_in_progress_shows_its_progress() -> None:
    going = replace(RUN, state=RunState.RUNNING, phase="scan", done=3)
    assert "<td>running: scan 3/?</td>" in page_of(STATUS, [going])
    assert "<td>running: scan 3/8</td>" in page_of(STATUS, [replace(going, total=8)])
    assert "3/8" not in page_of(STATUS, [replace(going, total=8, state=RunState.DONE)])


def test_the_cause_of_a_run_is_a_lost_bookie_or_the_user_who_requested_it() -> None:
    loss = replace(RUN, cause=RunCause.BOOKIE_LOSS, owner="bk1:3181")
    assert ">loss of bk1:3181</td>" in page_of(STATUS, [loss])
    assert ">alice (command)</td>" in page_of(STATUS, [RUN])


def test_the_headline_is_the_worst_of_what_is_known() -> None:
    lost = TwinControl().status().lost
    marked = Backlog(NOW_MS, {Severity.CRITICAL: SeverityBacklog(2)})
    unread = Backlog(NOW_MS, {Severity.CRITICAL: SeverityBacklog(2), Severity.NO_LIVE_COPY: SeverityBacklog(1)})
    assert heading(QUIET) == ("good", "Every bookie is registered, and no ledger is marked for repair.")
    status = replace(QUIET, lost=lost)
    assert heading(status) == ("warn", "1 bookie is lost, and no ledger is marked for repair.")
    status = replace(status, backlog=marked)
    assert heading(status) == ("warn", "2 ledgers are marked for repair.")
    status = replace(status, is_recovery_enabled=False)
    assert heading(status) == ("warn", "Recovery is disabled, so nothing is marked or repaired.")
    status = replace(status, held_because="3 of 5 bookies are missing")
    assert heading(status) == ("bad", "So many bookies are missing that nothing is marked.")
    status = replace(status, backlog=unread)
    assert heading(status) == ("bad", "1 ledger has entries without a live copy.")
    status = replace(status, leader="", is_leader=False)
    assert heading(status) == ("bad", "No auditor leads, so nothing is detected or marked.")
    status = replace(status, problems=("no right to write",))
    assert heading(status) == ("bad", "The metadata store refuses what an auditor needs.")
    assert heading(replace(status, is_store_connected=False))[0] == "bad"


def test_a_cluster_whose_last_audit_did_not_read_all_ledgers_is_not_shown_as_good() -> None:
    unmarked = "Every bookie is registered, and no ledger is marked for repair."
    never = replace(QUIET, last_success_ms={}, last={})
    assert heading(never) == ("info", f"{unmarked} No audit has checked all ledgers yet.")
    failed = replace(QUIET, last={RunKind.BOOKIES: replace(RUN, state=RunState.FAILED, verdict="")})
    assert heading(failed) == ("info", f"{unmarked} The last audit did not check all ledgers.")
    partial = replace(QUIET, last={RunKind.BOOKIES: replace(RUN, verdict="incomplete")})
    assert heading(partial) == heading(failed)
    cancelled = replace(QUIET, last={RunKind.BOOKIES: replace(RUN, state=RunState.CANCELLED, verdict="")})
    assert heading(cancelled) == heading(QUIET)
    assert heading(replace(never, lost=TwinControl().status().lost))[0] == "warn"


def test_marks_that_this_auditor_has_not_counted_are_not_called_absent() -> None:
    follower = replace(QUIET, backlog=Backlog(), is_leader=False)
    uncounted = "Only the leader counts the ledgers that are marked for repair."
    assert heading(follower) == ("info", f"Every bookie is registered. {uncounted}")
    assert heading(replace(follower, lost=TwinControl().status().lost)) == ("warn", f"1 bookie is lost. {uncounted}")
    assert heading(replace(follower, is_leader=True))[1].endswith("have not been counted yet.")
    text = read(page_of(follower)).text
    assert text.count(uncounted) == 2
    assert "No ledger is marked" not in text


def test_marked_ledgers_are_counted_by_what_becomes_of_them() -> None:
    text = read(page_of(STATUS)).text
    assert "5 ledgers: 3 waiting, 1 in progress, 1 parked (no live copy)." in text
    assert "bkheal dead-letters list" in text
    assert "healthy again" in text
    text = read(page_of(QUIET)).text
    assert "No ledger is marked." in text
    assert "healthy again" not in text


def test_times_have_their_distance_from_now() -> None:
    run = replace(RUN, started_ms=NOW_MS - 90_000, finished_ms=NOW_MS - 60_000, is_dry_run=True)
    row = page_of(STATUS, [run]).split("<h2>Runs</h2>")[1]
    assert "1 min 30 s ago" in row
    assert '<td class="time">30.0 s</td>' in row
    assert "<td>bookies (dry run)</td>" in row


HOSTILE = st.one_of(
    st.sampled_from(["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x"]),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
)


@given(HOSTILE, HOSTILE)
def test_no_value_becomes_markup(first: str, second: str) -> None:
    run = replace(RUN, run_id=first, owner=second, verdict=first, detail=second, phase=first)
    status = replace(
        STATUS,
        metadata_uri=first,
        process=second,
        leader=first,
        is_leader=False,
        held_because=second,
        problems=(first,),
    )
    seen = read(page_of(status, [run, replace(run, report="r", state=RunState.RUNNING)]))
    assert {tag for tag, _ in seen.elements} <= ALLOWED
    assert not any(name.startswith("on") for _, attributes in seen.elements for name in attributes)
