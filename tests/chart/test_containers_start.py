"""The commands of the containers run here, with the same arguments and files, but paths and ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookie.embedded.zookeeper import EmbeddedZooKeeper
from bookie.metadata.cluster import format_cluster
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.runtime.ports import free_loopback_port
from tests.certificates import make_ca, make_certificate
from tests.chart.rendering import Release, load_values, pod_of, release, render
from tests.chart.waiting import ANSWER_S, wait_for_answer, wait_for_line
from tests.deadlines import STATE_S

pytestmark = pytest.mark.integration


def environment(zookeeper: EmbeddedZooKeeper, root: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "BKHEAL_METADATA_URI": f"zk://{zookeeper.connect_string}{root}"}


def init_command() -> list[str]:
    [init] = pod_of(release("own-cluster"), "bookie").spec["initContainers"]
    assert "command" not in init
    return ["bkheal", *init["args"]]


def make_root(zookeeper: EmbeddedZooKeeper, root: str) -> None:
    """Create the root as the init container does."""

    async def make() -> None:
        store = await ZooKeeperStore.connect(zookeeper.connect_string)
        try:
            await format_cluster(store, root, rng=random.Random(root))
        finally:
            await store.close()

    asyncio.run(make())


def test_concurrent_init_containers_create_the_root_once(zookeeper: EmbeddedZooKeeper, fresh_root: str) -> None:
    env = environment(zookeeper, fresh_root)
    both = [subprocess.Popen(init_command(), env=env, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(STATE_S) for process in both] == [0, 0]
    assert subprocess.run(init_command(), env=env, stdout=subprocess.DEVNULL, timeout=STATE_S).returncode == 0


@pytest.mark.parametrize("component", ["bookie", "replicator", "auditor"])
def test_a_container_starts_answers_its_probes_and_stops(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path, component: str
) -> None:
    env = environment(zookeeper, fresh_root)
    make_root(zookeeper, fresh_root)
    with running(component, env, tmp_path) as (process, base):
        container = pod_of(release("own-cluster"), component).spec["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            wait_for_answer(base + container[probe]["httpGet"]["path"], process, tmp_path / "log")
        wait_for_line(rf"{component}( \S+)? ready", process, tmp_path / "log")  # an earlier signal cancels the start
        process.send_signal(signal.SIGTERM)
        ended = process.wait(pod_of(release("own-cluster"), component).spec["terminationGracePeriodSeconds"])
    assert ended == 0, (tmp_path / "log").read_text()[-2000:]


def test_a_bookie_with_an_apache_port_accepts_apaches_clients(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    env = environment(zookeeper, fresh_root)
    make_root(zookeeper, fresh_root)
    values = load_values("own-cluster")
    values["bookies"]["apachePort"] = 3182
    with running("bookie", env, tmp_path, render(values)) as (process, base):
        wait_for_answer(f"{base}/readyz", process, tmp_path / "log")
        port = tomllib.loads((tmp_path / "bkheal.toml").read_text())["bookie"]["apache_port"]
        socket.create_connection(("127.0.0.1", port), timeout=STATE_S).close()


@pytest.mark.needs("openssl")
def test_auditors_and_replicators_connect_to_bookies_over_tls(
    zookeeper: EmbeddedZooKeeper, fresh_root: str, tmp_path: Path
) -> None:
    """The auditor's API lists the free space of disks. The auditor requests it from the bookies, which require TLS."""
    env = environment(zookeeper, fresh_root)
    make_root(zookeeper, fresh_root)
    made = own_cluster_with_tls()
    make_certificates(tmp_path)
    homes = {name: tmp_path / name for name in ("bookie", "replicator", "auditor")}
    with contextlib.ExitStack() as stack:
        bases = {}
        for component, home in homes.items():
            home.mkdir()
            process, bases[component] = stack.enter_context(running(component, env, home, made, certificates=tmp_path))
            wait_for_answer(f"{bases[component]}/readyz", process, home / "log")
        deadline = time.monotonic() + STATE_S
        while (free_bytes := the_bookie(bases["auditor"])["disk_free_bytes"]) is None:  # its request is repeated
            assert time.monotonic() < deadline, (homes["auditor"] / "log").read_text()[-2000:]
            time.sleep(1)
    assert free_bytes > 0


def own_cluster_with_tls() -> Release:
    values = load_values("own-cluster")
    values["bookkeeper"]["clientTls"] = {"existingSecret": "client"}
    values["bookies"]["tls"] = {"enabled": True, "existingSecret": "bookie"}
    return render(values)


def make_certificates(directory: Path) -> None:
    """Make a directory for each of the Secrets, with the name of its mount."""
    make_ca(directory, "authority")
    for mount, host in (("bkheal-tls", "IP:127.0.0.1"), ("bkheal-client-tls", "DNS:client")):
        made = make_certificate(directory, mount, "authority", host)
        assert made.cert
        assert made.key
        (directory / "etc" / mount).mkdir(parents=True)
        for path, name in ((made.ca, "ca.crt"), (made.cert, "tls.crt"), (made.key, "tls.key")):
            shutil.copy(path, directory / "etc" / mount / name)


def the_bookie(base: str) -> dict[str, Any]:
    """Return an auditor's view of the only bookie."""
    with urllib.request.urlopen(f"{base}/api/v1/bookies", timeout=ANSWER_S) as answer:
        [found] = json.load(answer)["items"]
    assert isinstance(found, dict)
    return found


@contextlib.contextmanager
def running(
    component: str, env: dict[str, str], directory: Path, made: Release | None = None, certificates: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a component's container; yields its process and the base URL of its probes."""
    made = made or release("own-cluster")
    container = pod_of(made, component).spec["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    text = made.one("ConfigMap", "bkheal-config")["data"][f"{component}.toml"]
    base = ""
    for name, port in ports.items():
        free = free_loopback_port(random.SystemRandom())
        assert f" = {port}\n" in text + "\n"
        text = f"{text}\n".replace(f" = {port}\n", f" = {free}\n").rstrip("\n")
        base = f"http://127.0.0.1:{free}" if name == "http" else base
    for inside in ("/var/lib/bkheal/reports", "/var/lib/bkheal/journal", "/var/lib/bkheal/ledgers"):
        text = text.replace(inside, str(directory / Path(inside).name))
        (directory / Path(inside).name).mkdir()
    (directory / "topology.json").write_text("{}")
    if certificates:
        for mount in ("bkheal-tls", "bkheal-client-tls"):
            text = text.replace(f"/etc/{mount}/", f"{certificates}/etc/{mount}/")
    text = text.replace("/etc/bkheal/topology.json", str(directory / "topology.json"))
    (directory / "bkheal.toml").write_text(text.replace("0.0.0.0", "127.0.0.1").replace("plaintext = true", ""))
    reported = {each["name"] for each in container["env"]}
    host = {"BKHEAL_BOOKIE_ADVERTISED_HOST": "127.0.0.1"} if "BKHEAL_BOOKIE_ADVERTISED_HOST" in reported else {}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bkheal", *container["args"]],
            env={**env, **host, "BKHEAL_CONFIG": str(directory / "bkheal.toml"), "SPARK_LOCAL_DIRS": str(directory)},
            cwd=directory,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process, base
        finally:
            process.kill()
            process.wait()
