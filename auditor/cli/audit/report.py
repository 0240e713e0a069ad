"""``bkheal report``: the findings of audits, from their reports on disk or at a running service.

Needs neither Spark nor a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from auditor.cli.at import Service, reachable
from auditor.cli.audit.remote_reports import remote_earlier_run, remote_reports, remote_run_id, remote_summary
from auditor.cli.audit.report_findings import findings
from auditor.cli.audit.report_options import ReportDirOption, RunArgument
from auditor.cli.audit.report_sql import sql
from auditor.cli.output import OutputFormat, StreamFormat, print_json, print_line, print_note
from auditor.cli.paging import print_note_at_limit, print_page
from auditor.cli.running import OutputOption, StreamOutputOption
from bookie.model.times import epoch_ms, utc_text
from bookie.runtime.human import agreeing, counted, duration, printable

if TYPE_CHECKING:
    from spark_jobs.report.diff import Change, ReportDiff
    from spark_jobs.report.summary import RunSummary

app = typer.Typer(
    help="Reports of audits: list, show, compare, ask in SQL, open in a browser.",
    epilog="Try: `bkheal report sql 'SELECT run_id, verdict, ledgers_critical FROM runs ORDER BY finished DESC'`.",
    no_args_is_help=True,
)
app.command("findings")(findings)
app.command("sql")(sql)


@app.command("list")
@reachable
def list_reports(
    report_dir: ReportDirOption = Path("reports"),
    limit: Annotated[int, typer.Option(min=1, help="Number of newest reports to list.")] = 50,
    output: StreamOutputOption = StreamFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """List the runs with a report, the newest first. With --at, the runs with a report at that auditor."""
    rows = remote_reports(service, limit) if service else _listed(report_dir, limit)
    where = "with the service" if service else f"in {report_dir.absolute()}"
    print_page(
        output,
        "AuditReportList",
        {"items": rows},
        ("RUN", "CHECK", "VERDICT", "FINISHED", "TOOK", "LEDGERS", "FOUND", "MARKED"),
        _report_cells,
        right=(4, 5, 6, 7),
        nothing=f"no reports {where}; `bkheal audit run` writes one",
    )
    print_note_at_limit(output, len(rows), limit)


def _listed(report_dir: Path, limit: int) -> list[dict[str, Any]]:
    from itertools import islice

    from spark_jobs.report.history import brief, reports

    return [brief(summary) for summary in islice(reports(report_dir), limit)]


def _report_cells(row: dict[str, Any]) -> Sequence[object]:
    return (
        row["run_id"],
        f"{row['run_kind']}{' (dry run)' if row['dry_run'] else ''}",
        row["verdict"],
        row["finished"],
        duration(epoch_ms(row["finished"]) - epoch_ms(row["started"])),
        row["counts"]["ledgers"],
        sum(count["ledgers"] for count in row["findings"]),
        row["published"]["ledgers"],
    )


@app.command("show")
@reachable
def show(
    run: RunArgument = "latest",
    report_dir: ReportDirOption = Path("reports"),
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """Show the findings of a run; as JSON, the document of its report."""
    from spark_jobs.report.console import table
    from spark_jobs.report.history import find
    from spark_jobs.report.page.advice import environment, next_steps

    summary = remote_summary(service, remote_run_id(service, run)) if service else find(report_dir, run)
    if output is OutputFormat.JSON:
        document = dict(summary.to_json())
        del document["apiVersion"]
        print_json(document.pop("kind"), **document)
        return
    print_line(table(summary))
    steps = next_steps(summary)
    if steps:
        print_line("\nnext")
    for number, step in enumerate(steps, 1):
        print_line(f"  {number}. {printable(step.text)}")
        for command in step.commands:
            print_line(f"       {printable(command)}")
    if any(step.commands for step in steps):
        print_line(f"\n  {printable(environment(summary))}")


@app.command("diff")
@reachable
def compare(
    old: Annotated[str, typer.Argument(help="The earlier run; default: the complete one before NEW.")] = "",
    new: Annotated[str, typer.Argument(help="The later run; default: the latest.")] = "latest",
    report_dir: ReportDirOption = Path("reports"),
    output: OutputOption = OutputFormat.TABLE,
    *,
    service: Service | None = None,
) -> None:
    """Show the changes between two runs of one check on one cluster.

    If one run is given, it is compared with the latest run. Without arguments, the latest run is compared with the
    complete run before it.
    """
    from spark_jobs.report.diff import diff
    from spark_jobs.report.history import NoSuchReportError

    earlier, later = _remote_runs_to_compare(service, old, new) if service else _runs_to_compare(report_dir, old, new)
    if earlier is None:
        raise NoSuchReportError(
            f"there is no complete {later.kind.value} check of that cluster before {later.run_id} to compare it with"
        )
    changes = diff(earlier, later)
    if output is OutputFormat.JSON:
        print_json("AuditReportDiff", **changes.to_json())
        return
    _print_diff(changes)


def _runs_to_compare(report_dir: Path, old: str, new: str) -> tuple[RunSummary | None, RunSummary]:
    from spark_jobs.report.history import earlier_run_to_compare, find, reports

    later = find(report_dir, new)
    return find(report_dir, old) if old else earlier_run_to_compare(reports(report_dir), later), later


def _remote_runs_to_compare(service: Service, old: str, new: str) -> tuple[RunSummary | None, RunSummary]:
    later = remote_summary(service, remote_run_id(service, new))
    earlier = remote_summary(service, remote_run_id(service, old)) if old else remote_earlier_run(service, later)
    return earlier, later


@app.command("fetch")
def fetch(
    report_store: Annotated[
        str,
        typer.Argument(
            envvar="BKHEAL_AUDITOR_REPORT_STORE",
            help="Address of the store, such as s3://BUCKET/PATH.",
            show_envvar=True,
        ),
    ],
    report_dir: ReportDirOption = Path("reports"),
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of newest reports to check.")] = 50,
) -> None:
    """Copy the reports that are missing on this machine from a store, and add them to the tables of all runs.

    After that, every command about reports works with them. Example: `bkheal report fetch s3://bkheal/reports`
    """
    from spark_jobs.report.store import ReportStore
    from spark_jobs.report.store_runs import fetch_missing, stored_runs
    from spark_jobs.store_address import StoreAddressError, parse_address

    try:
        store = ReportStore(parse_address(report_store))
    except StoreAddressError as error:
        raise typer.BadParameter(str(error), param_hint="'report_store'") from error
    fetched = fetch_missing(store, report_dir, limit)
    for run_id in fetched:
        print_line(run_id)
    if not fetched and not stored_runs(store):
        print_note(f"{report_store} holds no report; `bkheal audit run --report-store` writes one there")
        return
    were = agreeing(len(fetched), "was", "were")
    print_note(f"{counted(len(fetched), 'report')} {were} fetched to {report_dir.absolute()}")


@app.command("open")
@reachable
def open_page(
    run: RunArgument = "latest",
    report_dir: ReportDirOption = Path("reports"),
    *,
    service: Service | None = None,
) -> None:
    """Open a run's page in a browser, and print its path, or with --at its address."""
    import webbrowser

    if service is None:
        page = _page(report_dir, run)
        print_line(str(page))
        address = page.as_uri()
    else:
        run_id = remote_summary(service, remote_run_id(service, run)).run_id  # fails if there is no report
        address = f"{service.base}/reports/{run_id}/"
        print_line(address)
    if not webbrowser.open(address):
        print_note("no browser could be started here; open the page yourself")


