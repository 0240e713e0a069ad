"""Settings and options of metrics and probes in the serving processes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auditor.cli.main import app
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.telemetry.status_settings import StatusServerSettings
from bookie.server.settings import BookieSettings
from replicator.__main__ import main as replicator_main
from replicator.settings import ReplicatorSettings

WRONG = StatusServerSettings(70_000, key=Path("key"))
NOWHERE = "zk://127.0.0.1:1/ledgers"


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


def test_all_wrong_settings_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"port = -1 .*http_port = 70000 .*certificate for HTTP"):
        BookieSettings("zk://h/ledgers", str(tmp_path / "j"), str(tmp_path / "l"), port=-1, http=WRONG)
    with pytest.raises(ConfigurationError) as raised:
        ReplicatorSettings("", http=WRONG)
    assert len(raised.value.problems) == 3


def test_a_replicator_checks_its_http_port_before_the_store(taken_port: str) -> None:
    assert replicator_main(["--metadata-uri", NOWHERE, "--http-port", taken_port]) == 78
    ended = CliRunner().invoke(app, ["replicator", "--metadata-uri", NOWHERE, "--http-port", taken_port])
    assert ended.exit_code == 78


def test_a_certificate_without_a_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--metadata-uri", NOWHERE, "--http-port", "0", "--http-tls-cert", "cert.pem"]
    assert replicator_main(given) == 78
    assert "certificate for HTTP and its key go together" in capsys.readouterr().err


def test_a_bookie_checks_its_http_port_before_anything_is_written(taken_port: str, tmp_path: Path) -> None:
    folders = ["--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l")]
    given = ["bookie", "--metadata-uri", NOWHERE, "--port", "0", "--http-port", taken_port, *folders]
    ended = CliRunner().invoke(app, given)
    assert ended.exit_code == 78
    assert taken_port in ended.output
    assert list(tmp_path.iterdir()) == []
