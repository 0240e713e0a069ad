"""The pages of a report: their content; they load nothing from other hosts, and foreign text never becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie.metadata.bookies.registration import BookieState
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report import writing as report
from spark_jobs.report.console import table
from spark_jobs.report.counts import (
    BookieCount,
    DriverMarksCounts,
    ImageCounts,
    LedgerCounts,
    PublishOutcome,
    PublishResult,
    SeverityCount,
    SnapshotCounts,
    WorstLedger,
)
from spark_jobs.report.page.render import render_index, render_report
from spark_jobs.report.summary import ClusterName, RunSummary
from spark_jobs.report.tables.run_tables import trend_point
from tests.worlds import report as world

ALL = [
    world.CLEAN, world.UNDER_REPLICATED, world.NO_LIVE_COPY, world.HELD, world.INCOMPLETE, world.WAITING,
    world.PLACEMENT, world.REPLICAS, world.REFERENCES, world.EVERYTHING, world.MANY, world.ATTACK,
]  # fmt: skip

LINKS = r"#[a-z]+|\.\./index\.html|(\.\./)?[A-Za-z0-9-]+/report\.html|summary\.json|data:,"
"""Links within the page, and links to the index, neighboring reports, and the summary."""

VOID_ELEMENTS = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Page(HTMLParser):
    """A browser's view of a page, as far as these tests need it."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    style: str = ""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(html: bytes) -> Page:
    page = Page()
    page.feed(html.decode())
    page.close()
    assert page.open == []
    return page


def page_of(run: RunSummary, previous: RunSummary | None = None, *, racks: int = 0) -> Page:
    points = [trend_point(summary) for summary in (previous, run) if summary is not None]
    places = world.topology(len(run.bookies), racks) if racks else None
    return read(render_report(run, previous, points, places))


@pytest.mark.parametrize("run", ALL)
def test_a_page_is_well_formed_and_self_contained(run: RunSummary) -> None:
    for page in (page_of(run), page_of(run, run, racks=3), read(render_index([run]))):
        assert page.tags[0][0] == "html"
        assert {"script", "iframe", "object", "embed", "base", "form", "img"}.isdisjoint(tag for tag, _ in page.tags)
        for tag, attributes in page.tags:
            assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcset")]
            if "href" in attributes:
                assert re.fullmatch(LINKS, attributes["href"] or ""), (tag, attributes)
        assert "url(" not in page.style
        assert "@import" not in page.style


@pytest.mark.parametrize("run", ALL)
def test_the_content_policy_of_a_page_allows_only_its_own_style(run: RunSummary) -> None:
    page = page_of(run)
    policy = next(meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}';" in policy
    assert "unsafe" not in policy


def test_hostile_text_is_shown_and_never_interpreted() -> None:
    html = render_report(world.ATTACK, changed(world.ATTACK, run_id="before"), [], None).decode()
    for dangerous in ("<script", "<img", "\u202e", "\x1b", "{{49}}"):
        assert dangerous not in html
    assert "javascript:alert(3)" in read(html.encode()).text
    assert 'href="javascript' not in html
    assert "<script>alert(1)</script>" in read(html.encode()).text
    assert "\\u202e\\x1b[2J\\n&amp;{{7*7}}" in read(html.encode()).text
    assert len(html) < 200_000


