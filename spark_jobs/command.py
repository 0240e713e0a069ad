"""The command line of one audit run. Every error ends as one sentence on standard error and an exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookie.metadata.port import StoreUnavailableError
from bookie.model.errors import BkhealError, PermanentError, TransientError
from spark_jobs.audit import AuditResult, run_audit
from spark_jobs.brake import MISSING_SHARE_MAX
from spark_jobs.cluster_view import check_cluster
from spark_jobs.progress import Phase, Progress, ProgressEvent
from spark_jobs.render import table
from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.settings import AuditSettings, ExitCode, FailOn

_EXIT_CODES: Final = """
exit codes:
  0   done
  1   findings at or above --fail-on
  2   wrong usage
  3   the metadata store cannot be reached
  5   partial: not every ledger was checked
  6   the mass-loss brake holds, nothing was published
  70  Spark or this program failed
  78  bad configuration, or no cluster at the metadata URI
"""


def run_command(argv: Sequence[str] | None) -> int:
    """Parse ``argv`` (default: the process's own), run an audit, print its summary, and return the exit code."""
    arguments = _parser().parse_args(argv)
    return guarded_run(lambda: _run(arguments))


def guarded_run(run: Callable[[], ExitCode]) -> ExitCode:
    """Run, and turn an error into a sentence on standard error and its exit code."""
    try:
        return run()
    except BkhealError as error:
        _say(f"error: {error}")
        return exit_code_of(error)


def exit_code_of(error: BkhealError) -> ExitCode:
    """Exit code of a run that an error ended."""
    if isinstance(error, StoreUnavailableError | TransientError):
        return ExitCode.STORE_UNREACHABLE
    return ExitCode.CONFIGURATION if isinstance(error, PermanentError) else ExitCode.INTERNAL


def _run(arguments: argparse.Namespace) -> ExitCode:
    settings = AuditSettings(
        metadata_uri=arguments.metadata_uri,
        report_dir=arguments.report_dir,
        is_dry_run=arguments.dry_run,
        missing_share_max=arguments.missing_share_max,
    )
    check_cluster(settings)  # wrong addresses should not cost the ten seconds that Spark takes to start
    with spark_session(SessionSettings(master=arguments.master)) as spark:
        result = run_audit(spark, settings, None if arguments.quiet else _reporter())
    _print(result, arguments.output)
    return result.exit_code(FailOn(arguments.fail_on))


def _reporter() -> Progress:
    """Say on standard error when a phase begins."""
    seen: list[Phase] = []

    def report(event: ProgressEvent) -> None:
        if event.phase not in (*seen[-1:], Phase.DONE):
            seen.append(event.phase)
            _say(f"{event.phase.value} ...")

    return report


def _print(result: AuditResult, output: str) -> None:
    text = json.dumps(result.summary.to_json(), indent=2) if output == "json" else table(result.summary)
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    _say(f"report: {result.summary_path}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="audit",
        description="Find every ledger fragment that lost a copy, report it, and mark it for repair.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--metadata-uri", required=True, help="for example zk://zk1:2181;zk2:2181/ledgers")
    parser.add_argument("--report-dir", required=True, type=Path, help="directory that holds the reports of all runs")
    parser.add_argument("--dry-run", action="store_true", help="report, and mark nothing")
    parser.add_argument("--output", choices=("table", "json"), default="table", help="what to print (default: table)")
    parser.add_argument("--master", help="Spark master (default: all cores of this machine, or spark-submit's)")
    parser.add_argument(
        "--fail-on",
        choices=[level.value for level in FailOn],
        default=FailOn.NEVER.value,
        help="exit with 1 from these findings on (default: never)",
    )
    parser.add_argument(
        "--missing-share-max",
        type=float,
        default=MISSING_SHARE_MAX,
        help="largest share of the known bookies, 0 to 1, that may be missing before the brake holds",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return parser
