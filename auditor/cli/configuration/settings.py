"""The options of the long-running commands, and their combination: settings, or every problem with them at once.

The options come from the settings class of each process, so an option, its default, its range and its help are stated
once. A command uses this at its start, ``bkheal config validate`` for a file, and a running process for a changed file,
so all three agree. Values come from the command line parser, by name.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from auditor.cli.configuration.security_options import given_or_of_this_call
from auditor.cli.output import OutputFormat
from auditor.exporter.settings import ExporterSettings
from auditor.service.settings import ServiceSettings
from bookie.model.metadata import DigestType
from bookie.runtime.configuration.options import REQUIRED, SettingsOption, build, live_options, options_of
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings
from spark_jobs.settings import AuditSettings

Options: TypeAlias = Mapping[str, Any]
MakeSettings: TypeAlias = Callable[[str, Options], object]
"""Settings from metadata URI and options. Raises ConfigurationError with every problem."""
Command = TypeVar("Command", bound=Callable[..., None])


def with_options(
    settings: type, only: Container[str] | None = None, variables: str | None = None
) -> Callable[[Command], Command]:
    """Give a Typer command the options of a settings class in place of its ``**`` parameter.

    Args:
        settings: the class.
        only: names of the options to take; None: all.
        variables: prefix of the environment variable of each option; None: as for all commands
            (``auditor.cli.configuration.sources``). With a prefix the parser leaves ranges to the settings.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [_parameter(option, variables) for option in options_of(settings) if only is None or option.name in only]
        parameters = [*own, *made]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(option: SettingsOption, variables: str | None) -> inspect.Parameter:
    """Typer's view of an option."""
    declared, default = option.declared, option.default
    words: dict[str, Any] = {"help": option.help, "rich_help_panel": option.heading or None}
    if option.type in (int, float) and variables is None:
        words |= {"min": declared.above if declared.minimum is None else declared.minimum, "max": declared.maximum}
    if issubclass(option.type, enum.Enum):
        words["case_sensitive"] = False
    if default in (None, "") or declared.default_text:
        words["show_default"] = declared.default_text or False
    if variables is not None:
        words |= {"envvar": f"{variables}{option.name}".upper(), "show_envvar": False}
    kind: Any = option.type | None if option.is_optional else option.type
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is REQUIRED else default,
        annotation=Annotated[kind, typer.Option(**words)],
    )


def bookie_settings(uri: str, given: Options) -> BookieSettings:
    """Settings of ``bkheal bookie``.

    Raises:
        ConfigurationError: with every problem.
    """
    return build(BookieSettings, given, metadata_uri=uri)


def replicator_settings(uri: str, given: Options) -> ReplicatorSettings:
    """Settings of ``bkheal replicator``.

    Raises:
        ConfigurationError: with every problem.
    """
    is_json = given.get("output") is OutputFormat.JSON
    settings = build(ReplicatorSettings, given, metadata_uri=uri, is_output_json=is_json)
    return replace(settings, security=given_or_of_this_call(settings.security))


def auditor_settings(uri: str, given: Options) -> ServiceSettings:
    """Settings of ``bkheal auditor``.

    Raises:
        ConfigurationError: with every problem.
    """
    return build(ServiceSettings, given, metadata_uri=uri)


def exporter_settings(uri: str, given: Options) -> ExporterSettings:
    """Settings of ``bkheal exporter``.

    Raises:
        ConfigurationError: with every problem.
    """
    return build(ExporterSettings, given, metadata_uri=uri)


def audit_settings(uri: str, given: Options) -> AuditSettings:
    """Settings of ``bkheal audit run``, and of the short form ``bkheal audit``, which has few of the options.

    Raises:
        ConfigurationError: with every problem.
    """
    settings = build(AuditSettings, given, metadata_uri=uri)
    return replace(settings, security=given_or_of_this_call(settings.security))


def new_ledger(uri: str, given: Options) -> None:
    """Only check the options of a command that creates ledgers; there is no settings object for these commands.

    Raises:
        ConfigurationError: with every problem.
    """
    problems = []
    for look in (
        lambda: check_quorums(given["ensemble_size"], given["write_quorum"], given["ack_quorum"]),
        lambda: digest_named(given["digest"]),
    ):
        try:
            look()
        except typer.BadParameter as error:
            problems.append(error.message)
    _refuse(problems)


RULES: Final[Mapping[tuple[str, ...], MakeSettings]] = {
    ("auditor",): auditor_settings,
    ("audit",): audit_settings,
    ("audit", "run"): audit_settings,
    ("exporter",): exporter_settings,
    ("replicator",): replicator_settings,
    ("bookie",): bookie_settings,
    ("simpletest",): new_ledger,
    ("ledger", "write"): new_ledger,
    ("log", "create"): new_ledger,
}
"""Commands whose options contradict each other in some combinations."""

LIVE: Final[Mapping[tuple[str, ...], frozenset[str]]] = {
    ("auditor",): live_options(ServiceSettings),
    ("replicator",): live_options(ReplicatorSettings),
    ("bookie",): live_options(BookieSettings),
}
"""Commands that follow their file while they run, with the reloadable options."""

STAYING: Final = frozenset({*LIVE, ("exporter",)})
"""Commands that run until they are stopped, whether they follow their file or not."""


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError(problems)


def digest_named(name: str) -> DigestType:
    """Return the digest type of this name, in upper or lower case.

    Raises:
        typer.BadParameter: there is no such type.
    """
    if name.upper() not in DigestType.__members__:
        raise typer.BadParameter(f"{name!r} is not a digest type; use one of {', '.join(DigestType.__members__)}")
    return DigestType[name.upper()]


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> tuple[int, int, int]:
    """Return the three as one value.

    Raises:
        typer.BadParameter: no ledger can have them.
    """
    if not ensemble_size >= write_quorum >= ack_quorum:
        shape = f"{ensemble_size}/{write_quorum}/{ack_quorum}"
        raise typer.BadParameter(f"{shape} cannot be: need ensemble size >= write quorum >= ack quorum (-e, -w, -a)")
    return ensemble_size, write_quorum, ack_quorum
