"""``bkheal audit shadow``: compares the bookies check as a dry run with the marks of the cluster's own auditor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from auditor.cli.audit import options as opt
from auditor.cli.audit.run_errors import exit_after_error
from auditor.cli.output import OutputFormat, print_error, print_json, print_line, print_table, shown_progress
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri
from bookie.metadata.uri import parse_uri
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind
from bookie.runtime.closed_pipes import discard_unread_output
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.human import counted, printable
from bookie.runtime.user import user_name
from spark_jobs.settings import AuditSettings

if TYPE_CHECKING:
    from spark_jobs.one_shot.run import OneShot
    from spark_jobs.runs.port import Gate
    from spark_jobs.runs.run import AuditResult
    from spark_jobs.shadow.run import Shadow

HELP: Final = (
    "Compare our findings with what is marked; change nothing.\n\n"
    "For a cluster in which Apache's auditor marks ledgers. The command runs the bookies check as a dry run, with its "
    "usual report. Then it compares the findings with the existing under-replication tasks, whichever program wrote "
    "them. The two were read at different moments, so every difference is checked a second time. A difference that has "
    "disappeared by then counts as resolved.\n\n"
    "agree: the task names at least the bookies that we found lost.\n\n"
    "only here: we found it, and it is not marked. This is explained if the lost-bookie delay has not passed, "
    "auto-recovery is disabled, no auditor leads, the loss is new, or bkheal drains the bookie.\n\n"
    "only there: it is marked, and we found nothing. This is explained if the ledger was deleted, the bookie returned, "
    "an operator accepted the loss, or the metadata no longer names the bookie. It is also explained if the mark "
    "requests better placement, or names missing entries (Apache's all-ledgers check asks bookies for them; ours is "
    "`bkheal audit run --kind replicas`).\n\n"
    "differ: there is a task, but it does not name a bookie that we found lost. The explanations are those of "
    "*only here*.\n\n"
    "Nothing is marked, created or changed in the cluster, except for the record of the run (/bkheal/runs) and, until "
    "its end, a node that counts it (/bkheal/readers; or below another state root). Every ledger that differs is in "
    "the table shadow.parquet of the run's report. "
    "docs/migration.md explains how to use it, and how to take over a cluster.\n\n"
    "Run it once while the cluster is healthy, and again some minutes after a bookie was stopped."
)
EPILOG: Final = (
    "Exit codes: 0 both agree, or every difference is explained; 1 differences without an explained reason; 2 wrong "
    "usage; 3 ZooKeeper unreachable or lost; 5 not every ledger was checked (what was is compared); 6 too many bookies "
    "missing (nothing compared); 7 cancelled; 70 Spark or this program failed; 75 another bookies check is under way "
    "(nothing done, see --wait); 78 wrong configuration, no BookKeeper cluster there, or ZooKeeper does not allow it."
)

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end of a bookies check that is under way.")]
MissingShareOption = Annotated[
    float, typer.Option(min=0, max=1, help="Compare nothing if a larger share of the known bookies is missing.")
]
LimitOption = Annotated[int, typer.Option(min=0, max=10_000, help="How many of the ledgers that differ to print.")]
SettleOption = Annotated[
    float,
    typer.Option(min=0, help="Seconds after a loss is first seen in which the other auditor may still be working."),
]


def shadow(
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    report_dir: opt.ReportDirOption = Path("reports"),
    wait: WaitOption = False,
    wait_s: opt.WaitSecondsOption = None,
    master: opt.MasterOption = None,
    missing_share_max: MissingShareOption = 0.5,
    settle_s: SettleOption = 300.0,
    limit: LimitOption = 20,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """The command; its help is ``HELP``."""
    from spark_jobs.one_shot.keeper import WAIT_S_MAX
    from spark_jobs.one_shot.run import OneShot
    from spark_jobs.session import SessionSettings

    target = metadata_uri(uri, config)
    parse_uri(target)  # first, because a bad URI is wrong configuration (78), but a bad option is wrong usage (2)
    try:
        settings = AuditSettings(target, report_dir, is_dry_run=True, missing_share_max=missing_share_max)
        session = SessionSettings(master=master)
    except ConfigurationError as error:
        raise typer.BadParameter("; ".join(error.problems)) from error
    patience_s = wait_s if wait_s is not None else (WAIT_S_MAX if wait else 0.0)
    shot = OneShot(RunKind.BOOKIES, settings, session, user_name(), patience_s, is_shadow=True)
    with exit_after_error():
        result, found = _compared(shot, limit, settle_s)
    sys.stderr.write(f"report: {result.page_path}\n")
    if found is None:
        print_error(f"nothing was compared: {result.summary.held_because}")
        raise typer.Exit(result.exit_code())
    with discard_unread_output(sys.stdout):
        _print(found, result, output)
    raise typer.Exit(exit_code(result, found))


def _compared(shot: OneShot, rows_max: int, settle_s: float) -> tuple[AuditResult, Shadow | None]:
    """Run and compare, in one Spark session and under one lock; None if the brake held."""
    from bookie.runtime.clock import SystemClock
    from spark_jobs.one_shot.run import run_one_shot

    found: list[Shadow] = []
    with shown_progress() as progress:

        def then(spark: Any, result: AuditResult, gate: Gate) -> None:
            from spark_jobs.shadow.run import compare  # imports Spark, so only after its environment is set

            if result.summary.held_because is None:
                clock = SystemClock()
                found.append(
                    compare(spark, result, shot.settings, progress, gate, clock, rows_max=rows_max, settle_s=settle_s)
                )

        result = run_one_shot(shot, progress, then=then)
    return result, found[0] if found else None


def exit_code(result: AuditResult, found: Shadow) -> int:
    """Return the run's exit code, unless it is 0 and there are unexplained differences."""
    code = int(result.exit_code())
    return code if code != ExitCode.OK or not found.unexplained else ExitCode.FAILED


