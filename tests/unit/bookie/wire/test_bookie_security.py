"""An operator's options for connections to bookies: contradictions, and secrets that are never shown."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from auditor.cli.configuration.security_options import effective_security_files, set_security_before_command
from bookie.wire.security import (
    BookieSecurity,
    SaslCredentials,
    SaslMechanism,
    SecurityFiles,
    SecurityFilesError,
    TlsSettings,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("pass word\nanother line\n")
    return path


def test_without_settings_the_connection_is_plain() -> None:
    assert SecurityFiles().load() == BookieSecurity()


def test_the_first_line_of_the_file_is_the_password(file: Path) -> None:
    loaded = SecurityFiles(sasl_username="auditor", sasl_password_file=file).load()
    assert loaded.sasl == SaslCredentials("auditor", "pass word", SaslMechanism.DIGEST_MD5)


def test_a_plain_text_password_needs_tls(file: Path) -> None:
    plain = SecurityFiles(sasl_username="auditor", sasl_password_file=file, sasl_mechanism=SaslMechanism.PLAIN)
    assert list(plain.problems()) == ["sasl_mechanism PLAIN sends the password as it is: it needs tls_ca"]
    assert not list(replace(plain, tls_ca=file).problems())


def test_a_certificate_is_loaded_with_its_key(file: Path) -> None:
    assert SecurityFiles(file, file, file).load().tls == TlsSettings(file, file, file)


def test_longer_frames_are_allowed_within_bounds() -> None:
    assert SecurityFiles(frame_bytes_max=20 << 20).load().frame_bytes_max == 20 << 20
    for size in (5_242_879, (1 << 30) + 1):
        with pytest.raises(SecurityFilesError, match=f"frame_bytes_max = {size} is out of range"):
            SecurityFiles(frame_bytes_max=size).load()


def test_options_before_a_command_are_defaults_of_its_own_options(file: Path) -> None:
    before = SecurityFiles(tls_ca=file, frame_bytes_max=6_000_000)
    set_security_before_command(before)
    try:
        assert effective_security_files(SecurityFiles()) == before
        assert effective_security_files(SecurityFiles(frame_bytes_max=7_000_000)) == SecurityFiles(
            tls_ca=file, frame_bytes_max=7_000_000
        )
        login = SecurityFiles(sasl_username="auditor", sasl_password_file=file)
        assert effective_security_files(login) == replace(login, frame_bytes_max=6_000_000)
    finally:
        set_security_before_command(SecurityFiles())


def test_a_password_is_never_shown(file: Path) -> None:
    files = SecurityFiles(sasl_username="auditor", sasl_password_file=file)
    assert "pass word" not in repr(files.load())
    assert b"pass word" not in pickle.dumps(files)


def test_every_problem_is_named(file: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    files = SecurityFiles(tls_cert=gone, sasl_username="auditor")
    assert list(files.problems("bookie_")) == [
        "bookie_tls_cert and bookie_tls_key go together",
        "bookie_tls_cert and bookie_tls_key need bookie_tls_ca",
        "bookie_sasl_username and bookie_sasl_password_file go together",
        f"bookie_tls_cert: there is no file {gone}",
    ]
    with pytest.raises(SecurityFilesError, match="go together"):
        files.load()


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_password_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(SecurityFilesError, match="password"):
        SecurityFiles(sasl_username="auditor", sasl_password_file=file).load()
