"""The reason of a failed connection, for people."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest

from bookie.runtime.connection_problem import connection_problem


def caused(text: str, cause: BaseException) -> Exception:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error


def tls_error(kind: type[ssl.SSLError], reason: str) -> ssl.SSLError:
    error = kind(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "the connection was refused"),
        (ExceptionGroup("all", [ConnectionRefusedError(errno.ECONNREFUSED, "refused")]), "the connection was refused"),
        (socket.gaierror(-2, "Name or service not known"), "looked up: Name or service not known"),
        (OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)), os.strerror(errno.EHOSTUNREACH)),
        (tls_error(ssl.SSLError, "WRONG_VERSION_NUMBER"), "it does not use TLS at this port"),
        (tls_error(ssl.SSLError, "NO_SHARED_CIPHER"), "TLS failed: no shared cipher"),
        (TimeoutError("timed out"), "[Errno 1] of a library"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_the_reason_has_no_number_of_an_error(error: BaseException, expected: str) -> None:
    assert expected in connection_problem(caused("[Errno 1] of a library", error))


def test_an_error_without_a_text_is_named() -> None:
    assert connection_problem(TimeoutError()) == "TimeoutError"