def _print(found: Shadow, result: AuditResult, output: OutputFormat) -> None:
    summary = result.summary
    if output is OutputFormat.JSON:
        document: dict[str, Any] = {
            "cluster": {"metadata_uri": summary.cluster.metadata_uri, "instance_id": summary.cluster.instance_id},
            "complete": summary.is_complete,
            "problems": list(summary.problems),
            "ledgers": summary.counts.ledgers,
            **found.to_json(),
        }
        print_json("AuditShadow", **document)
        return
    for line in _lines(found, result):
        print_line(printable(line))
    _print_tables(found)


def _lines(found: Shadow, result: AuditResult) -> Iterator[str]:
    from spark_jobs.shadow.reasons import Agreement

    summary = result.summary
    recovery = "disabled" if found.is_disabled else "enabled"
    yield f"verdict     {_verdict(found)}"
    yield f"cluster     {summary.cluster.metadata_uri} ({summary.cluster.instance_id})"
    yield f"run         {summary.run_id}, a dry run; {counted(summary.counts.ledgers, 'ledger')} checked"
    yield f"auditor     {found.leader or 'nobody leads'}"
    yield f"recovery    {recovery}, delay for lost bookies {found.delay_s} s"
    for problem in summary.problems:
        yield f"incomplete  {problem}"
    yield f"agree       {found.agree}"
    yield f"resolved    {found.resolved}"
    for outcome in (Agreement.ONLY_HERE, Agreement.ONLY_THERE, Agreement.DIFFER):
        yield f"{outcome.value:<12}{found.total(outcome)}"
    yield f"table       {found.table}"


def _verdict(found: Shadow) -> str:
    if found.unexplained:
        return f"{counted(found.unexplained, 'difference')} without an explained reason"
    return "every difference is explained" if found.differing else "both agree"


def _print_tables(found: Shadow) -> None:
    from spark_jobs.shadow.run import ordered

    if not found.differing:
        return
    print_line()
    print_table(
        ("DIFFERENCE", "REASON", "EXPLAINED", "LEDGERS", "WHAT IT IS"),
        [
            (outcome.value, reason.word, "yes" if reason.is_explained else "NO", count, reason.text)
            for (outcome, reason), count in ordered(found.differing)
        ],
        right=(3,),
    )
    if found.rows:
        print_line()
        print_table(
            ("LEDGER", "DIFFERENCE", "REASON", "FOUND LOST", "MARKED FOR"),
            [
                (
                    row.ledger_id,
                    row.outcome.value,
                    row.reason.word,
                    printable(" ".join(row.found)) or "-",
                    "-" if row.marked is None else printable(" ".join(row.marked)) or "nobody",
                )
                for row in found.rows
            ],
            right=(0,),
        )
