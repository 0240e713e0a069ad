"""TLS for both ends of the bookie protocol: the credentials made of the files.

The peer is always verified: a client checks the bookie's certificate and host name against ``ca``, and a bookie
requires from every client a certificate signed by ``ca``. Verification cannot be disabled, except by not using TLS.

A server follows its files: after a change, new connections use the new ones, as short-lived certificates require. If
the new ones are unusable, for example a certificate whose key was not replaced yet, the old ones stay in use. A client
reads its files only when it is constructed.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import grpc

from bookie.model.errors import PermanentError
from bookie.wire.security import TlsSettings

_log = logging.getLogger(__name__)


class TlsFilesError(PermanentError):
    """A TLS file cannot be read, or a combination of files is invalid."""


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    """Return client-side credentials, read from the files now.

    Raises:
        TlsFilesError: unusable, or a certificate without its key.
    """
    if (tls.cert is None) != (tls.key is None):
        raise TlsFilesError("a TLS certificate and its key go together: give both, or neither")
    _check_authorities(tls.ca)
    if tls.cert and tls.key:
        check_key_pair(tls.cert, tls.key)
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca),
        private_key=_read(tls.key) if tls.key else None,
        certificate_chain=_read(tls.cert) if tls.cert else None,
    )


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    """Return server-side credentials that require a client certificate and follow their files.

    Raises:
        TlsFilesError: the files are unusable now, or there is no certificate or no key.
    """
    if tls.cert is None or tls.key is None:
        raise TlsFilesError("a TLS server needs a certificate and its key: give both")
    return reloading_credentials(tls.cert, tls.key, tls.ca)


def reloading_credentials(cert: Path, key: Path, client_ca: Path | None) -> grpc.ServerCredentials:
    """Return credentials of a server; after its files change, they are read again for the next connection.

    Args:
        cert: certificate chain.
        key: its private key.
        client_ca: the CAs, one of which must have signed a client's certificate; None: clients need none.

    Raises:
        TlsFilesError: the files are unusable now.
    """

    def check() -> None:
        check_key_pair(cert, key)
        if client_ca is not None:
            _check_authorities(client_ca)

    def read() -> tuple[bytes, bytes, bytes | None]:
        return _read(key), _read(cert), None if client_ca is None else _read(client_ca)

    check()
    seen = [read()]
    problems = _Problems()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        try:
            now = read()
            if now != seen[0]:
                check()
        except TlsFilesError as error:
            problems.note(error)
            return None
        problems.end()
        if now == seen[0]:
            return None
        seen[0] = now
        _log.info("certificate read again", extra={"path": str(cert)})
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(seen[0]),
        changed,  # type: ignore[arg-type]  # the stubs forget None, "no change"
        client_ca is not None,
    )


class _Problems:
    """The log of unusable files. They are read again for each connection, and a problem is logged once."""

    def __init__(self) -> None:
        self._logged = ""

    def note(self, error: TlsFilesError) -> None:
        """Log a problem unless it was the last one."""
        if str(error) != self._logged:
            self._logged = str(error)
            _log.warning("the old certificate stays in use", extra={"error": str(error)})

    def end(self) -> None:
        """Record that the files are usable, so the next problem is a new one."""
        self._logged = ""


class ServerContext:
    """The ``ssl`` context of a server that requires a client certificate; it follows its files."""

    def __init__(self, tls: TlsSettings) -> None:
        """Read the files.

        Raises:
            TlsFilesError: they cannot be used.
        """
        self._tls = tls
        self._problems = _Problems()
        self._seen = self._stamp()
        self._context = self._made()

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection. Unusable files leave it unchanged."""
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._context, self._seen = self._made(), stamp
                _log.info("certificate read again", extra={"path": str(self._tls.cert)})
        except TlsFilesError as error:
            self._problems.note(error)
        else:
            self._problems.end()
        return self._context

    def _made(self) -> ssl.SSLContext:
        cert, key = self._tls.cert, self._tls.key
        if cert is None or key is None:
            raise TlsFilesError("a TLS server needs a certificate and its key: give both")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(cafile=str(self._tls.ca))
            context.load_cert_chain(cert, key, password=refuse_encrypted_key)
        except (OSError, ValueError) as error:
            raise TlsFilesError(f"cannot use the TLS files {self._tls.ca}, {cert}, {key}: {error}") from error
        return context

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        paths = [path for path in (self._tls.ca, self._tls.cert, self._tls.key) if path is not None]
        try:
            stats = [path.stat() for path in paths]
        except OSError as error:
            raise TlsFilesError(f"cannot find a TLS file: {error}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)


def check_key_pair(cert: Path, key: Path) -> None:
    """Refuse a certificate with a different key, as it occurs in the middle of a rotation.

    A context in use that loaded such a pair would have neither the old nor the new one.

    Raises:
        TlsFilesError: they do not match, or one of them cannot be used.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=refuse_encrypted_key)
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"cannot use the certificate {cert} with the key {key}: {error}") from error


def _check_authorities(ca: Path) -> None:
    """Refuse a file without certificates, or with a damaged one.

    gRPC would report nothing, and trust none or only some of the authorities.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=str(ca))
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"cannot use the TLS file {ca}: {error}") from error


def refuse_encrypted_key() -> str:
    """Refuse an encrypted key. Otherwise OpenSSL would ask for its password at the terminal."""
    raise ValueError("the key is encrypted, and a service cannot ask for its password")


def _configuration(files: tuple[bytes, bytes, bytes | None]) -> grpc.ServerCertificateConfiguration:
    key, cert, client_ca = files
    return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=client_ca)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesError(f"cannot read the TLS file {path}: {error.strerror or error}") from error
