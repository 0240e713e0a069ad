"""``bkheal audit``: one check of the whole cluster, in this process or by a service; and commands about runs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from auditor.cli.audit import options as opt
from auditor.cli.audit import prepare as audit_prepare
from auditor.cli.audit import runs as audit_runs
from auditor.cli.audit import shadow as audit_shadow
from auditor.cli.audit.run_errors import exit_after_error
from auditor.cli.configuration.settings import Options, audit_settings
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.output import OutputFormat, print_error, print_line, print_note, shown_progress
from auditor.cli.running import ConfigOption, MetadataUriOption, OutputOption, metadata_uri
from bookie.metadata.uri import parse_uri
from bookie.model.run import RunKind, RunRecord
from bookie.runtime.closed_pipes import discard_unread_output
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.user import user_name
from spark_jobs.settings import SNAPSHOT_READING_KINDS, AuditSettings, FailOn, problem_of_kind

if TYPE_CHECKING:
    from spark_jobs.one_shot.run import OneShot
    from spark_jobs.runs.port import ProgressEvent

_CHECKS: Final = """
Checks (--kind):

  bookies     read all ledger metadata, find fragments that lost a copy with their bookie, mark them for repair

  placement   find ensembles that break the rack, zone and region policy; marks nothing by default

  replicas    ask every bookie whether it has the entries that it should, mark what is missing

  references  find ledgers that nothing in Pulsar refers to, and references to ledgers that do not exist; marks nothing

  everything  bookies and placement, faults of the metadata itself, and what bookies of bkheal hold, with one reading

