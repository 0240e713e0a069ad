"""The commands of ``bkheal`` have the options of their settings classes, with the same defaults and ranges."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from auditor.cli.main import app
from auditor.exporter.settings import ExporterSettings
from auditor.service.settings import ServiceSettings
from bookie.runtime.configuration.options import REQUIRED, build, options_of
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings
from spark_jobs.settings import AuditSettings

URI = "zk://h:2181/ledgers"


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("auditor",), ServiceSettings),
        (("exporter",), ExporterSettings),
        (("replicator",), ReplicatorSettings),
        (("bookie",), BookieSettings),
        (("audit", "run"), AuditSettings),
    ],
)
def test_a_command_has_an_option_for_each_setting(words: tuple[str, ...], settings: type) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    parameters = {parameter.name: parameter for parameter in command.params}
    for option in options_of(settings):
        found = parameters[option.name]
        assert option.flag in found.opts
        assert found.required == (option.default is REQUIRED)
        if not found.required:
            assert found.default == option.default
        assert found.max == (option.declared.maximum if option.type in (int, float) else None)


@pytest.mark.parametrize("settings", [ServiceSettings, ReplicatorSettings, AuditSettings])
def test_options_and_settings_have_the_same_defaults(settings: Any) -> None:
    defaults = {option.name: option.default for option in options_of(settings)}
    assert build(settings, defaults, metadata_uri=URI) == settings(metadata_uri=URI)
