"""The options of commands that use Pulsar's admin API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from auditor.cli.admin_requests import AdminClient
from auditor.cli.audit.remote import RemoteSettings, read_token
from auditor.cli.drains.topic_unloading import REQUEST_S

_PANEL: Final = "Pulsar's admin API"

PulsarAdminOption = Annotated[
    str | None,
    typer.Option(
        "--pulsar-admin",
        metavar="URL",
        help="With --wait: have Pulsar unload the topics of open ledgers, by the admin API of its brokers or proxy, as "
        "https://pulsar:8443.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
PulsarTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--pulsar-token-file",
        help="Holds the token for it; sent by https, or to this machine.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
PulsarCaOption = Annotated[
    Path | None,
    typer.Option(
        "--pulsar-ca",
        help="PEM file of the authority that signed its certificate. Default: the system's authorities.",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def pulsar_admin(url: str | None, token_file: Path | None, ca: Path | None, *, is_waiting: bool) -> AdminClient | None:
    """Return a client of the admin API in these options; None if there is none. Nothing is sent yet.

    Raises:
        typer.BadParameter: the options contradict each other.
        ConfigurationError: see ``AdminClient`` and ``read_token``.
    """
    if url is None:
        if token_file is not None or ca is not None:
            raise typer.BadParameter("give --pulsar-admin as well", param_hint="'--pulsar-token-file', '--pulsar-ca'")
        return None
    if not is_waiting:
        raise typer.BadParameter(
            "topics are unloaded during a wait: give --wait as well", param_hint="'--pulsar-admin'"
        )
    token = read_token(token_file, {}) if token_file is not None else None
    return AdminClient(RemoteSettings(url, token, ca, timeout_s=REQUEST_S))