Only one run of a kind is active in a cluster at a time, no matter how it was started.
"""
_EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 findings from --fail-on on, 2 wrong usage, 3 ZooKeeper unreachable or lost, 5 not every "
    "ledger was checked, 6 too many bookies missing (nothing marked), 7 cancelled (what was marked stays), 69 the "
    "service of --at did not answer, 70 Spark or this program failed, 75 another run of this kind is under way "
    "(nothing done), 78 wrong configuration, no BookKeeper cluster there or an unusable snapshot; 130 and 143 ended by "
    "Ctrl-C and SIGTERM, cleanly."
)

app = typer.Typer(
    invoke_without_command=True,
    help="Check all ledgers with Spark, and list the runs of checks.\n\n"
    "Without a command, an audit starts at once, as with `bkheal audit run`: it finds fragments that lost a copy with "
    "their bookie, and marks them for repair. --dry-run marks nothing.",
)


@app.callback(epilog=_EXIT_CODES)
@with_options(AuditSettings, only=("report_dir", "dry_run", "missing_share_max"))
def audit(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    master: opt.MasterOption = None,
    fail_on: opt.FailOnOption = FailOn.NEVER,
    output: OutputOption = OutputFormat.TABLE,
    **options: Any,
) -> None:
    """The command; its help is above."""
    if context.invoked_subcommand is not None:
        context.auto_envvar_prefix = None  # each subcommand has its own prefix, and its help does not show it
        _refuse_options(context)
        return
    shot = _make_one_shot(
        RunKind.BOOKIES,
        _settings(metadata_uri(uri, config), options),
        master=master,
        wait_s=0,
    )
    _run_locally(shot, fail_on, output)


@app.command("run", help=f"Run one check, once.\n{_CHECKS}", epilog=_EXIT_CODES)
@with_options(AuditSettings)
def run(
    context: typer.Context,
    uri: MetadataUriOption = None,
    config: ConfigOption = None,
    kind: opt.KindOption = RunKind.BOOKIES,
    wait: opt.WaitOption = False,
    wait_s: opt.WaitSecondsOption = None,
    scheduled: opt.ScheduledOption = False,
    snapshot: opt.SnapshotOption = None,
    master: opt.MasterOption = None,
    fail_on: opt.FailOnOption = FailOn.NEVER,
    output: OutputOption = OutputFormat.TABLE,
    http_port: opt.MetricsPortOption = None,
    http_host: opt.MetricsHostOption = "127.0.0.1",
    metrics_file: opt.MetricsFileOption = None,
    pushgateway: opt.PushgatewayOption = None,
    cluster_name: opt.ClusterNameOption = "bookkeeper",
    at: opt.AtOption = None,
    token_file: opt.TokenFileOption = None,
    ca: opt.CaOption = None,
    client_cert: opt.ClientCertOption = None,
    client_key: opt.ClientKeyOption = None,
    **options: Any,
) -> None:
    """The command; its help is above."""
    from spark_jobs.one_shot.keeper import WAIT_S_MAX

    patience_s = wait_s if wait_s is not None else (WAIT_S_MAX if wait else 0.0)
    if at:
        sent = _sent_options(context, kind)
        remotes = audit_runs.services(at, token_file, ca, client_cert, client_key)
        is_json = output is OutputFormat.JSON
        code = audit_runs.start(
            remotes, kind, is_dry_run=options["dry_run"], options=sent, wait_s=patience_s, is_json=is_json
        )
        raise typer.Exit(code)
    if (snapshot is not None or options["snapshot_url"]) and kind not in SNAPSHOT_READING_KINDS:
        raise typer.BadParameter(f"a run of kind {kind.value} has no --snapshot")
    _refuse_options_of_other_kinds(context, kind, is_scheduled=scheduled)
    settings = replace(
        _settings(metadata_uri(uri, config), options if scheduled else {**options, "pushgateway": pushgateway}),
        snapshot=snapshot,
    )
    if metrics_file is not None and not scheduled:
        _require_metrics_file(metrics_file)
    exported = _metrics_exporter(metrics_file, pushgateway, cluster_name)
    with _metrics_served(kind, http_port, http_host) as on_progress:
        shot = _make_one_shot(kind, settings, master=master, wait_s=patience_s, is_scheduled=scheduled)
        _run_locally(shot, fail_on, output, exported, on_progress)


app.command("prepare", help=audit_prepare.HELP, epilog=audit_prepare.EPILOG)(audit_prepare.prepare)
app.command("shadow", help=audit_shadow.HELP, epilog=audit_shadow.EPILOG)(audit_shadow.shadow)
app.command("list")(audit_runs.list_runs)
app.command("show")(audit_runs.show)
app.command("cancel")(audit_runs.cancel)
app.command("pause")(audit_runs.pause)
app.command("resume")(audit_runs.resume)


_OF_THIS_SIDE: Final = frozenset(
    {"kind", "dry_run", "wait", "wait_s", "at", "token_file", "ca", "client_cert", "client_key", "output"}
)
"""Options of ``run`` that keep their meaning with ``--at``, besides the options of the run itself."""
_LOCAL_RUN_OPTIONS: Final = frozenset({"fail_on", "http_port", "metrics_file", "pushgateway"})
"""Options that only a run in this process can use. With --at they are refused, also from environment or file."""


def _sent_options(context: typer.Context, kind: RunKind) -> dict[str, bool | int | float]:
    """Return the options to send to a service.

    Raises:
        typer.BadParameter: a given option cannot be sent, or does not exist for this kind of run.
    """
    from auditor.api.http.queries import RUN_OPTIONS

    flags = {str(parameter.name): parameter.opts[0] for parameter in context.command.params}
    by_source = _sources(context)
    given = {name for name, source in by_source.items() if source == "COMMANDLINE"}
    defaults = {str(parameter.name): parameter.default for parameter in context.command.params}
    given -= _LOCAL_RUN_OPTIONS
    given |= {name for name in _LOCAL_RUN_OPTIONS if context.params[name] != defaults[name]}
    if lost := sorted(given - _OF_THIS_SIDE - RUN_OPTIONS.keys()):
        named = (flags[name] + _origin(context, name, by_source[name]) for name in lost)
        raise typer.BadParameter(
            f"{', '.join(named)} cannot be sent with --at: the service has its own settings. Leave it out, or run the "
            "audit here without --at"
        )
    if problem := problem_of_kind(kind, given):
        raise typer.BadParameter(problem)
    chosen = {name for name, source in by_source.items() if source != "DEFAULT"}
    return {name: context.params[name] for name in RUN_OPTIONS if name in chosen and kind in RUN_OPTIONS[name]}


def _refuse_options_of_other_kinds(context: typer.Context, kind: RunKind, *, is_scheduled: bool) -> None:
    """Refuse flags of other kinds, except with their defaults. The run of a schedule ignores them, with a note.

    Environment and file may have settings for several kinds.

    Raises:
        typer.BadParameter: there is such a flag.
    """
    defaults = {str(parameter.name): parameter.default for parameter in context.command.params}
    sources = _sources(context)
    given = (name for name in sources if sources[name] == "COMMANDLINE" and context.params[name] != defaults[name])
    if problem := problem_of_kind(kind, given):
        if not is_scheduled:
            raise typer.BadParameter(problem)
        print_note(f"{problem}; ignored")


def _sources(context: typer.Context) -> Mapping[str, str]:
    """Return the sources of the values of a command's options, by name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name: "" if source is None else source.name for name, source in sources.items()}


