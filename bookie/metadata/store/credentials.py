"""The secrets and certificates of a connection to ZooKeeper, read for each new connection.

So a renewed certificate or password is used from the next connection on, without a restart. Nothing is logged here, and
no ``repr`` contains a secret.
"""

from __future__ import annotations

import importlib
import os
import ssl
from pathlib import Path
from typing import Any, Final

from bookie.metadata.access import (
    DIGEST_VARIABLE,
    KEY_PASSWORD_VARIABLE,
    SASL_PASSWORD_VARIABLE,
    TlsVerify,
    ZooKeeperAccess,
    ZooKeeperAccessError,
    ZooKeeperLogin,
)
from bookie.model.errors import TransientError

_KDC_UNREACHABLE_CODES: Final = frozenset({-1765328228, -1765328164, -1765328163})
"""Codes of MIT Kerberos: no server answered (KDC_UNREACH), or the realm's servers cannot be found now (by DNS)."""


def tls_context(access: ZooKeeperAccess) -> ssl.SSLContext:
    """Return a client context with verification of servers, from the current files.

    Raises:
        ZooKeeperAccessError: a file is unreadable or unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = access.tls_verify is TlsVerify.HOST
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(access.tls_ca)
    except OSError as error:  # ssl.SSLError is one
        raise ZooKeeperAccessError(f"zk_tls_ca: cannot use {access.tls_ca}: {_why(error)}") from error
    if access.tls_cert is not None and access.tls_key is not None:
        # Without a password, OpenSSL would ask for one on the terminal.
        password = _secret(access.tls_key_password_file, "zk_tls_password_file", KEY_PASSWORD_VARIABLE) or ""
        try:
            context.load_cert_chain(access.tls_cert, access.tls_key, password)
        except OSError as error:
            files = f"{access.tls_cert} with {access.tls_key}"
            raise ZooKeeperAccessError(f"zk_tls_cert: cannot use {files}: {_why(error)}") from error
    return context


def sasl_options(access: ZooKeeperAccess) -> dict[str, Any] | None:
    """Return kazoo's options for the SASL login; None without a login.

    Raises:
        ZooKeeperAccessError: the password cannot be read, or there is none.
    """
    if access.login is ZooKeeperLogin.NONE:
        return None
    options: dict[str, Any] = {"mechanism": access.login.value, "service": access.sasl_service}
    if access.login is ZooKeeperLogin.GSSAPI:
        return options | ({"principal": access.sasl_username} if access.sasl_username else {})
    password = _secret(access.sasl_password_file, "zk_password_file", SASL_PASSWORD_VARIABLE)
    if password is None:
        raise ZooKeeperAccessError(f"the login needs a password: give --zk-password-file or {SASL_PASSWORD_VARIABLE}")
    return options | {"username": access.sasl_username, "password": password}


def auth_data(access: ZooKeeperAccess) -> set[tuple[str, str]]:
    """Return kazoo's set of additional identities: the one with the scheme ``digest``, if any.

    Raises:
        ZooKeeperAccessError: the secret cannot be read, or is not ``user:password``.
    """
    credential = _secret(access.digest_file, "zk_digest_file", DIGEST_VARIABLE)
    if credential is None:
        return set()
    if not all(credential.partition(":")):
        raise ZooKeeperAccessError(f"zk_digest_file (or {DIGEST_VARIABLE}) does not begin with user:password")
    return {("digest", credential)}


def check_kerberos(access: ZooKeeperAccess) -> None:
    """Refuse a login with Kerberos if its library is missing.

    Raises:
        ZooKeeperAccessError: the library is not installed.
    """
    if access.login is not ZooKeeperLogin.GSSAPI:
        return
    try:
        __import__("kerberos")
    except ImportError as error:
        raise ZooKeeperAccessError(
            "zk_login = GSSAPI needs the package kerberos, which is not installed: pip install 'bkheal[kerberos]'"
        ) from error


class TicketUnavailableError(TransientError):
    """The Kerberos server did not answer; another attempt may succeed."""


def get_ticket(access: ZooKeeperAccess, host: str) -> None:
    """Get the Kerberos ticket for the ZooKeeper server on ``host`` into this process's cache, if the login needs one.

    kazoo gets the ticket as well, but reports no reason for a failure, and its thread ends if there are no credentials.
    This call blocks while the library contacts Kerberos servers.

    Raises:
        ZooKeeperAccessError: there is no ticket for this process, or none for that server.
        TicketUnavailableError: no Kerberos server answered.
    """
    if access.login is not ZooKeeperLogin.GSSAPI:
        return
    kerberos = importlib.import_module("kerberos")
    options = {"principal": access.sasl_username} if access.sasl_username else {}
    try:
        _, context = kerberos.authGSSClientInit(f"{access.sasl_service}@{host}", **options)
        kerberos.authGSSClientStep(context, "")
    except kerberos.KrbError as error:
        reason, code = _kerberos_reason(error)
        why = f"no Kerberos ticket for {access.sasl_service}/{host}: {reason}"
        if code in _KDC_UNREACHABLE_CODES:
            raise TicketUnavailableError(why) from error
        raise ZooKeeperAccessError(
            f"{why}; for GSSAPI the ticket or keytab of this process and the principal of the server are needed "
            f"(docs/zookeeper.md)"
        ) from error


def _kerberos_reason(error: Exception) -> tuple[str, int]:
    """Return the library's text and code for an error. If it has two such pairs, the second one is more precise."""
    pairs = [each for each in error.args if isinstance(each, tuple) and len(each) == 2]
    if not pairs:
        return str(error), 0
    text, code = pairs[-1]
    return str(text), int(code)


def _secret(path: Path | None, option: str, variable: str) -> str | None:
    """Return the first line of the file; if ``path`` is None, the value of the environment variable."""
    if path is None:
        return os.environ.get(variable) or None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = _why(error) if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ZooKeeperAccessError(f"{option}: cannot read {path}: {why}") from None
    if not lines or not lines[0]:
        raise ZooKeeperAccessError(f"{option}: the first line of {path} is empty")
    return lines[0]


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is no PEM file of this kind"
    return error.strerror or str(error)
