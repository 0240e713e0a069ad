"""The ``bkheal`` commands as a person types them: output, exit codes, and refusals before anything is changed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jobs.audit
from bookie.client import sync
from bookie.client.bookkeeper import LedgerOptions
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.runtime.java import find_java, java_environment

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedCluster]:
    started = asyncio.run(EmbeddedCluster.start(tmp_path_factory.mktemp("cluster"), bookies=3))
    yield started
    asyncio.run(started.stop())


def bkheal(*arguments: str, uri: str | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command; the cluster is named by the environment, as operators do."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")}
    if uri is not None:
        environment["BKHEAL_METADATA_URI"] = uri
    command = [sys.executable, "-m", "auditor.cli.main", *arguments]
    return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=120)


def document(*arguments: str, uri: str, stdin: str = "") -> dict[str, Any]:
    result = bkheal(*arguments, "--output", "json", uri=uri, stdin=stdin)
    assert result.returncode == 0, result.stderr
    parsed = json.loads(result.stdout)
    assert parsed["apiVersion"] == "bkheal/v1"
    assert isinstance(parsed, dict)
    return parsed


def test_a_ledger_is_written_listed_shown_read_and_deleted(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    written = document(
        "ledger", "write", "-e", "3", "-w", "2", "-a", "2", "--digest", "hmac", uri=uri, stdin="a\nb\n\n"
    )
    ledger = str(written["ledger_id"])
    assert (written["state"], written["last_entry_id"], written["length"]) == ("CLOSED", 2, 2)
    assert written["ledger_id"] in [row["ledger_id"] for row in document("ledger", "list", uri=uri)["items"]]
    assert document("ledger", "show", ledger, uri=uri)["digest_type"] == "HMAC"
    assert bkheal("ledger", "read", ledger, uri=uri).stdout == "a\nb\n\n"
    assert bkheal("ledger", "read", ledger, "--first", "1", "--last", "1", uri=uri).stdout == "b\n"
    assert bkheal("ledger", "delete", ledger, "--yes", uri=uri).returncode == 0
    gone = bkheal("ledger", "show", ledger, uri=uri)
    assert gone.returncode == 1
    assert ledger in gone.stderr
    assert "Traceback" not in gone.stderr


def test_random_entries_go_to_a_file(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    uri = cluster.metadata_uri
    written = document("ledger", "write", "-n", "20", "--entry-bytes", "100", uri=uri)
    copied = bkheal("ledger", "read", str(written["ledger_id"]), "--to", str(tmp_path / "out"), uri=uri)
    assert copied.returncode == 0
    assert (tmp_path / "out").stat().st_size == 2000


def test_the_password_is_never_shown(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    written = document("ledger", "write", "--password", "canary-secret", uri=uri, stdin="x\n")
    for command in (("ledger", "show"), ("ledger", "read")):
        result = bkheal("--log-level", "DEBUG", *command, str(written["ledger_id"]), uri=uri)
        assert "canary-secret" not in result.stdout + result.stderr


def test_bookies_and_status_agree(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    rows = document("bookies", uri=uri)["items"]
    assert {row["bookie_id"] for row in rows} == {bookie.bookie_id for bookie in cluster.bookies}
    assert {row["state"] for row in rows} == {"writable"}
    status = document("status", uri=uri)
    assert status["bookies"] == {"writable": 3, "read_only": 0, "down": []}
    assert status["underreplicated"]["ledgers"] == 0
    assert "3 writable" in bkheal("status", uri=uri).stdout
    assert "no ledger is marked" in bkheal("underreplicated", "list", uri=uri).stdout


@pytest.mark.needs("openssl")
def test_bookies_that_do_not_answer_are_told(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Here because they do not speak TLS."""
    make = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ca -keyout ca.key -out ca.pem"
    )
    subprocess.run(make.split(), cwd=tmp_path, check=True, capture_output=True)
    result = bkheal("--tls-ca", str(tmp_path / "ca.pem"), "bookies", uri=cluster.metadata_uri)
    assert result.returncode == 0
    for bookie in cluster.bookies:
        assert f"{bookie.bookie_id} is registered and did not answer: UNREACHABLE" in result.stderr
    rows = document("bookies", uri=cluster.metadata_uri)["items"]
    assert {row["detail"] for row in rows} == {None}