def _origin(context: typer.Context, name: str, source: str) -> str:
    """Return where a value comes from, in brackets; empty for a flag."""
    if source == "ENVIRONMENT":
        return f" (from ${context.auto_envvar_prefix}_{name.upper()})"
    return f" (from {name} in the config file)" if source == "DEFAULT_MAP" else ""


def _settings(uri: str, given: Options) -> AuditSettings:
    parse_uri(uri)  # first, because a bad URI is wrong configuration (78), but a bad option is wrong usage (2)
    try:
        return audit_settings(uri, given)
    except ConfigurationError as error:
        raise typer.BadParameter("; ".join(error.problems)) from error


def _make_one_shot(
    kind: RunKind, settings: AuditSettings, *, master: str | None, wait_s: float, is_scheduled: bool = False
) -> OneShot:
    from spark_jobs.one_shot.run import OneShot
    from spark_jobs.session import SessionSettings

    try:
        session = SessionSettings(master=master)
    except ConfigurationError as error:
        raise typer.BadParameter("; ".join(error.problems), param_hint="'--master'") from error
    return OneShot(kind, settings, session, user_name(), wait_s, is_scheduled)


def _require_metrics_file(file: Path) -> None:
    """Refuse a file that cannot be written. The run of a schedule does its work, and its metrics are missing."""
    from auditor.metrics.export import MetricsExportError, require_metrics_file

    try:
        require_metrics_file(file)
    except MetricsExportError as error:
        raise ConfigurationError([str(error)]) from error


def _metrics_exporter(file: Path | None, gateway: str | None, cluster_name: str) -> Callable[[RunRecord], None]:
    """Export the metrics of a run as requested; a failure is reported and does not change the run's result."""

    def export(record: RunRecord) -> None:
        from auditor.metrics.export import MetricsExportError, export_to_file, push

        try:
            if file is not None:
                export_to_file(record, file)
            if gateway is not None:
                push(record, gateway, cluster_name)
        except MetricsExportError as error:
            print_note(str(error))

    return export


@contextlib.contextmanager
def _metrics_served(kind: RunKind, port: int | None, host: str) -> Iterator[Callable[[ProgressEvent], None]]:
    """Serve metrics during the run, if a port is given; yields the receiver of progress."""
    from auditor.metrics.one_shot import OneShotMetrics, served
    from bookie.runtime.clock import SystemClock
    from bookie.runtime.telemetry.status_settings import StatusServerSettings
    from bookie.runtime.version import installed_version

    metrics = OneShotMetrics(kind, installed_version(), SystemClock())
    with served(metrics, None if port is None else StatusServerSettings(port, host)) as bound:
        if bound is not None:
            sys.stderr.write(f"metrics on http://{host}:{bound}/metrics\n")
        yield metrics.on_progress


def _run_locally(
    shot: OneShot,
    fail_on: FailOn,
    output: OutputFormat,
    ended: Callable[[RunRecord], None] | None = None,
    on_progress: Callable[[ProgressEvent], None] | None = None,
) -> None:
    """Run in this process, and exit."""
    from spark_jobs.one_shot.run import run_one_shot
    from spark_jobs.report.console import table

    with exit_after_error(), shown_progress() as shown:

        def progress(event: ProgressEvent) -> None:
            if on_progress is not None:
                on_progress(event)
            shown(event)

        result = run_one_shot(shot, progress, ended)
    with discard_unread_output(sys.stdout):
        is_json = output is OutputFormat.JSON
        print_line(json.dumps(result.summary.to_json(), indent=2) if is_json else table(result.summary))
    if result.report_problem:
        print_error(result.report_problem)
    else:
        sys.stderr.write(f"report: {result.page_path}\n")
    raise typer.Exit(result.exit_code(fail_on))


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of the short form before a subcommand, where they would have no effect."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"write {flag} after `{context.invoked_subcommand}`, not before it")
