"""Reloads the configuration file of a long-running command, by the same rules as at its start."""

from __future__ import annotations

import os
from collections.abc import Mapping

import typer

from auditor.cli.configuration.settings import LIVE, MakeSettings
from auditor.cli.configuration.sources import command_words, content_at_start, problems_of, settings_of, values_in
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.configuration.settings import (
    URI_KEY,
    URI_VARIABLE,
    ConfigurationError,
    config_file,
    parse_config,
    uri_from_content,
)


def config_source(context: typer.Context, make: MakeSettings) -> ConfigSource | None:
    """Return the file that was given to a command, to follow its changes while it runs; None: there was none.

    Args:
        context: of the call.
        make: makes the settings, and refuses options with which the command would not start.
    """
    path, words = config_file(context.params["config"], os.environ), command_words(context)
    if path is None:
        return None
    given, named_uri = _given(context, words), context.params["uri"] or os.environ.get(URI_VARIABLE)

    def parse(text: str) -> Mapping[str, object]:
        content = parse_config(text, path)
        problems: list[str] = []
        uri = uri_from_content(content, path, problems)
        problems += problems_of(content, words, context)
        if problems:
            raise ConfigurationError(problems)
        values = values_in(content, words, context)
        stay = {option: context.params[option] for option in given if option != URI_KEY}
        make(named_uri or uri or "", values | stay)
        return values | {URI_KEY: uri}

    start = content_at_start(context)
    values = values_in(start, words, context) | {URI_KEY: uri_from_content(start, path, [])}
    return ConfigSource(path, parse, values, given, LIVE[words])


def _given(context: typer.Context, words: tuple[str, ...]) -> dict[str, str]:
    """Return the flag or the variable of each option that takes precedence over the file."""
    given = {}
    for setting in settings_of(context.command, words):
        source = context.get_parameter_source(setting.key)
        if source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            given[setting.key] = setting.flag if source.name == "COMMANDLINE" else setting.variable
    if context.params["uri"] or os.environ.get(URI_VARIABLE):
        given[URI_KEY] = "--metadata-uri" if context.params["uri"] else URI_VARIABLE
    return given
