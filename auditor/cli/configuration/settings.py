"""What the options of the long-running commands mean together: their settings, or every problem with them at once.

A command uses this at its start, ``bkheal config validate`` for a file, and a running process for a changed one, so
that all three agree. Options come as the command line parser has them, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer

from auditor.cli.configuration.http_options import http_settings
from auditor.cli.configuration.security_options import given_or_of_this_call
from auditor.cli.output import OutputFormat
from bookie.metadata.uri import InvalidUriError, parse_uri
from bookie.runtime.configuration.settings import URI_KEY, ConfigurationError
from bookie.wire.security import SaslMechanism, SecurityFiles

if TYPE_CHECKING:
    from auditor.service.settings import ServiceSettings
    from bookie.server.settings import BookieSettings
    from replicator.settings import ReplicatorSettings
    from spark_jobs.settings import AuditSettings


from bookie.model.metadata import DigestType

Options: TypeAlias = Mapping[str, Any]
MakeSettings: TypeAlias = Callable[[str, Options], object]
"""Settings from metadata URI and options. Raises ConfigurationError with every problem."""

_NO_SETTINGS: Final = frozenset({"uri", "config", "output"})
_SECURITY: Final = (
    *("tls_ca", "tls_cert", "tls_key"),
    *("sasl_username", "sasl_password_file", "sasl_mechanism"),
    "frame_bytes_max",
)
_HTTP_FILES: Final = ("http_tls_cert", "http_tls_key", "http_tls_client_ca")


def bookie_settings(uri: str, given: Options) -> BookieSettings:
    """Settings of ``bkheal bookie``.

    Raises:
        ConfigurationError: with every problem.
    """
    from bookie.server.settings import BookieSettings
    from bookie.wire.tls import TlsSettings

    tls = SecurityFiles(_path(given["tls_ca"]), _path(given["tls_cert"]), _path(given["tls_key"]))
    settings = BookieSettings(
        metadata_uri=uri,
        journal_dir=Path(given["journal_dir"]),
        ledger_dir=Path(given["ledger_dir"]),
        host=given["host"],
        advertised_host=given["advertised_host"],
        port=given["port"],
        apache_port=given["apache_port"],
        apache_connections_max=given["apache_connections_max"],
        bookie_id=given["bookie_id"],
        read_only_below_bytes=given["read_only_below_bytes"],
        is_new_incarnation=given["new_incarnation"],
        collect_interval_s=given["collect_interval"],
        collect_ratio_max=given["collect_ratio_max"],
        is_plaintext=given["plaintext"],
        tls=TlsSettings(tls.tls_ca, tls.tls_cert, tls.tls_key) if tls.tls_ca else None,
        http=_http(given),
    )
    problems = [*_uri_problems(uri), *tls.problems(), *settings.problems(), *_missing(given, *_HTTP_FILES)]
    if tls.tls_ca is not None and tls.tls_cert is None and tls.tls_key is None:
        problems.append("tls_ca needs tls_cert and tls_key: clients look at the certificate of a bookie")
    _refuse(problems)
    return settings


def replicator_settings(uri: str, given: Options) -> ReplicatorSettings:
    """Settings of ``bkheal replicator``.

    Raises:
        ConfigurationError: with every problem.
    """
    from bookie.model.spread import PlacementPolicy
    from replicator.settings import ReplicatorSettings

    others = [*_uri_problems(uri), *_missing(given, "topology_file", *_HTTP_FILES)]
    try:
        settings = ReplicatorSettings(
            metadata_uri=uri,
            ledgers_in_flight=given["ledgers_in_flight"],
            copy_bytes_per_second=given["bytes_per_second"],
            open_ledger_grace_s=given["open_ledger_grace"],
            once=given["once"],
            is_output_json=given.get("output") == OutputFormat.JSON,
            placement=PlacementPolicy(
                given["min_racks"], given["min_zones"], given["min_regions"], is_strict=given["strict_placement"]
            ),
            topology_file=_path(given["topology_file"]),
            security=given_or_of_this_call(_security(*(given[name] for name in _SECURITY))),
            http=_http(given),
            has_apache_metrics=given["compat_metrics"],
        )
    except ConfigurationError as error:
        raise ConfigurationError([*others, *error.problems]) from error
    _refuse(others)
    return settings


def auditor_settings(uri: str, given: Options) -> ServiceSettings:
    """Settings of ``bkheal auditor``, whose options have the names of the settings.

    Raises:
        ConfigurationError: with every problem.
    """
    from auditor.service.settings import ServiceSettings

    return ServiceSettings(
        metadata_uri=uri, **{name: value for name, value in given.items() if name not in _NO_SETTINGS}
    )


def audit_settings(uri: str, given: Options) -> AuditSettings:
    """Settings of ``bkheal audit run``; of the short form ``bkheal audit``, which has few of the options.

    Raises:
        ConfigurationError: with every problem.
        InvalidUriError: the metadata URI cannot be used.
    """
    from bookie.model.ids import LEDGER_ID_MAX
    from bookie.model.spread import PlacementPolicy
    from spark_jobs.settings import AuditSettings, FailOn, InvalidSettingError

    others = []
    if given["fail_on"] not in {level.value for level in FailOn}:
        others.append(f"fail_on = {given['fail_on']!r}: use one of {', '.join(level.value for level in FailOn)}")
    run: dict[str, Any] = {}
    if "sample" in given:
        others += _missing(given, "topology_file")
        run = {
            "topology_file": _path(given["topology_file"]),
            "placement_policy": PlacementPolicy(
                given["min_racks"], given["min_zones"], given["min_regions"], given["strict_placement"]
            ),
            "mark_misplaced": given["mark_misplaced"],
            "ledger_min": given["ledger_min"],
            "ledger_max": LEDGER_ID_MAX if given["ledger_max"] is None else given["ledger_max"],
            "sample": given["sample"],
            "sample_seed": given["sample_seed"],
            "security": given_or_of_this_call(_security(*(given[name] for name in _SECURITY))),
            "reports_kept": given["reports_kept"],
        }
    try:
        settings = AuditSettings(
            uri,
            Path(given["report_dir"]),
            is_dry_run=given["dry_run"],
            missing_share_max=given["missing_share_max"],
            **run,
        )
    except InvalidSettingError as error:
        raise ConfigurationError([*others, *error.problems]) from error
    _refuse(others)
    return settings


def new_ledger(uri: str, given: Options) -> None:
    """Only looks at the options of a command that makes ledgers; these commands make nothing else of them.

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
    ("replicator",): replicator_settings,
    ("bookie",): bookie_settings,
    ("simpletest",): new_ledger,
    ("ledger", "write"): new_ledger,
    ("log", "create"): new_ledger,
}
"""Commands whose options contradict each other in some combinations."""


