"""Makes settings from the options of a command, or reports all problems with them at once.

A command uses this at its start, ``bkheal config validate`` for a file, and a running process for a changed file, so
all three agree. Values come from the command line parser, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar

from auditor.cli.configuration.security_options import effective_security_files
from auditor.cli.ledgers.new_ledger import new_ledger
from auditor.cli.output import OutputFormat
from auditor.exporter.settings import ExporterSettings
from auditor.service.settings import ServiceSettings
from bookie.runtime.configuration.options import build, live_options
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.server.settings import BookieSettings
from replicator.settings import ReplicatorSettings
from spark_jobs.settings import AuditSettings

Options: TypeAlias = Mapping[str, Any]
MakeSettings: TypeAlias = Callable[[str, Options], object]
"""Makes settings from metadata URI and options. Raises ConfigurationError with every problem."""
Command = TypeVar("Command", bound=Callable[..., None])


def bookie_settings(uri: str, given: Options) -> BookieSettings:
    """Return the settings of ``bkheal bookie``.

    Raises:
        ConfigurationError: contains every problem.
    """
    return build(BookieSettings, given, metadata_uri=uri)


def replicator_settings(uri: str, given: Options) -> ReplicatorSettings:
    """Return the settings of ``bkheal replicator``.

    Raises:
        ConfigurationError: contains every problem.
    """
    is_json = given.get("output") is OutputFormat.JSON
    settings = build(ReplicatorSettings, given, metadata_uri=uri, is_output_json=is_json)
    return replace(settings, security=effective_security_files(settings.security))


def auditor_settings(uri: str, given: Options) -> ServiceSettings:
    """Return the settings of ``bkheal auditor``.

    Raises:
        ConfigurationError: contains every problem.
    """
    return build(ServiceSettings, given, metadata_uri=uri)


def exporter_settings(uri: str, given: Options) -> ExporterSettings:
    """Return the settings of ``bkheal exporter``.

    Raises:
        ConfigurationError: contains every problem.
    """
    return build(ExporterSettings, given, metadata_uri=uri)


def audit_settings(uri: str, given: Options) -> AuditSettings:
    """Return the settings of ``bkheal audit run``, or of the short form ``bkheal audit``, which has fewer options.

    Raises:
        ConfigurationError: contains every problem.
    """
    problems = list(_gateway_problems(given.get("pushgateway")))
    try:
        settings = build(AuditSettings, given, metadata_uri=uri)
    except ConfigurationError as error:
        raise ConfigurationError([*problems, *error.problems]) from error
    if problems:
        raise ConfigurationError(problems)
    return replace(settings, security=effective_security_files(settings.security))


def _gateway_problems(gateway: str | None) -> Iterator[str]:
    if gateway is not None:
        from auditor.metrics.export import gateway_problem  # only for the few commands that push

        if (problem := gateway_problem(gateway)) is not None:
            yield f"pushgateway: {problem}"


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
"""Commands whose options can contradict each other, with the function that makes their settings."""

LIVE: Final[Mapping[tuple[str, ...], frozenset[str]]] = {
    ("auditor",): live_options(ServiceSettings),
    ("replicator",): live_options(ReplicatorSettings),
    ("bookie",): live_options(BookieSettings),
}
"""Commands that follow their file while they run, with the reloadable options."""

LONG_RUNNING_COMMANDS: Final = frozenset({*LIVE, ("exporter",)})
"""Commands that run until they are stopped, whether they follow their file or not."""