@pytest.mark.parametrize("run", ALL)
def test_a_page_is_accessible_to_screen_readers(run: RunSummary) -> None:
    page = page_of(run, run, racks=3)
    assert page.all("html")[0]["lang"] == "en"
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    for svg in page.all("svg"):
        is_named = svg.get("role") == "img" and svg.get("aria-label")
        assert is_named or svg.get("aria-hidden") == "true" or svg.get("class") in ("up", "ro", "down", "idle"), svg
    assert all(attributes.get("aria-label") for tag, attributes in page.tags if attributes.get("role") == "img")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (world.CLEAN, ["Every ledger has all of its copies.", "Nothing. The next run"]),
        (
            changed(world.CLEAN, snapshot=SnapshotCounts("/data/snapshot.5", 9_000, 1_250, 30, 4)),
            ["/data/snapshot.5: 1,250 ledgers judged by it, 34 ledgers read in ZooKeeper"],
        ),
        (
            changed(world.CLEAN, image=ImageCounts(read_from_ms=1, suspects=110, marked=103)),
            ["103 ledgers, before all ledgers were read"],
        ),
        (
            changed(world.CLEAN, driver_marks=DriverMarksCounts(ledgers=900, marked=7)),
            ["7 ledgers, before Spark read all ledgers"],
        ),
        (world.UNDER_REPLICATED, ["443 ledgers have too few copies. No data is lost.", "12 ledgers have entries"]),
        (world.NO_LIVE_COPY, ["3 ledgers have entries without a live copy.", "Do not wipe"]),
        (world.HELD, ["The brake held this run.", "7 of 9 known bookies", "2 of 9", "nothing is known of what"]),
        (world.INCOMPLETE, ["Not every ledger was checked.", "318 ledgers exist", "443 ledgers have too few copies."]),
        (
            changed(world.CLEAN, kind=RunKind.EVERYTHING, parts=world.EVERYTHING.parts),
            ["Not every check is complete: placement.", "Every ledger was read. No problem", "Then run again"],
        ),
        (world.EVERYTHING, ["Not every check is complete: placement.", "In the rest: 5 ledgers have too few copies."]),
        (world.WAITING, ["Missing bookies that may still return", "within the lost-bookie delay", "5 min 17 s left"]),
        (world.PLACEMENT, ["81 ledgers should be spread", "at least 2 racks, 1 zone, 1 region", "Place unknown"]),
        (
            world.REPLICAS,
            ["1 ledger has lost entries.", "dry run", "for 40 ledgers: UNREACHABLE: it asks for a login"],
        ),
        (world.REPLICAS, ["bookie-02", "310 ledgers judged by sample: it cannot list"]),
        (world.REFERENCES, ["Nothing in Pulsar refers to 80 ledgers.", "public/default", "70 ledgers, 4.0 GiB"]),
        (world.REFERENCES, ["Not judged: not closed", "/managed-ledgers/t/n/persistent/a", "3 bytes are not a node"]),
    ],
)  # fmt: skip
def test_a_page_explains_its_result(run: RunSummary, words: list[str]) -> None:
    text = page_of(run).text
    for word in words:
        assert word in text


def test_findings_are_counted_by_severity_with_their_meaning() -> None:
    text = page_of(world.UNDER_REPLICATED).text
    assert "Critical Some entry has one copy left. One more loss may lose data. 12 14 96.0 MiB" in text
    assert "832 of 1,284 ledgers have no finding (64.8 %)" in text
    assert (
        "No live copy No registered bookie holds some entry. It can be read again when a holder returns. 0 0 0 B"
        in text
    )
    assert "Drain" not in text


def test_a_page_shows_what_changed() -> None:
    text = page_of(world.at(world.NO_LIVE_COPY, 2), world.at(world.CLEAN, 0)).text
    for words in ("clean → no live copy", "No live copy 0 → 3 ledgers (+3)", "Bookies lost bookie-00", "2 d earlier"):
        assert words in text
    back = page_of(world.at(world.CLEAN, 2), world.at(world.NO_LIVE_COPY, 0)).text
    assert "0 ledgers (\N{MINUS SIGN}3)" in back
    assert "Bookies returned bookie-00" in back
    assert "no earlier complete bookie check" in page_of(world.CLEAN).text
    assert "Nothing: the same verdict" in page_of(world.at(world.CLEAN, 1), world.at(world.CLEAN, 0)).text


