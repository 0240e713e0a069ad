"""``bkheal report`` on reports on disk."""

from __future__ import annotations

import json
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.model.errors import BkhealError
from bookie.model.severity import Severity
from spark_jobs.report.counts import SeverityCount
from tests.worlds import report as world

FIRST, SECOND = world.at(world.CLEAN, 0), world.at(world.NO_LIVE_COPY, 1)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reports")
    world.write(directory, FIRST, SECOND)
    return directory


def bkheal(*arguments: str, reports: Path) -> str:
    result = CliRunner().invoke(app, ["report", *arguments, "--report-dir", str(reports)])
    if isinstance(result.exception, BkhealError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_runs_are_listed_newest_first(reports: Path) -> None:
    lines = bkheal("list", reports=reports).splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", SECOND.run_id, FIRST.run_id]
    assert "no live copy" in lines[1]
    document = json.loads(bkheal("list", "--limit", "1", "-o", "json", reports=reports))
    assert document["kind"] == "AuditReportList"
    assert [item["run_id"] for item in document["items"]] == [SECOND.run_id]


def test_a_run_is_shown_with_advice_and_as_its_document(reports: Path) -> None:
    text = bkheal("show", reports=reports)
    assert "verdict     no live copy" in text
    assert "bkheal ledger show 42" in text
    document = json.loads(bkheal("show", "20260101", "-o", "json", reports=reports))
    assert document == json.loads((reports / FIRST.run_id / "summary.json").read_bytes())


@pytest.mark.parametrize("filters", [(), ("--ledger", "7")], ids=" ".join)
def test_the_run_without_findings_is_named(reports: Path, filters: tuple[str, ...]) -> None:
    """The latest run may be another check than the reader thinks of."""
    newest = bkheal("findings", *filters, reports=reports)
    assert (SECOND.run_id in newest, "newest run of any kind" in newest) == (True, True)
    named = bkheal("findings", FIRST.run_id, *filters, reports=reports)
    assert (FIRST.run_id in named, "newest run of any kind" in named) == (True, False)


@pytest.mark.parametrize("name", ["no_live_copy", "no-live-copy", "NO_LIVE_COPY"])
def test_a_severity_is_accepted_in_each_spelling(reports: Path, name: str) -> None:
    assert "has no such findings" in bkheal("findings", "--severity", name, reports=reports)
    refused = CliRunner().invoke(app, ["report", "findings", "--severity", f"{name}s"])
    assert (refused.exit_code, "is not one of lost" in refused.stderr) == (2, True)


def test_two_runs_are_compared(reports: Path) -> None:
    text = bkheal("diff", reports=reports)
    assert "verdict     clean -> no live copy" in text
    assert "lost        bookie-00" in text
    assert "no_live_copy: 0 -> 3 ledgers (+3)" in text
    back = json.loads(bkheal("diff", SECOND.run_id, FIRST.run_id, "-o", "json", reports=reports))
    assert back["findings"][0] == {"severity": "no_live_copy", "before": 3, "now": 0, "change": -3}
    assert "nothing changed" in bkheal("diff", "latest", reports=reports)


@pytest.mark.parametrize(
    ("before", "now", "shown"), [(0, 1, "0 -> 1 ledger (+1)"), (1, 1, "1 ledger (no change)"), (1, 0, "1 -> 0 ledgers")]
)
def test_a_change_to_one_ledger_is_printed_in_the_singular(tmp_path: Path, before: int, now: int, shown: str) -> None:
    runs = [
        replace(world.at(world.NO_LIVE_COPY, day), severities=(SeverityCount(Severity.NO_LIVE_COPY, count, 1, 1),))
        for day, count in enumerate((before, now))
    ]
    world.write(tmp_path, *runs)
    assert f"no_live_copy: {shown}" in bkheal("diff", reports=tmp_path)


def test_a_page_is_opened_and_its_path_printed(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def browse(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    page = (reports / FIRST.run_id / "report.html").resolve()
    assert bkheal("open", FIRST.run_id, reports=reports).splitlines() == [str(page)]
    assert opened == [page.as_uri()]


def test_errors_contain_advice(reports: Path, tmp_path: Path) -> None:
    assert "`bkheal audit run` writes one" in bkheal("list", reports=tmp_path)
    for command in (("show",), ("diff",), ("open",)):
        with pytest.raises(BkhealError, match="holds no report"):
            bkheal(*command, reports=tmp_path)
    with pytest.raises(BkhealError, match="2 runs begin with"):
        bkheal("show", "2026", reports=reports)
    world.write(tmp_path, FIRST)
    with pytest.raises(BkhealError, match="no complete bookies check of that cluster before"):
        bkheal("diff", reports=tmp_path)
    (tmp_path / FIRST.run_id / "report.html").unlink()
    with pytest.raises(BkhealError, match="left no page"):
        bkheal("open", reports=tmp_path)


def test_a_store_without_reports_is_named_and_one_without_new_reports_is_not(tmp_path: Path, reports: Path) -> None:
    for store, is_named in ((tmp_path / "misspelt", True), (reports, False)):
        words = ["report", "fetch", store.as_uri(), "--report-dir"]
        done = CliRunner().invoke(app, [*words, str(reports)])
        assert (done.exit_code, done.stdout) == (0, "")
        assert (store.as_uri() in done.stderr) is is_named


def test_control_characters_in_names_are_not_printed(tmp_path: Path) -> None:
    world.write(tmp_path, world.at(world.ATTACK, 0), world.at(world.ATTACK, 1))
    for command in (("list",), ("show",), ("diff", "20260101")):
        assert "\x1b" not in bkheal(*command, reports=tmp_path)
