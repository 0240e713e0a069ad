"""The ``bkheal`` commands of an operator: output, exit codes, and refusals before any change."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spark_jobs.audit
from bookie.client import sync
from bookie.client.bookkeeper import LedgerOptions
from bookie.client.connect import connect
from bookie.embedded.cluster import EmbeddedCluster
from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.runtime.java import find_java, java_environment
from tests.certificates import make_ca
from tests.deadlines import PROGRAM_S
from tests.integration import commands
from tests.integration.commands import Ended, started, typed

pytestmark = pytest.mark.integration

UNREACHABLE_URI = "zk+hierarchical://127.0.0.1:1/ledgers"


@pytest.fixture
def cluster(shared_cluster: EmbeddedCluster) -> EmbeddedCluster:
    return shared_cluster


@pytest.fixture
def with_short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in this process wait 0.5 s for a missing ZooKeeper, not 15 s."""
    patient = ZooKeeperStore.connect

    async def impatient(hosts: str, **options: Any) -> ZooKeeperStore:
        return await patient(hosts, **{**options, "connect_timeout_s": 0.5})

    monkeypatch.setattr(ZooKeeperStore, "connect", impatient)


def bkheal(*arguments: str, uri: str | None = None, stdin: str = "") -> Ended:
    """Run one command. The environment names the cluster, as for operators."""
    return typed(uri, *arguments, stdin=stdin.encode())


def document(*arguments: str, uri: str, stdin: str = "") -> dict[str, Any]:
    return commands.document(typed(uri, *arguments, "--output", "json", stdin=stdin.encode()))


def process(*arguments: str, uri: str, stdin: str = "") -> dict[str, Any]:
    """Run one command as a process."""
    return commands.document(started(uri, *arguments, "--output", "json", stdin=stdin.encode()))


