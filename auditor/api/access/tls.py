"""TLS of the servers. Certificates are read again after their files change, because they may be short-lived."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from auditor.api.settings import ServerTls
from bookie.wire.tls import TlsFilesError, check_key_pair, refuse_encrypted_key

_log = logging.getLogger(__name__)


class ReloadingContext:
    """An SSL context whose certificate is updated from its files."""

    def __init__(self, tls: ServerTls) -> None:
        """Read the files.

        Raises:
            TlsFilesError: the files cannot be used.
        """
        self._tls = tls
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._seen = self._stamp()
        self._load()
        if tls.client_ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED
            self._load_ca(tls.client_ca)

    def refresh(self) -> bool:
        """Use changed files for new connections. Return whether any have changed; unusable files change nothing."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._load()
        except TlsFilesError as error:
            _log.error("the old certificate stays in use", extra={"error": str(error)})
            return False
        self._seen = stamp
        _log.info("certificate read again", extra={"path": str(self._tls.cert)})
        return True

    def _load(self) -> None:
        cert, key = self._tls.cert, self._tls.key
        check_key_pair(cert, key)
        try:
            self.context.load_cert_chain(cert, key, password=refuse_encrypted_key)
        except (OSError, ValueError) as error:  # replaced since the check
            raise TlsFilesError(f"cannot use the certificate {cert} with the key {key}: {error}") from error

    def _load_ca(self, path: Path) -> None:
        try:
            self.context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            raise TlsFilesError(f"cannot use the client authorities {path}: {error}") from error

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        try:
            stats = [path.stat() for path in (self._tls.cert, self._tls.key)]
        except OSError as error:
            raise TlsFilesError(f"cannot find a TLS file: {error}") from error
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)
