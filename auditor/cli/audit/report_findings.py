"""``bkheal report findings``: findings of a run, or of all runs since a time, with filters, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.audit.remote_reports import remote_report_rows, remote_run_id
from auditor.cli.audit.report_options import ReportDirOption, RunArgument, SeverityOption, print_note_if_no_runs
from auditor.cli.output import StreamFormat, print_note
from auditor.cli.paging import LIMIT_DEFAULT, PAGE_ROWS_MAX, LimitOption, print_page
from auditor.cli.running import StreamOutputOption
from auditor.cli.spans import moment_ms
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.severity import Severity
from bookie.model.times import epoch_ms
from bookie.runtime.clock import SystemClock
from bookie.runtime.human import printable

if TYPE_CHECKING:
    from spark_jobs.report.findings.filters import FindingFilter


@reachable
def findings(
    run: RunArgument = "latest",
    report_dir: ReportDirOption = Path("reports"),
    severity: SeverityOption = None,
    bookie: Annotated[
        str | None, typer.Option(help="Only those that lack this bookie's copy.", show_default=False)
    ] = None,
    ledger: Annotated[
        int | None, typer.Option(min=0, max=LEDGER_ID_MAX, help="Only this ledger.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Of all runs that finished since: 30m, 2h, 7d ago, or 2026-01-31T12:00.", show_default=False),
    ] = None,
    limit: LimitOption = LIMIT_DEFAULT,
    after: Annotated[
        str | None, typer.Option(help="Begin after this finding: the last value of the previous page.")
    ] = None,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the findings of a run by ledger, or with --since of all runs, the newest first; with filters, in pages.

    Example: `bkheal report findings --severity no_live_copy --since 7d --output jsonl`
    """
    from spark_jobs.report.findings.filters import FindingFilter

    wanted = FindingFilter(None if severity is None else Severity.of_label(severity.value), bookie, ledger)
    if since is not None:
        if run != "latest":
            raise typer.BadParameter("it lists findings of all runs, so name no run", param_hint="--since")
        since_ms = moment_ms(since, SystemClock().epoch_ms())
        if service is None:
            page = _findings_since(report_dir, since_ms, wanted, limit, after)
        else:
            page = _remote_findings_since(service, since_ms, wanted, limit, after)
    elif service is None:
        page = _findings(report_dir, run, wanted, limit, after)
    else:
        page = _remote_findings(service, run, wanted, limit, after)
    headings: tuple[str, ...] = ("LEDGER", "FRAGMENT FROM", "SEVERITY", "COPIES", "KIND", "MISSING", "DETAIL")
    cells, right = _finding_cells, (0, 1, 3)
    if since is not None:
        headings, cells, right = ("RUN", *headings), _cells_of_runs, (1, 2, 4)
    left_out = page.get("left_out", ())
    nothing = "nothing was found" if since is not None else f"run {page['run_id']} {_nothing(wanted, after)}"
    if run == "latest" and since is None and after is None:
        nothing += "; it is the newest run of any kind: name another run, or list those of all runs with --since 1d"
    print_page(output, "FindingList", page, headings, cells, right=right, nothing=nothing, member="finding")
    for path in left_out:
        print_note(f"{printable(path)} is damaged, and its findings are left out")
    if since is not None and service is None:
        print_note_if_no_runs(report_dir)


def _nothing(wanted: FindingFilter, after: str | None) -> str:
    """Which findings a run does not have. The latest run may be another check than a reader thinks of."""
    from spark_jobs.report.findings.filters import ANY

    findings = "findings" if wanted == ANY else "such findings"
    return f"has no {findings}" if after is None else f"has no more {findings}"


def _cells_of_runs(row: dict[str, Any]) -> Sequence[object]:
    return (row["run_id"], *_finding_cells(row))


def _finding_cells(row: dict[str, Any]) -> Sequence[object]:
    first, copies = row["fragment_first_entry_id"], row["copies_min"]
    return (
        "-" if row["ledger_id"] is None else row["ledger_id"],
        "-" if first is None else first,
        row["severity"] or "-",
        "-" if copies is None else copies,
        row["kind"],
        printable(",".join(row["missing"])) or "-",
        printable(row["detail"] or ""),
    )


def _findings(
    report_dir: Path,
    run: str,
    wanted: FindingFilter,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    import re

    from spark_jobs.report.findings.filters import CURSOR_PATTERN, parse_cursor
    from spark_jobs.report.findings.one_run import read_findings
    from spark_jobs.report.history import find

    if after is not None and not re.fullmatch(CURSOR_PATTERN, after):
        raise typer.BadParameter("it must be the last value of the previous page", param_hint="--after")
    run_id = find(report_dir, run).run_id
    page = read_findings(report_dir, run_id, limit, wanted, None if after is None else parse_cursor(after))
    following = None if page.next_after is None else str(page.next_after)
    return {"run_id": run_id, "items": page.rows, "next_after": following}


def _findings_since(
    report_dir: Path,
    since_ms: int,
    wanted: FindingFilter,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    from spark_jobs.report.findings.all_runs import InvalidCursorError, findings_since

    try:
        return findings_since(report_dir, since_ms, limit, wanted, after)
    except InvalidCursorError as error:
        raise typer.BadParameter(str(error), param_hint="--after") from error


def _remote_findings_since(
    service: Service,
    since_ms: int,
    wanted: FindingFilter,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    """Return findings as ``_findings_since`` does, from the reports that the service still has."""
    from spark_jobs.report.findings.filters import cursor_of

    first, slash, within = (after or "").partition("/")
    if after is not None and not slash:
        raise typer.BadParameter("it must be the last value of the previous page", param_hint="--after")
    ended = {each["run_id"]: each["modified"] for each in remote_report_rows(service) if each["modified"] is not None}
    runs = sorted((run for run, modified in ended.items() if epoch_ms(modified) >= since_ms), reverse=True)
    rows: list[dict[str, Any]] = []
    for run in runs:
        if after is not None and run > first:
            continue
        start = within if run == first else None
        if len(rows) == limit:
            # The page is full. The next page begins with this run, if the run has any finding.
            if _remote_findings(service, run, wanted, 1, start)["items"]:
                return {"items": rows, "next_after": f"{rows[-1]['run_id']}/{cursor_of(rows[-1])}"}
            continue
        page = _remote_findings(service, run, wanted, limit - len(rows), start)
        rows += [{"run_id": run, **row} for row in page["items"]]
        if page["next_after"] is not None:
            return {"items": rows, "next_after": f"{run}/{page['next_after']}"}
    return {"items": rows, "next_after": None}


def _remote_findings(
    service: Service,
    run: str,
    wanted: FindingFilter,
    limit: int,
    after: str | None,
) -> dict[str, Any]:
    run = remote_run_id(service, run)
    severity = None if wanted.severity is None else wanted.severity.label
    rows: list[dict[str, Any]] = []
    while True:
        query = {"severity": severity, "bookie": wanted.bookie, "ledger": wanted.ledger_id, "after": after}
        size = min(limit - len(rows), PAGE_ROWS_MAX)
        page = service.ask("GET", f"/runs/{quote(run, safe='')}/findings", {**query, "limit": size})
        rows += page["items"]
        after = page["next_after"]
        if after is None or len(rows) >= limit:
            return {"run_id": run, "items": rows, "next_after": after}
