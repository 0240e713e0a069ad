"""Makes the options of a command from a settings class.

The settings class is the only place of an option, its default, its range and its help.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Container
from typing import Annotated, Any, TypeVar

import typer

from bookie.runtime.configuration.options import REQUIRED, SettingsOption, options_of

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
    """Return the parameter of an option for Typer."""
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
