"""The command line of one audit run. Every error ends as one sentence on standard error and an exit code."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bookie.metadata.bookies.registration import MISSING_SHARE_MAX
from bookie.model.errors import BkhealError
from bookie.model.ids import LEDGER_ID_MAX
from bookie.model.run import RunKind
from bookie.model.spread import PlacementPolicy
from bookie.runtime.user import user_name
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.security import SaslMechanism, SecurityFiles
from spark_jobs.one_shot.run import WAIT_S_MAX, OneShot, exit_code_of, run_one_shot
from spark_jobs.report.console import table
from spark_jobs.runs.port import Phase, Progress, ProgressEvent
from spark_jobs.runs.run import AuditResult
from spark_jobs.session import SessionSettings
from spark_jobs.settings import AuditSettings, FailOn

_EXIT_CODES: Final = """
exit codes:
  0   done
  1   findings at or above --fail-on
  2   wrong usage
  3   the metadata store cannot be reached, or was lost
  5   partial: not every ledger was checked
  6   the mass-loss brake holds, nothing was published
  7   cancelled; marks that were written stay
  70  Spark or this program failed
  75  another run of this kind is under way, nothing was done (see --wait)
  78  wrong configuration, no cluster at the metadata URI, or nothing to judge placement by
  128 + the number of a signal that ended the run (143: SIGTERM)
"""


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one audit with these arguments, and return the exit code."""
    arguments = _parser().parse_args(argv)
    return guarded_run(lambda: _run(arguments))


def guarded_run(run: Callable[[], int]) -> int:
    """Run, and turn an error into a sentence on standard error and its exit code."""
    try:
        return run()
    except BkhealError as error:
        _say(f"error: {error}")
        return exit_code_of(error)


def _run(arguments: argparse.Namespace) -> int:
    shot = OneShot(
        RunKind(arguments.kind),
        _settings(arguments),
        SessionSettings(master=arguments.master),
        user_name(),
        arguments.wait,
    )
    result = run_one_shot(shot, None if arguments.quiet else _reporter())
    _print(result, arguments.output)
    return result.exit_code(FailOn(arguments.fail_on))


def _settings(arguments: argparse.Namespace) -> AuditSettings:
    return AuditSettings(
        metadata_uri=arguments.metadata_uri,
        report_dir=arguments.report_dir,
        is_dry_run=arguments.dry_run,
        missing_share_max=arguments.missing_share_max,
        topology_file=arguments.topology_file,
        placement_policy=PlacementPolicy(
            arguments.min_racks, arguments.min_zones, arguments.min_regions, arguments.strict_placement
        ),
        mark_misplaced=arguments.mark_misplaced,
        ledger_min=arguments.ledger_min,
        ledger_max=arguments.ledger_max,
        sample=arguments.sample,
        sample_seed=arguments.sample_seed,
        security=SecurityFiles(
            arguments.tls_ca,
            arguments.tls_cert,
            arguments.tls_key,
            arguments.sasl_username,
            arguments.sasl_password_file,
            SaslMechanism(arguments.sasl_mechanism),
            arguments.frame_bytes_max,
        ),
    )


def _reporter() -> Progress:
    """Print the start of each phase on standard error."""
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
        description="Check all ledgers of a cluster once, report what is wrong, and mark it for repair.",
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
    parser.add_argument(
        "--kind",
        choices=[kind.value for kind in RunKind],
        default=RunKind.BOOKIES.value,
        help="bookies: fragments on lost bookies; placement: ensembles against the rack, zone and region policy; "
        "replicas: ask each bookie whether it holds what it should (default: bookies)",
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
    _add_placement(parser.add_argument_group("placement"))
    _add_replicas(parser.add_argument_group("replicas"))
    return parser


def _add_placement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--topology-file", type=Path, help="topology file: the rack of each bookie (default: the topology in ZooKeeper)"
    )
    for level, default in (("racks", 2), ("zones", 1), ("regions", 1)):
        group.add_argument(f"--min-{level}", type=int, default=default, help=f"{level} of each write set ({default})")
    group.add_argument(
        "--strict-placement", action="store_true", help="report also ensembles that already span all available domains"
    )
    group.add_argument("--mark-misplaced", action="store_true", help="mark what a replacement would improve")


def _add_replicas(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ledger-min", type=int, default=0, help="lowest ledger id to ask for")
    group.add_argument("--ledger-max", type=int, default=LEDGER_ID_MAX, help="highest ledger id to ask for")
    group.add_argument("--sample", type=float, default=1.0, help="share of the ledgers to ask for, such as 0.01")
    group.add_argument("--sample-seed", type=int, help="which sample (default: another one each time)")
    group.add_argument("--tls-ca", type=Path, help="PEM file: bookies speak TLS, with certificates signed by this")
    group.add_argument("--tls-cert", type=Path, help="PEM file, with --tls-ca")
    group.add_argument("--tls-key", type=Path, help="PEM file, with --tls-ca")
    group.add_argument("--sasl-username", default="", help="log in at Apache bookies that ask for it")
    group.add_argument("--sasl-password-file", type=Path, help="its first line is the password")
    group.add_argument(
        "--sasl-mechanism",
        choices=[mechanism.value for mechanism in SaslMechanism],
        default=SaslMechanism.DIGEST_MD5.value,
        help="how to log in",
    )
    group.add_argument(
        "--frame-bytes-max",
        type=int,
        default=FRAME_BYTES_MAX,
        help="longest frame of Apache bookies, their nettyMaxFrameSizeBytes (%(default)s)",
    )
