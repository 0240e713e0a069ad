"""Settings of the service: their defaults, and that all problems are reported together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auditor.service.runs.schedule import Every
from auditor.service.settings import ServiceSettings
from bookie.model.run import RunKind
from bookie.runtime.configuration.settings import ConfigurationError

URI = "zk://h:2181/ledgers"


def problems(**settings: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as refused:
        ServiceSettings(**({"metadata_uri": URI} | settings))
    return refused.value.problems


def test_the_defaults_are_valid() -> None:
    settings = ServiceSettings(metadata_uri=URI)
    assert settings.schedules == {
        RunKind.BOOKIES: Every(86_400),
        RunKind.PLACEMENT: None,
        RunKind.REPLICAS: None,
        RunKind.REFERENCES: None,
        RunKind.EVERYTHING: None,
    }


def test_every_problem_is_reported_together() -> None:
    found = problems(
        metadata_uri="nonsense",
        bookies_schedule="sometimes",
        missing_share_max=2,
        http_port=70_000,
        tls_cert=Path("/there/is/none"),
        runs_kept=0,
    )
    assert len(found) == 7
    for name in ("metadata_uri", "bookies_schedule", "missing_share_max", "http_port", "tls_cert", "runs_kept"):
        assert any(name in problem for problem in found), name


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"ui_allow_anonymous": True, "ui_host": "0.0.0.0"}, "loopback"),
        ({"ui_allow_anonymous": True, "spark_master": "k8s://https://kubernetes"}, "local Spark master"),
        ({"spark_master": "host:7077"}, "not a Spark master"),
        ({"ui_trigger_enabled": True, "ui_enabled": False}, "needs ui_enabled"),
        ({"ui_proxy_base": "spark"}, "slash"),
        ({"http_port": 9000, "grpc_port": 9000}, "both 9000"),
        ({"advertised_host": "a/b"}, "not a host"),
        ({"advertised_host": "a..b"}, "not a host"),
        ({"http_host": "a..b"}, "http_host = 'a..b' is not a host"),
        ({"grpc_host": "x" * 64}, "not a host"),
        ({"ui_host": "a..b"}, "ui_host = 'a..b' is not a host"),
        ({"leader_http_port": 9000, "http_port": 0}, "that is not 0"),
        ({"leader_http_port": 8081}, "port of its own"),
        ({"leader_http_port": 9000, "leader_grpc_port": 9000}, "port of its own"),
        ({"leader_ui_port": 9000, "ui_enabled": False}, "needs ui_enabled"),
        ({"leader_ui_port": 9000, "ui_allow_anonymous": True}, "other machines"),
        ({"ui_user_header": "X-Forwarded-User"}, "go together"),
        ({"ui_user_header": "X Forwarded", "ui_trusted_proxies": "127.0.0.1"}, "not a header name"),
        ({"ui_user_header": "X-Forwarded-User", "ui_trusted_proxies": "127.0.0.1,proxy"}, "numeric addresses"),
        (
            {"ui_user_header": "X-Forwarded-User", "ui_trusted_proxies": "127.0.0.1", "leader_ui_port": 9000},
            "hides the address of the proxy",
        ),
        ({"public_url": "bkheal.example.org"}, "no URL"),
        ({"public_url": "ftp://bkheal.example.org"}, "no URL"),
        ({"public_url": "https://bkheal.example.org:port"}, "no URL"),
        ({"public_url": "https://me:secret@bkheal.example.org"}, "user name"),
        ({"public_url": "https://bkheal.example.org/?a=b"}, "query"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], word: str) -> None:
    (problem,) = problems(**settings)
    assert word in problem


def test_tls_needs_certificate_and_key(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.touch()
    assert problems(tls_cert=file) == ("tls_cert and tls_key go together",)
    assert problems(tls_client_ca=file) == ("tls_client_ca needs tls_cert and tls_key",)
