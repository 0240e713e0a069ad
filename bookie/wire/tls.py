"""TLS for both ends of the bookie protocol: which files, and the credentials made of them.

The peer is always verified: a client checks the bookie's certificate and host name against ``ca``, and a bookie asks
every client for a certificate that ``ca`` signed. There is no way to switch that off other than no TLS at all.
"""

from __future__ import annotations

from pathlib import Path

import grpc

from bookie.model.errors import PermanentError
from bookie.wire.security import TlsSettings


class TlsFilesError(PermanentError):
    """A TLS file cannot be read, or a combination of files makes no sense."""


def channel_credentials(tls: TlsSettings) -> grpc.ChannelCredentials:
    """Client-side credentials, read from the files now.

    Raises:
        TlsFilesError: unreadable, or a certificate without its key.
    """
    if (tls.cert is None) != (tls.key is None):
        raise TlsFilesError("a TLS certificate and its key go together: give both, or neither")
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca),
        private_key=_read(tls.key) if tls.key else None,
        certificate_chain=_read(tls.cert) if tls.cert else None,
    )


def server_credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    """Server-side credentials that demand a client certificate, read from the files now.

    Raises:
        TlsFilesError: unreadable, or no certificate and key.
    """
    if tls.cert is None or tls.key is None:
        raise TlsFilesError("a TLS server needs a certificate and its key: give both")
    return grpc.ssl_server_credentials(
        [(_read(tls.key), _read(tls.cert))], root_certificates=_read(tls.ca), require_client_auth=True
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesError(f"cannot read the TLS file {path}: {error.strerror or error}") from error
