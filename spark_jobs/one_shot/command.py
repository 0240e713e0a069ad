"""The command line of one audit run. Every error ends as one sentence on standard error and an exit code."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.model.run import RunKind
from bookie.runtime.closed_pipes import discard_unread_output
from bookie.runtime.configuration.options import add_options, build, options_of, values_in
from bookie.runtime.user import user_name
from spark_jobs.one_shot.keeper import WAIT_S_MAX
from spark_jobs.one_shot.run import OneShot, exit_code_of, run_one_shot
from spark_jobs.report.console import table
from spark_jobs.runs.port import Phase, Progress, ProgressEvent
from spark_jobs.runs.run import AuditResult
from spark_jobs.session import SessionSettings
from spark_jobs.settings import SNAPSHOT_HELP, SNAPSHOT_READING_KINDS, AuditSettings, FailOn, problem_of_kind

_log = logging.getLogger(__name__)

_EXIT_CODES: Final = """
exit codes:
  0   done
  1   there are findings of --fail-on or worse
  2   wrong usage
  3   ZooKeeper cannot be reached, or the connection was lost
  5   incomplete: not every ledger was checked
  6   the brake: too many bookies are missing, nothing was marked
  7   cancelled; existing marks stay
  70  Spark or this program failed
  75  another run of this kind is under way, nothing was done (see --wait)
  78  wrong configuration, no BookKeeper cluster at the metadata URI, no topology, an unusable snapshot, or no report
      (the ledgers are marked nevertheless)
  128 + the number of a signal that ended the run (143: SIGTERM)
"""


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one audit with these arguments, and return the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.snapshot is not None or arguments.snapshot_url) and RunKind(
        arguments.kind
    ) not in SNAPSHOT_READING_KINDS:
        parser.error(f"a run of kind {arguments.kind} has no --snapshot")
    if problem := problem_of_kind(RunKind(arguments.kind), _given(arguments)):
        if not arguments.scheduled:
            parser.error(problem)
        _say(f"note: {problem}; ignored")
    return guarded_run(lambda: _run(arguments))


def _given(arguments: argparse.Namespace) -> list[str]:
    """Return the names of the options with another value than their default."""
    return [each.name for each in options_of(AuditSettings) if getattr(arguments, each.name) != each.default]


def guarded_run(run: Callable[[], int]) -> int:
    """Run, and turn an error into a sentence on standard error and an exit code. Unexpected errors are also logged."""
    try:
        return run()
    except BkhealError as error:
        _say(f"error: {error}")
        return exit_code_of(error)
    except Exception as error:  # noqa: BLE001  # the boundary of a command; the log has the traceback
        _log.exception("the run failed")
        _say(f"error: {type(error).__name__}: {error}")
        return ExitCode.INTERNAL


def _run(arguments: argparse.Namespace) -> int:
    shot = OneShot(
        RunKind(arguments.kind),
        build(
            AuditSettings,
            values_in(arguments, AuditSettings),
            metadata_uri=arguments.metadata_uri,
            snapshot=arguments.snapshot,
        ),
        SessionSettings(master=arguments.master),
        user_name(),
        arguments.wait,
        arguments.scheduled,
    )
    result = run_one_shot(shot, None if arguments.quiet else _reporter())
    _print(result, arguments.output)
    return result.exit_code(arguments.fail_on)


def _reporter() -> Progress:
    """Return a function that prints the start of each phase on standard error."""
    seen: list[Phase] = []

    def report(event: ProgressEvent) -> None:
        if event.phase not in (*seen[-1:], Phase.DONE):
            seen.append(event.phase)
            _say(f"{event.phase.value} ...")

    return report


def _print(result: AuditResult, output: str) -> None:
    text = json.dumps(result.summary.to_json(), indent=2) if output == "json" else table(result.summary)
    with discard_unread_output(sys.stdout):
        sys.stdout.write(f"{text}\n")
    _say(f"error: {result.report_problem}" if result.report_problem else f"report: {result.page_path}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="audit",
        description="Check all ledgers of a cluster once, report what is wrong, and mark it for repair.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--metadata-uri", required=True, help="for example 'zk://zk1:2181;zk2:2181/ledgers'")
    parser.add_argument("--output", choices=("table", "json"), default="table", help="what to print (default: table)")
    parser.add_argument("--master", help="Spark master (default: all cores of this machine, or spark-submit's)")
    parser.add_argument(
        "--fail-on",
        type=FailOn,
        choices=list(FailOn),
        metavar="|".join(level.value for level in FailOn),
        default=FailOn.NEVER,
        help="exit with 1 from these findings on (default: never)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in RunKind],
        default=RunKind.BOOKIES.value,
        help="bookies: fragments on lost bookies; placement: ensembles against the rack, zone and region policy; "
        "replicas: ask each bookie whether it holds what it should; references: ledgers against what Pulsar refers to; "
        "everything: bookies, placement, the metadata itself and what bookies hold (default: bookies)",
    )
    parser.add_argument(
        "--wait",
        nargs="?",
        type=float,
        const=WAIT_S_MAX,
        default=0.0,
        metavar="SECONDS",
        help="wait for the end of a run of this kind that is under way, instead of exit code 75",
    )
    parser.add_argument(
        "--scheduled",
        action="store_true",
        help="a schedule starts this run: do not record the start among the changes by operators",
    )
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help=SNAPSHOT_HELP)
    add_options(parser, AuditSettings)
    return parser