def test_racks_are_shown_if_the_topology_is_known() -> None:
    page = page_of(world.MANY, racks=12)
    assert "/rack-07" in page.text
    assert "not in the topology" in page.text
    labels = [attributes["aria-label"] or "" for _, attributes in page.tags if attributes.get("class") == "cells"]
    assert len(labels) == 13
    assert labels[0].endswith("bookies: 16 writable, 1 lost")
    assert "/rack-07" not in page_of(world.MANY).text


def test_many_bookies_are_collapsed_and_their_number_is_bounded() -> None:
    text = page_of(world.MANY).text
    assert "185 more bookies" in text
    table = text[text.index("Ledgers with findings, of all it holds") :]
    assert table.index(world.bookie_name(0)) < table.index("185 more bookies") < table.index(world.bookie_name(150))
    thousands = changed(
        world.CLEAN, bookies=tuple(BookieCount(f"b{n}:1", BookieState.WRITABLE, True, 1, 1, 0, 0) for n in range(9_000))
    )
    html = render_report(thousands, None, [], None)
    assert len(html) < 1_500_000
    assert "8,000 more bookies without findings are in bookies.parquet" in read(html).text


def test_an_unregistered_bookie_without_ledgers_is_not_lost() -> None:
    gone = BookieCount("old:3181", BookieState.UNREGISTERED, True, 0, 0, 0, 0)
    text = page_of(changed(world.CLEAN, bookies=(*world.CLEAN.bookies, gone))).text
    assert "not registered, holds nothing" in text
    assert "9 of 9 registered; 0 lost" in text


def test_the_page_is_written_before_the_summary_and_the_index_links_to_it(tmp_path: Path) -> None:
    first, second = world.at(world.NO_LIVE_COPY, 0), world.at(world.PLACEMENT, 1)
    for run in (first, second):
        directory = world.write(tmp_path, run)
        assert {path.name for path in directory.iterdir()} == {
            "bookies.parquet", "runs.parquet", "report.html", "summary.json"
        }  # fmt: skip
    index = read((tmp_path / "index.html").read_bytes())
    links = [attributes["href"] for attributes in index.all("a")]
    assert links == [f"{run.run_id}/report.html" for run in (second, first, second, first)]
    assert all((tmp_path / (link or "")).is_file() for link in links)
    assert "Latest placement check" in index.text
    assert "Latest bookie check" in index.text


def test_an_index_of_several_clusters_names_the_clusters() -> None:
    other = changed(
        world.at(world.CLEAN, 1), cluster=changed(world.CLEAN.cluster, instance_id="b", metadata_uri="zk://b/l")
    )
    text = read(render_index([other, world.CLEAN])).text
    assert text.count("zk://b/l") == 2
    assert "No run yet" in read(render_index([])).text


def test_an_index_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    (tmp_path / "index.html" / "in the way").write_text("")
    world.write(tmp_path, world.CLEAN)
    assert [document["run_id"] for document in report.summaries(tmp_path)] == [world.CLEAN.run_id]


def test_percentages_are_never_rounded_to_0_or_100() -> None:
    counts = changed(world.CLEAN.counts, ledgers=10_000_000)
    one = changed(world.CLEAN, counts=counts, severities=(SeverityCount(Severity.CRITICAL, 1, 1, 0),))
    text = page_of(one).text
    assert "< 0.01 % of all ledgers" in text
    assert "9,999,999 of 10,000,000 ledgers have no finding (> 99.9 %)" in text


