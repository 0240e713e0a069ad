"""Certificates and authorities for tests, made with openssl so that Python 3.13 or newer accepts them (RFC 5280)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from bookie.wire.security import TlsSettings

NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
AUTHORITY: Final = """
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
MEMBER: Final = """
authorityKeyIdentifier = keyid
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {host}
"""


def openssl(*arguments: str, directory: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def make_ca(directory: Path, name: str) -> Path:
    """Make an authority; return the file of its certificate."""
    (directory / f"{name}.cnf").write_text(AUTHORITY)
    files = ("-config", f"{name}.cnf", "-keyout", f"{name}.key", "-out", f"{name}.pem")
    openssl("req", "-x509", *NEW_KEY, "-subj", f"/CN={name}", *files, directory=directory)
    return directory / f"{name}.pem"


def make_certificate(
    directory: Path, name: str, ca: str, host: str, *, days: int = 2, subject: str = ""
) -> TlsSettings:
    """Make a certificate for servers and clients, signed by an authority of the directory."""
    request = ("-subj", subject or f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    openssl("req", *NEW_KEY, *request, directory=directory)
    (directory / f"{name}.ext").write_text(MEMBER.format(host=host))
    signing = ("-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", f"{name}.ext")
    files = ("-in", f"{name}.csr", "-out", f"{name}.pem", "-days", str(days))
    openssl("x509", "-req", *files, *signing, directory=directory)
    return TlsSettings(directory / f"{ca}.pem", directory / f"{name}.pem", directory / f"{name}.key")
