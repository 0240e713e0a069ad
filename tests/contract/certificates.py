"""Certificates of authorities that a test makes, with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bookie.wire.security import TlsSettings


def openssl(*arguments: str, directory: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


def make_ca(directory: Path, name: str) -> None:
    subject = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject, directory=directory
    )


def make_certificate(directory: Path, name: str, ca: str, host: str) -> TlsSettings:
    request = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *request, directory=directory)
    (directory / f"{name}.ext").write_text(f"subjectAltName={host}\n")
    signing = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-extfile", f"{name}.ext"]
    openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing, directory=directory)
    return TlsSettings(directory / f"{ca}.pem", directory / f"{name}.pem", directory / f"{name}.key")
