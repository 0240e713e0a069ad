"""The ``bkheal`` command. A command is imported and built when it is used, so each one starts fast."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import shutil
import signal
import sys
from collections.abc import Iterator, MutableMapping
from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup, TyperOption
from typing_extensions import override

from auditor.cli.configuration.security_options import CallOptions, set_security_before_command
from auditor.cli.configuration.settings_options import with_options
from auditor.cli.output import print_error, print_line
from auditor.cli.running import log_no_attempts_to_connect
from bookie.metadata.access import VARIABLES, set_current_access
from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode
from bookie.runtime.arrow import leave_out_pandas
from bookie.runtime.closed_pipes import STANDARD_OUTPUT, flush_or_discard, prepare_streams
from bookie.runtime.configuration.options import build
from bookie.runtime.grpc_environment import prepare_grpc
from bookie.runtime.logs import setup_logging

prepare_grpc()  # before any import of grpc, which reads the environment

BOXES_FROM_COLUMNS: Final = 120
"""Below this width, long option names leave only a few letters for the explanations, and words are cut off."""
_SERVERS: Final = ("auditor", "bookie", "exporter", "replicator")
"""Long-running commands, whose logs are kept and should contain lost connections."""

_COMMANDS: Final = {
    "Try it": {
        "quickstart": "auditor.cli.quickstart:quickstart",
        "demo": "auditor.cli.quickstart:demo",
    },
    "State of the cluster": {
        "status": "auditor.cli.cluster.status:status",
        "progress": "auditor.cli.cluster.progress:progress",
        "bookies": "auditor.cli.cluster.bookies:bookies",
        "underreplicated": "auditor.cli.cluster.boost:underreplicated_app",
        "dead-letters": "auditor.cli.dead_letters.command:app",
        "debts": "auditor.cli.cluster.debts:app",
        "doctor": "auditor.cli.cluster.doctor:doctor",
        "changes": "auditor.cli.cluster.changes:changes",
    },
    "Audits": {
        "audit": "auditor.cli.audit.command:app",
        "report": "auditor.cli.audit.report:app",
        "impact": "auditor.cli.audit.impact:impact",
    },
    "Maintenance and repair": {
        "ok-to-stop": "auditor.cli.cluster.ok_to_stop:ok_to_stop",
        "what-if": "auditor.cli.cluster.what_if:what_if",
        "maintenance": "auditor.cli.cluster.maintenance:app",
        "drain": "auditor.cli.drains.command:app",
        "decommission": "auditor.cli.drains.decommission:decommission",
        "recover": "auditor.cli.cluster.recovery:recover",
        "recovery": "auditor.cli.cluster.recovery:app",
        "throttle": "auditor.cli.cluster.throttle:app",
        "collection": "auditor.cli.cluster.collection:app",
    },
    "Processes": {
        "auditor": "auditor.cli.services.auditor:auditor",
        "replicator": "auditor.cli.services.processes:replicator",
        "exporter": "auditor.cli.services.exporter:exporter",
        "bookie": "auditor.cli.bookie.command:bookie_app",
    },
    "Ledgers and logs": {
        "ledger": "auditor.cli.ledgers.ledger:app",
        "log": "auditor.cli.ledgers.log:app",
        "simpletest": "auditor.cli.ledgers.simpletest:simpletest",
    },
    "Set-up": {
        "cluster": "auditor.cli.cluster.root:app",
        "config": "auditor.cli.configuration.command:app",
        "auditor-token": "auditor.cli.audit.remote:auditor_token",
        "bench": "auditor.cli.bench:app",
    },
}
"""The module and name of each command or group of commands, by heading in the help."""
_PLACES: Final = {name: (heading, place) for heading, commands in _COMMANDS.items() for name, place in commands.items()}


_USAGE_ERRORS: Final[Any] = import_module(typer.BadParameter.__module__)  # click, or typer's copy of it


class _Commands(MutableMapping[str, Any]):
    """All commands by name. Each one is imported and built at its first use."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}
        self.is_plain = False
        """Whether commands that are built from now on have help without boxes."""

    @override
    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            heading, place = _PLACES[name]
            module, _, variable = place.partition(":")
            self._built[name] = _built(name, heading, getattr(import_module(module), variable))
            if self.is_plain:
                _plain(self._built[name])
        return self._built[name]

    @override
    def __setitem__(self, name: str, command: Any) -> None:
        self._built[name] = command

    @override
    def __delitem__(self, name: str) -> None:
        raise TypeError("the commands are fixed")

    @override
    def __contains__(self, name: object) -> bool:
        return name in _PLACES

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    @override
    def __len__(self) -> int:
        return len(_PLACES)


class _Root(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands()

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_PLACES)

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _readable_usage_errors():
            return super().parse_args(ctx, args)

    @override
    def invoke(self, ctx: Any) -> Any:
        with _readable_usage_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def _readable_usage_errors() -> Iterator[None]:
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")  # the prefix is from pydantic, which typer uses
        error.message += _origin_text(error.ctx, error.param)
        raise
    except _USAGE_ERRORS.NoSuchOption as error:
        error.message += _option_location_text(error.option_name, error.ctx)
        raise