def test_a_wrong_file_of_secrets_is_wrong_configuration(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    result = bkheal("--tls-ca", missing, "ledger", "list", uri=cluster.metadata_uri)
    assert (result.returncode, result.stdout) == (78, "")
    assert f"there is no file {missing}" in result.stderr


def test_recovery_is_switched_off_and_on(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    assert bkheal("recovery", "disable", uri=uri).returncode == 0
    again = bkheal("recovery", "disable", uri=uri)
    assert again.returncode == 1
    assert "already" in again.stderr
    assert document("recovery", "status", uri=uri)["enabled"] is False
    assert "DISABLED" in bkheal("status", uri=uri).stdout
    assert bkheal("recovery", "enable", uri=uri).returncode == 0
    assert document("recovery", "status", uri=uri)["enabled"] is True


@pytest.mark.parametrize(
    ("uri", "exit_code", "says"),
    [
        ("http://nowhere", 78, "example: zk://"),
        ("zk+hierarchical://127.0.0.1:1/ledgers", 3, "127.0.0.1:1"),
        (None, 78, "BKHEAL_METADATA_URI"),
    ],
)
def test_a_wrong_address_is_one_clear_sentence(uri: str | None, exit_code: int, says: str) -> None:
    result = bkheal("status", uri=uri)
    assert result.returncode == exit_code, result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_zookeeper_without_a_cluster_is_named_and_left_alone(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    uri = f"zk+hierarchical://{zookeeper.connect_string}{fresh_root}"
    result = bkheal("status", uri=uri)
    assert result.returncode == 78
    assert fresh_root in result.stderr
    assert bkheal("ledger", "list", uri=uri).returncode == 78


def test_a_root_is_initialised_once(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    uri = f"zk+longhierarchical://{zookeeper.connect_string}{fresh_root}"
    assert bkheal("cluster", "init", uri=uri).returncode == 0
    again = bkheal("cluster", "init", uri=uri)
    assert again.returncode == 1
    assert fresh_root in again.stderr
    assert document("ledger", "list", uri=uri)["items"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ledger", "write", "-e", "2", "-w", "3"), "ensemble size >= write quorum"),
        (("ledger", "write", "--digest", "md5"), "no digest type"),
        (("ledger", "show", "-5"), ""),
        (("--log-level", "LOUD", "status"), "no log level"),
        (("audit", "--fail-on", "sometimes"), "use one of"),
    ],
)
def test_wrong_usage_exits_with_2(cluster: EmbeddedCluster, arguments: tuple[str, ...], says: str) -> None:
    result = bkheal(*arguments, uri=cluster.metadata_uri)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.replace("│", " ").split())


def test_too_few_bookies_create_nothing(cluster: EmbeddedCluster) -> None:
    before = document("ledger", "list", uri=cluster.metadata_uri)["items"]
    result = bkheal("ledger", "write", "-e", "4", "-w", "2", uri=cluster.metadata_uri, stdin="x\n")
    assert result.returncode == 69
    assert "needs 4 bookies and 3 are registered" in result.stderr
    assert document("ledger", "list", uri=cluster.metadata_uri)["items"] == before


def test_the_synchronous_client_writes_and_reads(cluster: EmbeddedCluster) -> None:
    with sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger(LedgerOptions(3, 3, 2), password=b"p") as ledger:
            assert ledger.append(b"first") == 0
            assert ledger.append_all([b"second", b"third"]) == [1, 2]
        reader = client.open_ledger(ledger.ledger_id, password=b"p")
        assert [entry.payload for entry in reader.read_all()] == [b"first", b"second", b"third"]
        assert reader.read(reader.last_entry_id()).payload == b"third"
        assert ledger.ledger_id in client.ledgers()
        client.delete_ledger(ledger.ledger_id)
        assert ledger.ledger_id not in client.ledgers()


def test_an_audit_of_a_healthy_cluster_finds_nothing(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    uri = cluster.metadata_uri
    assert bkheal("ledger", "write", "-n", "3", uri=uri).returncode == 0
    result = bkheal("audit", "--dry-run", "--report-dir", str(tmp_path), "--output", "json", uri=uri)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["verdict"] == "clean"
    assert json.loads(next(tmp_path.glob("*/summary.json")).read_text()) == summary


def test_the_audit_runs_under_spark_submit(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    submit = Path(sys.executable).with_name("spark-submit")
    audit = Path(spark_jobs.audit.__file__)
    arguments = ["--metadata-uri", cluster.metadata_uri, "--report-dir", str(tmp_path), "--output", "json"]
    java = find_java()
    result = subprocess.run(
        [submit, "--master", "local[1]", audit, *arguments],
        env={**os.environ, **java_environment(java), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    assert next(tmp_path.glob("*/summary.json")).is_file()


def test_an_audit_where_there_is_no_cluster_marks_and_reports_nothing(tmp_path: Path) -> None:
    result = bkheal("audit", "--report-dir", str(tmp_path), uri="zk+hierarchical://127.0.0.1:1/ledgers")
    assert result.returncode == 3
    assert "127.0.0.1:1" in result.stderr
    assert list(tmp_path.glob("*/summary.json")) == []
