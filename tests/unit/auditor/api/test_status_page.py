"""The page at ``/status``: its content and its security policy; values are never interpreted as markup."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from auditor.api.http.status_page import status_page
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from tests.worlds.api import TwinControl
from tests.worlds.html import read

STATUS = replace(TwinControl().status(), metadata_uri="zk://zk:2181/ledgers", lost=())
RUN = RunRecord("r1", RunKind.BOOKIES, RunCause.COMMAND, "alice", "host:1", RunState.DONE, verdict="clean")
ALLOWED = {"meta"} | {
    *("html", "head", "title", "style", "body", "h1", "h2", "div", "p", "a", "span"),
    *("table", "tr", "th", "td"),
}


def links(html: str) -> list[str | None]:
    return [attributes["href"] for tag, attributes in read(html).elements if tag == "a"][:-4]


def test_the_content_security_policy_allows_only_the_style_sheet_of_the_page() -> None:
    page = status_page(STATUS, ())
    (style,) = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert page.policy == (f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; frame-ancestors 'none'")


def test_a_run_links_to_its_record_and_to_its_report_if_there_is_one() -> None:
    assert links(status_page(STATUS, [RUN]).html) == ["api/v1/runs/r1"]
    unnamed = replace(RUN, verdict="", report="r1")
    html = status_page(STATUS, [unnamed]).html
    assert links(html) == ["api/v1/runs/r1", "reports/r1/"]
    assert ">report</a>" in html


def test_the_id_of_a_run_stays_one_segment_of_a_path() -> None:
    strange = replace(RUN, run_id="a/../b?c#d", report="r")
    quoted = "a%2F..%2Fb%3Fc%23d"
    assert links(status_page(STATUS, [strange]).html) == [f"api/v1/runs/{quoted}", f"reports/{quoted}/"]


def test_what_needs_attention_is_highlighted() -> None:
    def marked(html: str) -> list[str]:
        return re.findall(r'<span class="bad">(.*?)</span>', html)

    assert marked(status_page(STATUS, ()).html) == []
    troubled = replace(
        STATUS,
        is_store_connected=False,
        is_recovery_enabled=False,
        lost=TwinControl().status().lost,
        held_because="most are gone",
        problems=("no right to write", "no right to read"),
    )
    lost = "d&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;"
    assert marked(status_page(troubled, ()).html) == [
        *("no connection", "disabled", lost, "most are gone", "no right to write", "no right to read")
    ]


def test_a_run_in_progress_shows_its_progress() -> None:
    going = replace(RUN, state=RunState.RUNNING, phase="scan", done=3)
    assert "<td>scan 3/?</td>" in status_page(STATUS, [going]).html
    assert "<td>scan 3/8</td>" in status_page(STATUS, [replace(going, total=8)]).html
    assert "3/8" not in status_page(STATUS, [replace(going, total=8, state=RunState.DONE)]).html


def test_the_cause_of_a_run_is_a_lost_bookie_or_the_user_who_requested_it() -> None:
    loss = replace(RUN, cause=RunCause.BOOKIE_LOSS, owner="bk1:3181")
    assert "<td>loss of bk1:3181</td>" in status_page(STATUS, [loss]).html
    assert "<td>alice (command)</td>" in status_page(STATUS, [RUN]).html


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
    seen = read(status_page(status, [run, replace(run, report="r", state=RunState.RUNNING)]).html)
    assert {tag for tag, _ in seen.elements} <= ALLOWED
    assert not any(name.startswith("on") for _, attributes in seen.elements for name in attributes)