def _origin_text(context: Any, parameter: Any) -> str:
    """Return the end of the sentence about a wrong value that is not from the command line."""
    if context is None or not isinstance(parameter, TyperOption):
        return ""
    from auditor.cli.configuration.sources import origin_of

    origin = origin_of(context, parameter)
    return f" (from {origin})" if origin is not None else ""


def _option_location_text(option: str, context: Any) -> str:
    """Return the end of the sentence about an option in the wrong place: the place where it belongs."""
    if isinstance(context.command, TyperGroup):
        return "; the options of a command follow its name"
    root = context.find_root()
    if any(option in known.opts for known in root.command.params):
        words = context.command_path.removeprefix(root.command_path)
        return f"; it precedes the command: {root.command_path} {option} ...{words}"
    return ""


def _built(name: str, heading: str, command: Any) -> Any:
    parent = typer.Typer(callback=lambda: None)  # with a callback it is a group, even with one command
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=name, rich_help_panel=heading)
    else:
        parent.command(name, rich_help_panel=heading)(command)
    group: Any = typer.main.get_group(parent)
    return group.commands[name]


def command_for_terminal(app: typer.Typer) -> Any:
    """Return the command of ``app``; its help fits the width of this process's terminal, or ``COLUMNS``."""
    command: Any = typer.main.get_command(app)
    command.commands.is_plain = shutil.get_terminal_size().columns < BOXES_FROM_COLUMNS
    return command


def _plain(command: Any) -> None:
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            _plain(below)
        if not command.invoke_without_command:  # the group has no options of its own
            return
    command.rich_markup_mode = None


app = typer.Typer(
    name="bkheal",
    cls=_Root,
    help="Keep the ledgers of a BookKeeper cluster fully replicated: audit, repair and status.",
    epilog="Start with `bkheal quickstart`: it builds a cluster on this machine, kills a bookie and heals it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
@with_options(CallOptions, variables=VARIABLES)
def options(
    context: typer.Context,
    log_level: Annotated[str, typer.Option(help="DEBUG, INFO, WARNING or ERROR; logs go to stderr.")] = "WARNING",
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    **given: Any,
) -> None:
    """Options before the command apply to all commands; those about bookies only if the command has no such options.

    Each of them except --log-level has an environment variable: BKHEAL_ and its name, such as BKHEAL_ZK_TLS_CA.
    """
    made = build(CallOptions, given)
    set_security_before_command(made.security)
    set_current_access(made.zookeeper)
    if version:
        from importlib.metadata import version as installed

        print_line(f"bkheal {installed('bkheal')}")
        raise typer.Exit
    if log_level.upper() not in logging.getLevelNamesMapping():
        raise typer.BadParameter(f"{log_level!r} is not a log level; use DEBUG, INFO, WARNING or ERROR")
    setup_logging(log_level.upper())
    if context.invoked_subcommand not in _SERVERS:
        log_no_attempts_to_connect()


def run_process() -> None:
    """Run ``main`` as the only work of this process. At its end, Python does not search all objects for garbage.

    The search takes a fifth of the processor time of a short command, and the memory is freed anyway.
    """
    leave_out_pandas()
    try:
        main()
    finally:
        gc.freeze()


def main() -> None:
    """Entry point: an expected error exits with one sentence and its exit code, without a traceback.

    If the reader of its output closes the pipe, a command ends as after SIGPIPE. If its work is complete by then, the
    exit code is that of the work.
    """
    prepare_streams()
    output = sys.stdout
    try:
        _run()
    except SystemExit as end:
        failure = flush_or_discard(output)
        if isinstance(end.__context__, BrokenPipeError):  # typer or rich ended the command after this error
            sys.exit(128 + signal.SIGPIPE)
        is_told = isinstance(end.__context__, OSError)
        if failure is not None and not is_told and not isinstance(failure, BrokenPipeError):
            print_error(f"{failure.strerror}: {STANDARD_OUTPUT}")
            sys.exit(ExitCode.FAILED)
        raise


def _run() -> None:
    try:
        command_for_terminal(app)()
    except BkhealError as error:
        from auditor.cli.exit_codes import exit_code_of  # imports the modules of all errors

        print_error(str(error))
        sys.exit(exit_code_of(error))
    except OSError as error:
        print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(ExitCode.FAILED)
    except ModuleNotFoundError as error:
        if (extra := extra_providing(error.name or "")) is None:
            raise
        print_error(f"this command needs {error.name}, which is not installed: pip install 'bkheal[{extra}]'")
        sys.exit(ExitCode.FAILED)


def extra_providing(module: str) -> str | None:
    """Return the smallest extra of this package with ``module``; None if no extra has it."""
    members: dict[str, set[str]] = {}
    for requirement in metadata.requires("bkheal") or ():
        if found := re.match(r"""([\w.-]+).*extra == ['"](\w+)['"]""", requirement):
            members.setdefault(found[2], set()).add(found[1].lower())
    fitting = [extra for extra, names in members.items() if module.partition(".")[0] in names]
    return min(fitting, key=lambda extra: len(members[extra]), default=None)


if __name__ == "__main__":
    run_process()