def test_a_ledger_is_written_listed_shown_read_and_deleted(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    shape = ("-e", "3", "-w", "2", "-a", "2", "--digest", "hmac")
    written = process("ledger", "write", *shape, uri=uri, stdin="a\nb\n\n")
    ledger = str(written["ledger_id"])
    assert (written["state"], written["last_entry_id"], written["length"]) == ("CLOSED", 2, 2)
    assert written["ledger_id"] in [row["ledger_id"] for row in process("ledger", "list", uri=uri)["items"]]
    assert process("ledger", "show", ledger, uri=uri)["digest_type"] == "HMAC"
    assert started(uri, "ledger", "read", ledger).stdout == b"a\nb\n\n"
    assert bkheal("ledger", "read", ledger, "--first", "1", "--last", "1", uri=uri).stdout == b"b\n"
    assert started(uri, "ledger", "delete", ledger, "--yes").returncode == 0
    gone = started(uri, "ledger", "show", ledger)
    assert gone.returncode == 1
    assert ledger.encode() in gone.stderr
    assert b"Traceback" not in gone.stderr


def test_random_entries_are_written_to_a_file(cluster: EmbeddedCluster, tmp_path: Path) -> None:
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
        assert b"canary-secret" not in result.stdout + result.stderr


async def forget_marks(uri: str) -> None:
    """Delete the marks on ledgers of other tests: writers mark ledgers that lack copies because a bookie was slow."""
    async with await connect(uri) as client:
        await client.ports.tasks.initialize()
        for task in await client.ports.tasks.list():
            held = await client.ports.tasks.locks.lock(task.ledger_id, "test")
            assert held is not None
            await client.ports.tasks.locks.complete(held)


def test_the_bookies_and_status_commands_agree(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    asyncio.run(forget_marks(uri))
    rows = process("bookies", uri=uri)["items"]
    assert {row["bookie_id"] for row in rows} == {bookie.bookie_id for bookie in cluster.bookies}
    assert {row["state"] for row in rows} == {"writable"}
    status = process("status", uri=uri)
    assert status["bookies"] == {"writable": 3, "read_only": 0, "draining": [], "lost": []}
    assert status["underreplicated"]["ledgers"] == 0
    assert b"3 writable" in bkheal("status", uri=uri).stdout
    assert b"no ledger is marked" in started(uri, "underreplicated", "list").stdout


@pytest.mark.needs("openssl")
def test_bookies_that_do_not_answer_are_reported(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The bookies do not answer because they do not speak TLS."""
    result = bkheal("--tls-ca", str(make_ca(tmp_path, "ca")), "bookies", uri=cluster.metadata_uri)
    assert result.returncode == 0
    for bookie in cluster.bookies:
        assert f"{bookie.bookie_id} is registered and did not answer: UNREACHABLE" in result.stderr.decode()
    rows = document("bookies", uri=cluster.metadata_uri)["items"]
    assert {row["detail"] for row in rows} == {None}


def test_a_missing_secrets_file_is_a_configuration_error(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.pem")
    result = bkheal("--tls-ca", missing, "ledger", "list", uri=cluster.metadata_uri)
    assert (result.returncode, result.stdout) == (78, b"")
    assert f"there is no file {missing}" in result.stderr.decode()


def test_limits_on_copying_are_set_shown_and_removed(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    assert document("throttle", "show", uri=uri)["limited"] is False
    rehearsed = document("throttle", "set", "--bytes-per-second", "5g", "--dry-run", uri=uri)
    assert (rehearsed["dry_run"], rehearsed["bytes_per_second"]) == (True, 5 << 30)
    assert document("throttle", "show", uri=uri)["limited"] is False
    process("throttle", "set", "--bytes-per-second", "50MiB", "--requests-per-second", "70", uri=uri)
    document("throttle", "set", "--critical", "1m", "--profile", "client-first", uri=uri)
    shown = document("throttle", "show", uri=uri)
    assert (shown["bytes_per_second"], shown["requests_per_second"]) == (50 << 20, 70)
    assert (shown["critical_bytes_per_second"], shown["profile"]) == (1 << 20, "client-first")
    assert (shown["limited"], shown["workers"], shown["bookie_in_bytes_per_second"]) == (True, [], 0)
    assert shown["by"]
    assert shown["since"]
    document("throttle", "clear", uri=uri)
    assert document("throttle", "show", uri=uri)["limited"] is False


@pytest.mark.parametrize(
    "arguments", [(), ("--bytes-per-second", "fast"), ("--bookie-in", "-1"), ("--profile", "none")]
)
def test_bad_limits_change_nothing(cluster: EmbeddedCluster, arguments: tuple[str, ...]) -> None:
    uri = cluster.metadata_uri
    assert bkheal("throttle", "set", *arguments, uri=uri).returncode in (1, 2)
    assert document("throttle", "show", uri=uri)["limited"] is False


def test_recovery_is_switched_off_and_on(cluster: EmbeddedCluster) -> None:
    uri = cluster.metadata_uri
    assert started(uri, "recovery", "disable").returncode == 0
    again = bkheal("recovery", "disable", uri=uri)
    assert again.returncode == 1
    assert b"already" in again.stderr
    assert document("recovery", "status", uri=uri)["enabled"] is False
    assert b"DISABLED" in bkheal("status", uri=uri).stdout
    assert bkheal("recovery", "enable", uri=uri).returncode == 0
    assert document("recovery", "status", uri=uri)["enabled"] is True


@pytest.mark.usefixtures("with_short_timeout")
@pytest.mark.parametrize(
    ("uri", "exit_code", "says"),
    [("http://nowhere", 78, "example: zk://"), (UNREACHABLE_URI, 3, "127.0.0.1:1"), (None, 78, "BKHEAL_METADATA_URI")],
)
def test_a_wrong_address_is_reported_in_one_clear_line(uri: str | None, exit_code: int, says: str) -> None:
    result = typed(uri, "status")
    assert result.returncode == exit_code, result.stderr
    assert says in result.stderr.decode()
    assert b"Traceback" not in result.stderr


@pytest.mark.usefixtures("with_short_timeout")
def test_a_missing_cluster_is_reported_in_one_line() -> None:
    missing = typed(UNREACHABLE_URI, "ledger", "list")
    assert missing.returncode == 3
    assert missing.stderr.count(b"\n") == 1
    assert b"check the addresses" in missing.stderr


def test_a_zookeeper_without_a_cluster_is_named_and_left_alone(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    uri = f"zk+hierarchical://{zookeeper.connect_string}{fresh_root}"
    result = started(uri, "status")
    assert result.returncode == 78
    assert fresh_root in result.stderr.decode()
    assert bkheal("ledger", "list", uri=uri).returncode == 78


def test_a_root_is_initialised_once(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    uri = f"zk+longhierarchical://{zookeeper.connect_string}{fresh_root}"
    assert started(uri, "cluster", "init").returncode == 0
    again = bkheal("cluster", "init", uri=uri)
    assert again.returncode == 1
    assert fresh_root in again.stderr.decode()
    assert document("ledger", "list", uri=uri)["items"] == []


def test_a_root_is_initialised_only_if_it_is_absent(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    uri = f"zk+longhierarchical://{zookeeper.connect_string}{fresh_root}"
    assert b"created an empty cluster" in typed(uri, "cluster", "init", "--if-absent").stdout
    again = typed(uri, "cluster", "init", "--if-absent")
    assert (again.returncode, again.stderr) == (0, b"")
    assert f"there is a cluster at {uri} already".encode() in again.stdout


def test_init_if_absent_still_fails_for_an_unusable_cluster(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    at = f"{zookeeper.connect_string}{fresh_root}"
    assert typed(f"zk+longhierarchical://{at}", "cluster", "init", "--if-absent").returncode == 0
    other = typed(f"zk+flat://{at}", "cluster", "init", "--if-absent")
    assert other.returncode == 78
    assert b"has the layout longhierarchical" in other.stderr
    empty = typed(f"zk://{at}/available", "cluster", "init", "--if-absent")
    assert empty.returncode == 78
    assert b"no LAYOUT node" in empty.stderr
    assert typed(UNREACHABLE_URI, "cluster", "init", "--if-absent").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ledger", "write", "-e", "2", "-w", "3"), "ensemble size >= write quorum"),
        (("ledger", "write", "--digest", "md5"), "not a digest type"),
        (("ledger", "show", "-5"), ""),
        (("--log-level", "LOUD", "status"), "not a log level"),
        (("audit", "--fail-on", "sometimes"), "is not one of"),
    ],
)
def test_wrong_usage_exits_with_2(cluster: EmbeddedCluster, arguments: tuple[str, ...], says: str) -> None:
    result = bkheal(*arguments, uri=cluster.metadata_uri)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.decode().replace("│", " ").split())


def test_with_too_few_bookies_nothing_is_created(cluster: EmbeddedCluster) -> None:
    before = document("ledger", "list", uri=cluster.metadata_uri)["items"]
    result = started(cluster.metadata_uri, "ledger", "write", "-e", "4", "-w", "2", stdin=b"x\n")
    assert result.returncode == 69
    assert b"needs 4 bookies and 3 are registered" in result.stderr
    assert document("ledger", "list", uri=cluster.metadata_uri)["items"] == before


def test_the_synchronous_client_writes_and_reads(cluster: EmbeddedCluster) -> None:
    with sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger(LedgerOptions(3, 3, 2), password=b"p") as ledger:
            assert ledger.append(b"first") == 0
            assert ledger.append_all([b"second", b"third"]) == [1, 2]
        reader = client.open_ledger(ledger.ledger_id, password=b"p")
        assert [entry.payload for entry in reader.read_all()] == [b"first", b"second", b"third"]
        assert reader.read(reader.last_entry_id()).payload == b"third"
        with client.create_ledger(LedgerOptions(3, 3, 2)) as copy:
            assert copy.append_all(entry.payload for entry in reader.read_all()) == [0, 1, 2]
            copy.append_all(b"%d" % number for number in range(3, 300))
        copied = [entry.payload for entry in client.open_ledger(copy.ledger_id).read_all()]
        assert copied == [b"first", b"second", b"third", *(b"%d" % number for number in range(3, 300))]
        assert ledger.ledger_id in client.ledgers()
        client.delete_ledger(ledger.ledger_id)
        assert ledger.ledger_id not in client.ledgers()


@pytest.mark.spark
@pytest.mark.usefixtures("quick_spark")
def test_an_audit_of_a_healthy_cluster_finds_nothing(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    uri = cluster.metadata_uri
    assert bkheal("ledger", "write", "-n", "3", uri=uri).returncode == 0
    result = started(uri, "audit", "--dry-run", "--report-dir", str(tmp_path), "--output", "json")
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["verdict"] == "clean"
    assert json.loads(next(tmp_path.glob("*/summary.json")).read_text()) == summary


@pytest.mark.spark
@pytest.mark.usefixtures("quick_spark")
@pytest.mark.long
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
        timeout=PROGRAM_S,
    )
    assert result.returncode == 0, result.stderr
    assert next(tmp_path.glob("*/summary.json")).is_file()


@pytest.mark.usefixtures("with_short_timeout")
def test_an_audit_without_a_cluster_marks_and_reports_nothing(tmp_path: Path) -> None:
    result = typed(UNREACHABLE_URI, "audit", "--report-dir", str(tmp_path))
    assert result.returncode == 3
    assert b"127.0.0.1:1" in result.stderr
    assert list(tmp_path.glob("*/summary.json")) == []
