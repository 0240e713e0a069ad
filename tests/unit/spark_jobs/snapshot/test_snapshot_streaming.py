"""Snapshots from an admin server: verified while they are received, and refused in case of doubt."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest
from typing_extensions import override

from bookie.metadata.cluster import Cluster
from bookie.metadata.layout import LayoutKind
from bookie.metadata.port import StoreUnavailableError
from bookie.runtime.clock import SystemClock
from spark_jobs.options.snapshot import url_problems
from spark_jobs.snapshot.errors import SnapshotError
from spark_jobs.snapshot.index import index_snapshot
from spark_jobs.snapshot.streaming import TRANSFER, AdminServer, read_authorization, stream_snapshot
from tests.worlds.admin_server import Answer, serving
from tests.worlds.snapshots import snappy, tree_of, written

CLUSTER = Cluster("/ledgers", LayoutKind.HIERARCHICAL, "1b2c")
SNAPSHOT = written(tree_of(CLUSTER, dict.fromkeys((*range(300), 10_000), b"metadata" * 20)))
EPOCH_2 = 2 << 32
SECRET = "digest super:hunter2"  # used by no server


@pytest.mark.parametrize(
    "body", [SNAPSHOT, gzip.compress(SNAPSHOT, 1), snappy(SNAPSHOT)], ids=["plain", "gzip", "snappy"]
)
def test_a_streamed_snapshot_equals_a_file(tmp_path: Path, body: bytes) -> None:
    answer, target = Answer(body), tmp_path / "target"
    answer.headers = {**answer.headers, "snapshot_size": str(len(body))}
    with serving(answer) as url:
        server = AdminServer(url, SECRET)
        index = stream_snapshot(server, target, CLUSTER, EPOCH_2 + 9)
    assert index == index_snapshot(target, CLUSTER)
    assert (target.read_bytes(), index.ledgers, target.stat().st_mode & 0o777) == (body, 301, 0o600)
    assert answer.asked == [("/commands/snapshot?streaming=true", SECRET)]
    assert "hunter2" not in repr(server)


BAD = Answer(SNAPSHOT[:3000] + bytes([SNAPSHOT[3000] ^ 1]) + SNAPSHOT[3001:])


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (Answer(SNAPSHOT, sent=len(SNAPSHOT) // 2), StoreUnavailableError, "did not arrive"),
        (Answer(SNAPSHOT[:-20]), SnapshotError, "cut off|does not end"),
        (Answer(gzip.compress(SNAPSHOT)[:-20]), SnapshotError, "cannot be unpacked"),
        (BAD, SnapshotError, "damaged"),
        (Answer(SNAPSHOT, headers={"last_zxid": "0x200000005", "snapshot_size": "7"}), SnapshotError, "of 7 bytes"),
        (
            Answer(SNAPSHOT, headers={"last_zxid": "0x1ffffffff"}),
            SnapshotError,
            "is of epoch 1, and the cluster has .* epoch 2",
        ),
        (Answer(SNAPSHOT, headers={}), SnapshotError, "last_zxid is missing"),
        (Answer(SNAPSHOT, headers={"last_zxid": "soon"}), SnapshotError, "last_zxid is missing"),
        (Answer(b"", 401), SnapshotError, "--snapshot-authorization-file"),
        (Answer(b"", 404), SnapshotError, "3.9 or newer"),
        (Answer(b"", 429), StoreUnavailableError, "limits how often"),
        (Answer(b"", 503), SnapshotError, "is the command enabled"),
        (Answer(b"", 302, {"Location": "http://127.0.0.1:1/"}), SnapshotError, "status 302"),
        (Answer(b'{"command": "snapshot"}'), SnapshotError, "is not a snapshot"),
        (Answer(b""), SnapshotError, "is empty"),
    ],
)
def test_a_doubtful_answer_is_refused(tmp_path: Path, answer: Answer, error: type[Exception], reason: str) -> None:
    with serving(answer) as url, pytest.raises(error, match=reason) as raised:
        stream_snapshot(AdminServer(url, SECRET), tmp_path / "target", CLUSTER, EPOCH_2)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("cluster", "reason"),
    [
        (Cluster("/ledgers", LayoutKind.HIERARCHICAL, "other"), "is of another cluster"),
        (Cluster("/none", LayoutKind.HIERARCHICAL, "1b2c"), "has no cluster at /none"),
        (Cluster("/ledgers", LayoutKind.FLAT, "1b2c"), "flat layout"),
    ],
)
def test_another_cluster_is_refused(tmp_path: Path, cluster: Cluster, reason: str) -> None:
    with serving(Answer(SNAPSHOT)) as url, pytest.raises(SnapshotError, match=reason):
        stream_snapshot(AdminServer(url), tmp_path / "target", cluster, 0)


def test_a_server_that_does_not_answer_or_a_full_disk_leaves_no_marks(tmp_path: Path) -> None:
    with serving(Answer(SNAPSHOT)) as url:
        gone = url
        with pytest.raises(SnapshotError, match="cannot be stored in"):
            stream_snapshot(AdminServer(url), tmp_path / "missing" / "target", CLUSTER, 0)
        with pytest.raises(SnapshotError, match="cannot be read"):
            stream_snapshot(AdminServer(url, ca=tmp_path / "no-ca"), tmp_path / "target", CLUSTER, 0)
    with pytest.raises(StoreUnavailableError, match="nothing was marked"):
        stream_snapshot(AdminServer(gone), tmp_path / "target", CLUSTER, 0)


@pytest.mark.parametrize("sent", [0, len(SNAPSHOT) // 2], ids=["before the headers", "in the body"])
def test_a_stopped_run_does_not_wait_for_an_unreachable_server(tmp_path: Path, sent: int) -> None:
    class StoppedError(Exception):
        pass

    answer, target = Answer(SNAPSHOT, sent=sent, then=threading.Event()), tmp_path / "target"

    def stop() -> None:
        if answer.asked and target.stat().st_size <= sent:
            raise StoppedError

    with serving(answer) as url:
        with pytest.raises(StoppedError):
            stream_snapshot(AdminServer(url), target, CLUSTER, 0, stop)
        for thread in threading.enumerate():
            if thread.name == TRANSFER:
                thread.join()  # the thread ends although the server does not answer
        assert answer.then is not None
        answer.then.set()
    assert target.stat().st_size <= sent


def test_a_server_that_sends_too_slowly_is_a_timeout(tmp_path: Path) -> None:
    class Leap(SystemClock):
        """A clock on which 400 s pass between two calls."""

        asked = 0

        @override
        def monotonic_s(self) -> float:
            self.asked += 1
            return 400.0 * self.asked

    answer, clock = Answer(SNAPSHOT, sent=1000, then=threading.Event()), Leap()
    with serving(answer) as url:
        with pytest.raises(StoreUnavailableError, match=r"too slowly.*nothing was marked"):
            stream_snapshot(AdminServer(url), tmp_path / "target", CLUSTER, 0, clock=clock)
        assert answer.then is not None
        answer.then.set()
    assert clock.asked == 3, "the speed is not checked in the first ten minutes"


def test_the_authorization_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "authorization"
    file.write_text(f"{SECRET}\n")
    environment = {"BKHEAL_SNAPSHOT_AUTHORIZATION": "digest other:word"}
    assert read_authorization(file, environment) == SECRET
    assert read_authorization(None, environment) == "digest other:word"
    assert read_authorization(None, {}) == ""
    for text in ("", "two\nlines", "ä", "x" * 5000):
        file.write_text(text)
        with pytest.raises(SnapshotError, match="authorization"):
            read_authorization(file, {})
    with pytest.raises(SnapshotError, match="cannot be read"):
        read_authorization(tmp_path / "none", {})


def test_urls_are_accepted_or_refused() -> None:
    assert AdminServer("http://zk1:8080/").request_url == "http://zk1:8080/commands/snapshot?streaming=true"
    assert AdminServer("https://zk1/zk/cmd/").request_url == "https://zk1/zk/cmd/snapshot?streaming=true"
    assert list(url_problems("http://zk1:8080")) == []
    for url in ("zk1:8080", "ftp://zk1", "http://", "http://a..b", "http://a:b@zk1", "http://zk1?x=1"):
        (problem,) = url_problems(url)
        assert "a:b" not in problem
