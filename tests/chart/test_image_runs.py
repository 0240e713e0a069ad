"""The image, built from its recipe, runs: its entry point, and a cluster of the chart's pods with a lost bookie.

Needs root, podman, crun, iproute2, and BKHEAL_IMAGE_STORE, the directory in which ``.ci/build_image.sh`` left the
image.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chart.kubelet import Container, Node, node, port_of
from tests.chart.rendering import Release, load_values, pod_of, pods, render
from tests.deadlines import PROGRAM_S

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("image"),
    pytest.mark.long,
]
ROOT: Final = Path(__file__).parents[2]
BOOKIES: Final = tuple(f"bkheal-bookie-{number}.bkheal-bookie.bk.svc.cluster.local" for number in range(4))
URI: Final = "zk+hierarchical://zookeeper:2181/bkheal-ledgers"
AUDITOR: Final = "bkheal-auditor-0"
NAMES: Final = ("zookeeper", "client", AUDITOR, "bkheal-replicator-0", "bkheal-audit-0", *BOOKIES)
LEDGERS, ENTRIES = 3, 200


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("node"), NAMES) as made:
        yield made


@dataclass(frozen=True)
class Cluster:
    """The pods of a release with its own bookies."""

    machine: Node
    release: Release
    bookies: list[Container]
    auditor: Container
    replicator: Container

    def bkheal(self, *arguments: str) -> str:
        """Run a command, which must succeed, in a separate pod, and return its output."""
        made = self.machine.run("client", *arguments, variables={"BKHEAL_METADATA_URI": URI})
        assert made.wait() == 0, made.log
        return made.output

    def api(self, path: str) -> Any:
        return json.loads(self.auditor.get(8080, f"/api/v1/{path}"))


@pytest.fixture(scope="module")
def cluster(machine: Node) -> Cluster:
    values = load_values("own-cluster")
    values["bookies"]["replicas"] = len(BOOKIES)
    values["placement"]["topology"] = {name: f"/r{number}" for number, name in enumerate(BOOKIES)}
    made = render(values)
    data = machine.directory / "zookeeper"
    data.mkdir()
    shutil.chown(data, 185, 185)
    jars = "/opt/bkheal/lib/python3.11/site-packages/pyspark/jars/*"
    server = ("-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", "2181", "/data")
    machine.run("zookeeper", *server, entrypoint="java", mounts={"/data": (data, False)})
    bookies = [machine.start(made, pod_of(made, "bookie"), name) for name in BOOKIES]
    auditor = machine.start(made, pod_of(made, "auditor"), AUDITOR)
    replicator = machine.start(made, pod_of(made, "replicator"), "bkheal-replicator-0")
    components = {"auditor": [auditor], "replicator": [replicator], "bookie": bookies}
    for component, containers in components.items():
        pod = pod_of(made, component)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = pod.spec["containers"][0][probe]["httpGet"]
            for container in containers:
                container.get(port_of(pod, asked["port"]), asked["path"])
    return Cluster(machine, made, bookies, auditor, replicator)


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROGRAM_S
    while not holds():
        assert time.monotonic() < deadline, f"timed out after {PROGRAM_S:g} s: {what}"
        time.sleep(0.5)


def test_it_prints_its_version_and_refuses_unknown_arguments(machine: Node) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    reported = machine.run("client", "--version")
    assert reported.wait() == 0
    assert reported.output.split() == ["bkheal", version]
    assert machine.run("client", "no-such-command").wait() == 2


def test_a_kerberos_login_requests_a_ticket(machine: Node) -> None:
    """The image contains the package and its library."""
    reported = machine.run("client", "--zk-login", "GSSAPI", "bookies", "--metadata-uri", "zk://127.0.0.1:1/ledgers")
    reported.wait()
    assert "no Kerberos ticket for zookeeper/127.0.0.1" in reported.log


def test_only_mounts_are_writable_and_no_process_runs_as_root(machine: Node) -> None:
    reported = machine.run(
        "client", "-c", "id -u; touch /here 2>/dev/null || touch /tmp/here || echo nowhere", entrypoint="/bin/sh"
    )
    assert reported.wait() == 0
    first, last = reported.output.splitlines()
    assert (first, last) == ("185", "nowhere")


def test_a_spark_session_starts_from_its_class_archive(machine: Node) -> None:
    program = (
        "from pathlib import Path; from spark_jobs.session import SessionSettings, java_pid, spark_session\n"
        "with spark_session(SessionSettings()) as spark: print(Path(f'/proc/{java_pid()}/maps').read_text())"
    )
    home = machine.directory / "session"
    home.mkdir()
    shutil.chown(home, 185, 185)
    made = machine.run("client", "-c", program, entrypoint="/opt/bkheal/bin/python", mounts={"/tmp": (home, False)})
    assert made.wait() == 0, made.log
    assert "/opt/bkheal/spark-classes.jsa" in made.output


def test_a_spark_session_starts_for_an_unknown_user_id(machine: Node) -> None:
    program = (
        "import os; from spark_jobs.session import SessionSettings, spark_session\n"
        "with spark_session(SessionSettings()) as spark: print(os.getuid(), spark.range(3).count())"
    )
    home = machine.directory / "unknown"
    home.mkdir()
    home.chmod(0o777)
    made = machine.run(
        "client",
        "-c",
        program,
        entrypoint="/opt/bkheal/bin/python",
        mounts={"/tmp": (home, False)},
        user="1000660000:0",
    )
    assert made.wait() == 0, made.log
    assert made.output.split() == ["1000660000", "3"]


def test_a_spark_executor_on_kubernetes_starts_and_tries_to_connect_to_its_driver(machine: Node) -> None:
    variables = {
        "SPARK_EXECUTOR_MEMORY": "256m",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@client:1",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": machine.address("client"),
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod-1",
    }
    home = machine.directory / "executor"
    home.mkdir()
    shutil.chown(home, 185, 185)
    made = machine.run("client", "executor", variables=variables, mounts={"/tmp": (home, False)})
    assert made.wait() != 0
    assert f"Failed to connect to client/{machine.address('client')}:1" in made.output + made.log


def test_a_cluster_of_its_pods_repairs_the_loss_of_a_bookie(cluster: Cluster) -> None:
    shape = ("-e", "3", "-w", "3", "-a", "2", "-n", str(ENTRIES), "-o", "json")
    ledgers = [int(json.loads(cluster.bkheal("ledger", "write", *shape))["ledger_id"]) for _ in range(LEDGERS)]

    def members(ledger: int) -> set[str]:
        shown = json.loads(cluster.bkheal("ledger", "show", str(ledger), "-o", "json"))
        return {bookie for fragment in shown["fragments"] for bookie in fragment["members"]}

    def is_off(ledger: int) -> bool:
        return lost not in members(ledger)

    lost = f"{BOOKIES[0]}:3181"
    on_it = [ledger for ledger in ledgers if lost in members(ledger)]
    assert on_it, "no ledger is on this bookie, although each is on three of four"
    cluster.bookies[0].kill9()
    for ledger in on_it:
        wait_until(f"ledger {ledger} is off the bookie", partial(is_off, ledger))
    wait_until("no mark is left", lambda: cluster.api("underreplicated")["items"] == [])
    for ledger in ledgers:
        assert len(cluster.bkheal("ledger", "read", str(ledger), "-f", "json").splitlines()) == ENTRIES


def test_a_bookie_restarted_on_its_volumes_is_the_same_bookie(cluster: Cluster) -> None:
    again = cluster.machine.start(cluster.release, pod_of(cluster.release, "bookie"), BOOKIES[0])
    again.get(8000, "/readyz")
    states = {each["bookie_id"]: each["state"] for each in cluster.api("bookies")["items"]}
    assert states[f"{BOOKIES[0]}:3181"] == "writable"


def test_an_audit_by_the_cron_job_finds_nothing_after_the_repair(cluster: Cluster) -> None:
    values = load_values("cron-local")
    values["bookkeeper"]["metadataServiceUri"] = URI
    made = render(values)
    [pod] = [pod for pod in pods(made) if pod.owner["metadata"]["name"].endswith("-audit-bookies")]
    audit = cluster.machine.start(made, pod, "bkheal-audit-0")
    assert audit.wait() == 0, audit.log
    run = max(json.loads(cluster.bkheal("audit", "list", "-o", "json"))["items"], key=lambda each: str(each["started"]))
    assert (run["kind"], run["state"], run["verdict"]) == ("bookies", "done", "clean")
    assert run["process"].startswith("bkheal-audit-0"), run


def test_every_pod_ends_within_its_grace(cluster: Cluster) -> None:
    for component, container in (("replicator", cluster.replicator), ("auditor", cluster.auditor)):
        container.process.send_signal(signal.SIGTERM)
        grace_s = pod_of(cluster.release, component).spec["terminationGracePeriodSeconds"]
        assert container.wait(grace_s) in (0, 128 + signal.SIGTERM), container.log[-3000:]
    for bookie in cluster.bookies[1:]:
        bookie.process.send_signal(signal.SIGTERM)
        grace_s = pod_of(cluster.release, "bookie").spec["terminationGracePeriodSeconds"]
        assert bookie.wait(grace_s) in (0, 128 + signal.SIGTERM), bookie.log[-3000:]