def _page(report_dir: Path, run: str) -> Path:
    from spark_jobs.report.files import PAGE
    from spark_jobs.report.history import NoSuchReportError, find

    page = (report_dir / find(report_dir, run).run_id / PAGE).resolve()
    if not page.is_file():
        raise NoSuchReportError(f"this run left no page: {page}; `bkheal report show` prints its findings")
    return page


def _print_diff(changes: ReportDiff) -> None:
    old, new = changes.old, changes.new
    print_line(f"from        {old.run_id}, {utc_text(old.finished_ms)}")
    print_line(f"to          {new.run_id}, {utc_text(new.finished_ms)}")
    for caveat in changes.caveats:
        print_line(f"note        {caveat}")
    print_line(f"verdict     {old.verdict.value} -> {new.verdict.value}")
    for name, change in (("ledgers", changes.ledgers), ("unreadable", changes.unreadable)):
        if change is not None:
            print_line(f"{name:<12}{_change_text(change)}")
    for name, bookies in (
        ("lost", changes.bookies.lost),
        ("returned", changes.bookies.returned),
        ("joined", changes.bookies.joined),
        ("read-only", changes.bookies.turned_read_only),
        ("writable", changes.bookies.turned_writable),
        ("forgotten", changes.bookies.forgotten),
    ):
        for bookie in bookies:
            print_line(f"{name:<12}{printable(bookie)}")
    for severity, change in changes.severities.items():
        print_line(f"{'findings':<12}{severity.label}: {_change_text(change, 'ledger')}")
    if changes.worst_appeared:
        print_line(f"{'new worst':<12}{' '.join(map(str, changes.worst_appeared))}")
    if changes.is_empty:
        print_line("nothing changed")


def _change_text(change: Change, noun: str = "") -> str:
    now = counted(change.now, noun) if noun else str(change.now)
    return f"{change.before} -> {now} ({change.by:+})" if change.by else f"{now} (no change)"
