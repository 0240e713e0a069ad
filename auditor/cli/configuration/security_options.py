"""Options before the command: how to reach ZooKeeper, and bookies that require TLS, a login or larger frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from bookie.metadata.access import PLAIN_ACCESS, ZooKeeperAccess
from bookie.model.option import Group
from bookie.wire.apache.framing import FRAME_BYTES_MAX
from bookie.wire.security import NO_FILES, BookieSecurity, SecurityFiles


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options for every command, and for every process that it starts."""

    security: Annotated[SecurityFiles, Group()] = NO_FILES
    zookeeper: Annotated[ZooKeeperAccess, Group(heading="How to reach ZooKeeper")] = PLAIN_ACCESS


_given_before_command: list[SecurityFiles] = []


def set_security_before_command(files: SecurityFiles) -> None:
    """Store the options given before the command."""
    _given_before_command[:] = [files]


def effective_security_files(given: SecurityFiles) -> SecurityFiles:
    """Return a command's own options, or, if it has none, those before the command.

    Certificates and login are taken together; the length of frames is taken separately.
    """
    before, size = security_given_before_command(), given.frame_bytes_max
    secured = given if replace(given, frame_bytes_max=FRAME_BYTES_MAX) != NO_FILES else before
    return replace(secured, frame_bytes_max=size if size != FRAME_BYTES_MAX else before.frame_bytes_max)


def security_given_before_command() -> SecurityFiles:
    """Return the options given before the command; none by default."""
    return _given_before_command[0] if _given_before_command else NO_FILES


def bookie_security() -> BookieSecurity:
    """Return the security options given before the command, with the secrets that they name.

    Raises:
        SecurityFilesError: the options contradict each other, or a file cannot be read.
    """
    return security_given_before_command().load()