def test_two_runs_that_end_together_are_both_in_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other run ends after this one has listed the runs and before it writes the index."""
    ours, theirs = world.at(world.CLEAN, 1), world.at(world.CLEAN, 2)
    pending = [theirs]

    def render(runs: Sequence[RunSummary]) -> bytes:
        if pending:
            world.write(tmp_path, pending.pop())
        return render_index(runs)

    monkeypatch.setattr(report, "render_index", render)
    world.write(tmp_path, ours)
    text = (tmp_path / "index.html").read_text()
    assert f"{ours.run_id}/report.html" in text
    assert f"{theirs.run_id}/report.html" in text


numbers = st.integers(0, 1 << 62)
names = st.text(max_size=90)
counts_by_name = st.dictionaries(names, numbers, max_size=3)
bookie_counts = st.builds(
    BookieCount, names, st.sampled_from(BookieState), st.booleans(), numbers, numbers, numbers, numbers
)
runs = st.builds(
    RunSummary,
    run_id=st.just("20260102T030405Z-00000b"),
    cluster=st.builds(ClusterName, names, st.just(world.CLEAN.cluster.instance_id)),
    started_ms=st.integers(0, 1 << 44),
    finished_ms=st.integers(0, 1 << 44),
    counts=st.builds(LedgerCounts, *[numbers] * 7),
    severities=st.lists(
        st.builds(SeverityCount, st.sampled_from(Severity), numbers, numbers, numbers), unique_by=lambda c: c.severity
    ).map(lambda found: tuple(sorted(found, key=lambda count: count.severity))),
    bookies=st.lists(bookie_counts, max_size=5).map(tuple),
    worst_ledgers=st.lists(
        st.builds(
            WorstLedger,
            numbers,
            st.sampled_from(Severity),
            numbers,
            numbers,
            st.lists(names, max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    published=st.builds(
        PublishResult, st.sampled_from(PublishOutcome), numbers, numbers, counts_by_name, counts_by_name
    ),
    problems=st.lists(names, max_size=2).map(tuple),
    held_because=st.none() | names,
    kind=st.sampled_from(RunKind),
    is_dry_run=st.booleans(),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(runs, runs)
def test_every_run_gets_a_page_whatever_its_content(run: RunSummary, previous: RunSummary) -> None:
    """The numbers may even contradict each other: if the page failed, the run would have no report."""
    read(render_report(run, changed(previous, kind=run.kind), [trend_point(previous), trend_point(run)], None))
    read(render_index([run, previous]))


@pytest.mark.parametrize(
    ("limits", "scope"),
    [
        ({"sample": 0.05}, "a sample of 5%"),
        ({"sample": 0.001, "ledger_min": 7}, "a sample of 0.1%, ids from 7"),
        ({"ledger_min": 5, "ledger_max": 99}, "ids from 5 to 99"),
    ],
)
def test_a_replicas_check_of_some_ledgers_claims_nothing_about_the_others(limits: dict[str, Any], scope: str) -> None:
    asked = changed(world.ASKED, ledgers=18, unknown=(), **limits)
    run = changed(world.REPLICAS, replicas=asked, severities=(), worst_ledgers=())
    page = page_of(run)
    assert "18 ledgers checked, none with a finding." in page.text
    assert f"Bookies were asked about 18 of 1,284 ledgers ({scope}); the rest is unknown." in page.text
    assert f"Saw every ledger no, only {scope}" in page.text
    assert "18 ledgers checked, no finding." in page.text
    assert "Every bookie holds" not in page.text
    assert f"checked     18 ledgers: {scope}" in table(run)


def test_a_replicas_check_of_some_ledgers_compares_its_findings_with_the_ledgers_that_it_checked() -> None:
    run = changed(world.REPLICAS, replicas=changed(world.ASKED, ledgers=18, sample=0.05))
    page = page_of(run)
    assert "With findings 6 33.3 % of these ledgers" in page.text
    assert "12 of 18 ledgers have no finding (66.7 %)" in page.text
    assert "Bookies were asked about 18 of 1,284 ledgers (a sample of 5%); the rest is unknown." in page.text


def test_copies_without_an_answer_are_not_among_those_without_a_finding() -> None:
    unknown = "Copies on bookies that did not answer are unknown."
    clean = changed(world.REPLICAS, severities=(), worst_ledgers=())
    assert f"1,284 ledgers checked, no finding. {unknown}" in page_of(clean).text
    assert f"the worst are at the left. {unknown}" in page_of(world.REPLICAS).text
    answered = page_of(changed(clean, replicas=changed(world.ASKED, unknown=()))).text
    assert "All of 1,284 ledgers without a finding." in answered
    assert unknown not in answered