def _http(given: Options) -> Any:
    files = (_path(given[name]) for name in _HTTP_FILES)
    return http_settings(given["http_port"], given["http_host"], *files)


def _security(
    ca: Any, cert: Any, key: Any, username: str, password_file: Any, mechanism: Any, frame_bytes_max: int
) -> SecurityFiles:
    tls = (_path(ca), _path(cert), _path(key))
    return SecurityFiles(*tls, username, _path(password_file), SaslMechanism(mechanism), frame_bytes_max)


def _uri_problems(uri: str) -> Iterator[str]:
    try:
        parse_uri(uri)
    except InvalidUriError as error:
        yield f"{URI_KEY}: {error}"


def _missing(given: Options, *names: str) -> Iterator[str]:
    for name in names:
        if given[name] and not Path(given[name]).is_file():
            yield f"{name}: there is no file {given[name]}"


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigurationError(problems)


def _path(value: Any) -> Path | None:
    return Path(value) if value else None


def digest_named(name: str) -> DigestType:
    """The digest type of that name, in any case.

    Raises:
        typer.BadParameter: there is none.
    """
    if name.upper() not in DigestType.__members__:
        raise typer.BadParameter(f"{name!r} is no digest type; use one of {', '.join(DigestType.__members__)}")
    return DigestType[name.upper()]


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> tuple[int, int, int]:
    """The three as one value.

    Raises:
        typer.BadParameter: no ledger can have them.
    """
    if not ensemble_size >= write_quorum >= ack_quorum:
        shape = f"{ensemble_size}/{write_quorum}/{ack_quorum}"
        raise typer.BadParameter(f"{shape} cannot be: need ensemble size >= write quorum >= ack quorum (-e, -w, -a)")
    return ensemble_size, write_quorum, ack_quorum
