"""Says why a connection failed, for people: without numbers of errors and names of C files."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Final

_CAUSES_MAX: Final = 10
"""Largest number of causes that are examined."""


def connection_problem(error: BaseException) -> str:
    """Return the reason of a failed connection, from ``error`` or its causes, as the end of a sentence. Pure."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return f"its certificate is not accepted: {cause.verify_message}"
            case ssl.SSLError() if cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
                return "it does not use TLS at this port"
            case ssl.SSLError() if cause.reason:
                return f"TLS failed: {cause.reason.lower().replace('_', ' ')}"
            case ConnectionRefusedError():
                return "the connection was refused; check the port, and that the process runs"
            case socket.gaierror():
                return f"its host name cannot be looked up: {cause.strerror}"
            case OSError() if cause.strerror:
                return cause.strerror
    return str(error).rstrip(".") or type(error).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on; of a group only the first error."""
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            return
        yield found
        found = found.exceptions[0] if isinstance(found, BaseExceptionGroup) else found.__cause__ or found.__context__
