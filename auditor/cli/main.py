"""The ``bkheal`` command. Each command imports its modules only when it runs, which keeps ``--help`` fast."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from importlib import metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from auditor.cli import bench, quickstart
from auditor.cli.audit import command as audit
from auditor.cli.audit import impact, remote, report
from auditor.cli.cluster import (
    bookies,
    boost,
    changes,
    collection,
    dead_letters,
    debts,
    decommission,
    doctor,
    drain,
    maintenance,
    ok_to_stop,
    progress,
    recovery,
    status,
    throttle,
    what_if,
)
from auditor.cli.configuration import command as config
from auditor.cli.configuration.security_options import CallOptions, set_for_this_call
from auditor.cli.configuration.settings import with_options
from auditor.cli.exit_codes import exit_code_of
from auditor.cli.ledgers import ledger, log, simpletest
from auditor.cli.output import print_error, print_line
from auditor.cli.services import (
    auditor,
    bookie_commands,
    bookie_cookie,
    bookie_format,
    bookie_upkeep,
    exporter,
    processes,
)
from bookie.metadata.access import VARIABLES, use_access
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.options import build
from bookie.runtime.grpc_environment import prepare_grpc
from bookie.runtime.logs import setup_logging

BOXES_FROM_COLUMNS: Final = 120
"""Below this width, long option names leave only a few letters for the explanations, and words are cut off."""


def command_for_terminal(app: typer.Typer) -> Any:
    """Return the command of ``app``, to be called; it fits the terminal of this process, or ``COLUMNS``."""
    command: Any = typer.main.get_command(app)
    if shutil.get_terminal_size().columns < BOXES_FROM_COLUMNS:
        _plain(command)
    return command


def _plain(command: Any) -> None:
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            _plain(below)
            if isinstance(below, TyperGroup) and below.invoke_without_command:  # it has options of its own
                below.rich_markup_mode = None
    else:
        command.rich_markup_mode = None


prepare_grpc()

_SERVERS: Final = ("auditor", "bookie", "exporter", "replicator")
"""Long-running commands: their logs are kept, and should contain lost connections."""

app = typer.Typer(
    name="bkheal",
    help="Keep the ledgers of a BookKeeper cluster fully replicated: audit, repair and status.",
    epilog="Start with `bkheal quickstart`: it builds a cluster on this machine, kills a bookie and heals it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("quickstart")(quickstart.quickstart)
app.command("demo")(quickstart.demo)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("progress")(progress.progress)
app.add_typer(audit.app, name="audit")
app.command("auditor")(auditor.auditor)
app.command("exporter")(exporter.exporter)
app.command("auditor-token")(remote.auditor_token)
app.command("bookies")(bookies.bookies)
bookie_commands.bookie_app.add_typer(bookie_cookie.app, name="cookie")
bookie_commands.bookie_app.command("format")(bookie_format.format_directories)
app.add_typer(bookie_upkeep.bookie_app, name="bookie")
app.command("replicator")(processes.replicator)
app.command("simpletest")(simpletest.simpletest)
app.add_typer(ledger.app, name="ledger")
app.add_typer(log.app, name="log")
status.underreplicated_app.command("boost")(boost.boost)
app.add_typer(status.underreplicated_app, name="underreplicated")
app.add_typer(recovery.app, name="recovery")
app.command("recover")(recovery.recover)
app.add_typer(throttle.app, name="throttle")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(debts.app, name="debts")
app.command("ok-to-stop")(ok_to_stop.ok_to_stop)
app.command("what-if")(what_if.what_if)
app.add_typer(drain.app, name="drain")
app.add_typer(maintenance.app, name="maintenance")
app.add_typer(collection.app, name="collection")
app.command("decommission")(decommission.decommission)
app.command("changes")(changes.changes)
app.add_typer(report.app, name="report")
app.command("impact")(impact.impact)
app.add_typer(bookies.cluster_app, name="cluster")
app.add_typer(config.app, name="config")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
@with_options(CallOptions, variables=VARIABLES)
def options(
    context: typer.Context,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR; logs go to stderr.")] = "WARNING",
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    **given: Any,
) -> None:
    """Options before the command apply to all commands; those about bookies only if a command has none itself.

    Each of them also has an environment variable: BKHEAL_ and its name, such as BKHEAL_ZK_TLS_CA.
    """
    made = build(CallOptions, given)
    set_for_this_call(made.security)
    use_access(made.zookeeper)
    if version:
        from importlib.metadata import version as installed

        print_line(f"bkheal {installed('bkheal')}")
        raise typer.Exit
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"{log_level!r} is not a log level; use DEBUG, INFO, WARNING or ERROR")
    setup_logging(log_level.upper())
    if context.invoked_subcommand not in _SERVERS and logging.getLogger().level >= logging.WARNING:
        logging.getLogger("kazoo.client").setLevel(logging.ERROR)  # one error summarizes the attempts


def main() -> None:
    """Entry point: an expected error exits with one sentence and its exit code, without a traceback."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed (`>&-`): no connection may get its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives
    try:
        command_for_terminal(app)()
    except BkhealError as error:
        print_error(str(error))
        sys.exit(exit_code_of(error))
    except OSError as error:
        print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(ExitCode.FAILED)
    except ModuleNotFoundError as error:
        if (extra := extra_of(error.name or "")) is None:
            raise
        print_error(f"this command needs {error.name}, which is not installed: pip install 'bkheal[{extra}]'")
        sys.exit(ExitCode.FAILED)


def extra_of(module: str) -> str | None:
    """Return the smallest extra of this package with ``module``; None if no extra has it."""
    members: dict[str, set[str]] = {}
    for requirement in metadata.requires("bkheal") or ():
        if found := re.match(r"""([\w.-]+).*extra == ['"](\w+)['"]""", requirement):
            members.setdefault(found[2], set()).add(found[1].lower())
    fitting = [extra for extra, names in members.items() if module.partition(".")[0] in names]
    return min(fitting, key=lambda extra: len(members[extra]), default=None)


if __name__ == "__main__":
    main()
