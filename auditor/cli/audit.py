"""``bkheal audit``: one audit run, here and now."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditor.cli.exit_codes import ExitCode
from auditor.cli.output import OutputFormat, print_line
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri

if TYPE_CHECKING:
    from spark_jobs.progress import ProgressEvent


def audit(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    report_dir: Annotated[Path, typer.Option(help="Holds a directory with the report of each run.")] = Path("reports"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Find and report, but mark nothing for repair.")] = False,
    master: Annotated[str | None, typer.Option(help="Spark master; default: all cores of this machine.")] = None,
    fail_on: Annotated[
        str,
        typer.Option(help="Exit with 1 from these findings on: never, no-live-copy, critical, under-replicated, any."),
    ] = "never",
    missing_share_max: Annotated[
        float, typer.Option(min=0, max=1, help="Mark nothing when a larger share of the known bookies is missing.")
    ] = 0.5,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read all ledger metadata with Spark, find fragments that lost a copy, and mark them for repair.

    Exit codes: 0 done, 3 ZooKeeper unreachable, 5 not every ledger was seen, 6 too many bookies missing (nothing
    marked), 78 wrong configuration or no BookKeeper cluster there.
    """
    from spark_jobs.audit import run_audit
    from spark_jobs.cluster_view import check_cluster
    from spark_jobs.render import table
    from spark_jobs.session import SessionSettings, spark_session
    from spark_jobs.settings import AuditSettings, FailOn

    if fail_on not in {level.value for level in FailOn}:
        raise typer.BadParameter(f"{fail_on!r}: use one of {', '.join(level.value for level in FailOn)}")
    settings = AuditSettings(
        metadata_uri(uri, config), report_dir, is_dry_run=dry_run, missing_share_max=missing_share_max
    )
    check_cluster(settings)  # a wrong address should not cost the ten seconds that Spark takes to start
    try:
        with _progress() as progress, spark_session(SessionSettings(master=master)) as spark:
            result = run_audit(spark, settings, progress)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if output is OutputFormat.JSON:
        print_line(json.dumps(result.summary.to_json(), indent=2))
    else:
        print_line(table(result.summary))
    sys.stderr.write(f"report: {result.summary_path}\n")
    raise typer.Exit(result.exit_code(FailOn(fail_on)))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[ProgressEvent], None]]:
    """Progress on standard error: a bar on a terminal, a line a phase elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting Spark", total=None)

        def show(event: ProgressEvent) -> None:
            bar.update(task, description=event.phase.value, completed=event.done, total=event.total)

        yield show


def _lines() -> Callable[[ProgressEvent], None]:
    seen: list[str] = []

    def show(event: ProgressEvent) -> None:
        if seen[-1:] != [event.phase.value]:
            seen.append(event.phase.value)
            sys.stderr.write(f"{event.phase.value} ...\n")

    return show
