"""Options to reach bookies which require TLS or a login, or send larger frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from bookie.wire.apache.framing import FRAME_BYTES_LIMIT, FRAME_BYTES_MAX
from bookie.wire.security import FRAME_BYTES_LEAST, NO_FILES, BookieSecurity, SaslMechanism, SecurityFiles

_PANEL: Final = "How to reach bookies"

TlsCaOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="PEM file: bookies speak TLS, signed by this.", rich_help_panel=_PANEL, show_default=False),
]
TlsCertOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file, with --tls-ca.", rich_help_panel=_PANEL, show_default=False)
]
TlsKeyOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="PEM file, with --tls-ca.", rich_help_panel=_PANEL, show_default=False)
]
SaslUsernameOption: TypeAlias = Annotated[
    str, typer.Option(help="Log in at Apache bookies that ask for it (SASL).", rich_help_panel=_PANEL)
]
SaslPasswordFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Its first line is the password.", rich_help_panel=_PANEL, show_default=False),
]
SaslMechanismOption: TypeAlias = Annotated[
    SaslMechanism, typer.Option(help="How to log in.", rich_help_panel=_PANEL, case_sensitive=False)
]
FRAME_HELP: Final = "Longest frame of Apache bookies: their nettyMaxFrameSizeBytes if it was raised."
FrameBytesMaxOption: TypeAlias = Annotated[
    int, typer.Option(min=FRAME_BYTES_LEAST, max=FRAME_BYTES_LIMIT, help=FRAME_HELP, rich_help_panel=_PANEL)
]

_of_this_call: list[SecurityFiles] = []


def set_for_this_call(files: SecurityFiles) -> None:
    """Note what was given before the command."""
    _of_this_call[:] = [files]


def given_or_of_this_call(given: SecurityFiles) -> SecurityFiles:
    """A command's own options, or if there are none those before the command.

    Certificates and login go together; the length of frames is apart from them.
    """
    before, size = for_this_call(), given.frame_bytes_max
    secured = given if replace(given, frame_bytes_max=FRAME_BYTES_MAX) != NO_FILES else before
    return replace(secured, frame_bytes_max=size if size != FRAME_BYTES_MAX else before.frame_bytes_max)


def for_this_call() -> SecurityFiles:
    """What was given before the command; nothing by default."""
    return _of_this_call[0] if _of_this_call else NO_FILES


def bookie_security() -> BookieSecurity:
    """What was given before the command, with the secrets that it names.

    Raises:
        SecurityFilesError: it contradicts itself, or a file cannot be read.
    """
    return for_this_call().load()
