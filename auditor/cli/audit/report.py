"""``bkheal report``: what audits found, from the reports that they left on disk. Needs neither Spark nor a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditor.cli.audit.report_findings import findings
from auditor.cli.audit.report_options import ReportDirOption, RunArgument
from auditor.cli.audit.report_sql import sql
from auditor.cli.output import OutputFormat, print_json, print_line, print_note, print_table
from auditor.cli.running import OutputOption
from bookie.model.times import utc_text
from bookie.runtime.human import duration, printable

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
def list_reports(
    report_dir: ReportDirOption = Path("reports"),
    limit: Annotated[int, typer.Option(min=1, help="The newest so many.")] = 50,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the runs that left a report, the newest first."""
    from itertools import islice

    from bookie.model.times import rfc3339
    from spark_jobs.report.history import reports

    runs = tuple(islice(reports(report_dir), limit))
    if output is OutputFormat.JSON:
        print_json("AuditReportList", items=[_brief(run) for run in runs])
        return
    if not runs:
        print_line(f"no reports in {report_dir.absolute()}; `bkheal audit run` writes one")
        return
    print_table(
        ("RUN", "CHECK", "VERDICT", "FINISHED", "TOOK", "LEDGERS", "FOUND", "MARKED"),
        [
            (
                run.run_id,
                f"{run.kind.value}{' (dry run)' if run.is_dry_run else ''}",
                run.verdict.value,
                rfc3339(run.finished_ms),
                duration(run.finished_ms - run.started_ms),
                run.counts.ledgers,
                sum(count.ledgers for count in run.severities),
                run.published.ledgers,
            )
            for run in runs
        ],
        right=(4, 5, 6, 7),
    )


@app.command("show")
def show(
    run: RunArgument = "latest",
    report_dir: ReportDirOption = Path("reports"),
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a run found; as JSON, the document that it left."""
    from spark_jobs.report.console import table
    from spark_jobs.report.history import find
    from spark_jobs.report.page.advice import environment, next_steps

    summary = find(report_dir, run)
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
def compare(
    old: Annotated[str, typer.Argument(help="The earlier run; default: the complete one before NEW.")] = "",
    new: Annotated[str, typer.Argument(help="The later run; default: the latest.")] = "latest",
    report_dir: ReportDirOption = Path("reports"),
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what changed between two runs of one check on one cluster.

    With one run, that one is compared with the latest; with none, the latest with the complete one before it.
    """
    from spark_jobs.report.diff import diff
    from spark_jobs.report.history import NoSuchReportError, earlier_than, find, reports

    later = find(report_dir, new)
    earlier = find(report_dir, old) if old else earlier_than(reports(report_dir), later)
    if earlier is None:
        raise NoSuchReportError(
            f"there is no complete {later.kind.value} check of that cluster before {later.run_id} to compare it with"
        )
    changes = diff(earlier, later)
    if output is OutputFormat.JSON:
        print_json("AuditReportDiff", **changes.to_json())
        return
    _print_diff(changes)


@app.command("open")
def open_page(run: RunArgument = "latest", report_dir: ReportDirOption = Path("reports")) -> None:
    """Open a run's page in a browser, and print its path."""
    import webbrowser

    from spark_jobs.report.files import PAGE
    from spark_jobs.report.history import NoSuchReportError, find

    page = (report_dir / find(report_dir, run).run_id / PAGE).resolve()
    if not page.is_file():
        raise NoSuchReportError(f"this run left no page: {page}; `bkheal report show` prints its findings")
    print_line(str(page))
    if not webbrowser.open(page.as_uri()):
        print_note("no browser could be started here; open the file yourself")


def _brief(run: RunSummary) -> dict[str, object]:
    document = run.to_json()
    names = (
        "run_id",
        "run_kind",
        "dry_run",
        "cluster",
        "started",
        "finished",
        "verdict",
        "complete",
        "counts",
        "findings",
    )
    return {name: document[name] for name in (*names, "published")}


def _print_diff(changes: ReportDiff) -> None:
    from spark_jobs.report.page.words import SEVERITY_NAMES

    old, new = changes.old, changes.new
    print_line(f"from        {old.run_id}, {utc_text(old.finished_ms)}")
    print_line(f"to          {new.run_id}, {utc_text(new.finished_ms)}")
    for caveat in changes.caveats:
        print_line(f"note        {caveat}")
    print_line(f"verdict     {old.verdict.value} -> {new.verdict.value}")
    for name, change in (("ledgers", changes.ledgers), ("unreadable", changes.unreadable)):
        if change is not None:
            print_line(f"{name:<12}{_arrow(change)}")
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
        print_line(f"{'findings':<12}{SEVERITY_NAMES[severity]}: {_arrow(change)} ledgers")
    if changes.worst_appeared:
        print_line(f"{'new worst':<12}{' '.join(map(str, changes.worst_appeared))}")
    if changes.is_empty:
        print_line("nothing changed")


def _arrow(change: Change) -> str:
    return f"{change.before} -> {change.now} ({change.by:+})" if change.by else f"{change.now} (no change)"
