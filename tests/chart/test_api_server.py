"""A real API server accepts every object, in a namespace with the restricted profile.

Needs BKHEAL_KUBE_APISERVER (built by .ci/build_kube_apiserver.sh), BKHEAL_ETCD (Debian: etcd-server) and kubectl.
No pod is scheduled or run: the tests cover only whether the server accepts the objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.chart.api_server import ApiServer, KubectlError, api_server
from tests.chart.kubernetes_schemas import CUSTOM
from tests.chart.rendering import CHART, ROOT, VALUES, Object, load_values, pods, render
from tests.chart.upgrades import FIXED, REQUIRED, merged, stored, unpacked

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("apiserver"),
    pytest.mark.long,
]

RELEASE: Final = "demo-bkheal"
RELEASES: Final = stored()
EXECUTORS: Final = 2
ENTRYPOINT: Final = ROOT / "helm" / "image" / "entrypoint.sh"
DRIVER: Final = """
import sys
from spark_jobs.session import SessionSettings, spark_session
with spark_session(SessionSettings(master=sys.argv[1])) as spark:
    spark.range(1).count()
"""
NAMESPACE: Final = """
apiVersion: v1
kind: Namespace
metadata:
  name: {name}
  labels:
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/warn: restricted
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("kubernetes")) as running:
        running.kubectl("create", "-f", "-", text=NAMESPACE.format(name="bk"))
        running.kubectl("create", "priorityclass", "high", "--value=1")
        running.kubectl("-n", "bk", "create", "serviceaccount", "shared")
        yield running


def manifests(name: str, namespace: str = "bk") -> str:
    """Return all objects of a set of values whose kinds are built into Kubernetes."""
    return known(render(load_values(name), namespace=namespace).objects, namespace)


def known(objects: Iterable[Object], namespace: str) -> str:
    """Return those of the objects whose kinds are built into Kubernetes."""
    items = [item for item in objects if item["kind"] not in CUSTOM]
    for item in items:
        item["metadata"].setdefault("namespace", namespace)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def apply(server: ApiServer, text: str, *options: str) -> str:
    return server.kubectl(
        "apply", "--server-side", "--force-conflicts", "--validate=strict", *options, "-f", "-", text=text
    )


@pytest.mark.parametrize("name", VALUES)
def test_the_server_accepts_everything_without_a_warning(server: ApiServer, name: str) -> None:
    namespace = f"ns-{name}"
    server.kubectl("create", "-f", "-", text=NAMESPACE.format(name=namespace))
    server.kubectl("-n", namespace, "create", "serviceaccount", "shared")
    reported = apply(server, manifests(name, namespace))
    assert "Warning" not in reported
    again = apply(server, manifests(name, namespace), "--dry-run=server")
    assert "Warning" not in again


@pytest.mark.parametrize(("release", "name"), [(release, name) for release, sets in RELEASES.items() for name in sets])
def test_the_server_accepts_an_upgrade_from_an_earlier_release(
    server: ApiServer, release: str, name: str, tmp_path: Path
) -> None:
    """Every object of the earlier release is changed in place. Hooks are left out: Helm recreates them each time."""
    namespace = f"upgrade-{name}"
    server.kubectl("create", "-f", "-", text=NAMESPACE.format(name=namespace))
    server.kubectl("-n", namespace, "create", "serviceaccount", "shared")
    values = RELEASES[release][name]["values"]
    earlier = installed(render(values, chart=unpacked(release, tmp_path), namespace=namespace).objects)
    apply(server, known(earlier, namespace))
    before = identities(server, namespace)
    later = installed(render(merged(values, REQUIRED), namespace=namespace).objects)
    assert "Warning" not in apply(server, known(later, namespace))
    after = identities(server, namespace)
    assert before.keys() >= RELEASES[release][name]["fixed"].keys()
    assert {key: after[key] for key in before} == before


def installed(objects: Iterable[Object]) -> list[Object]:
    """Return the objects that are not hooks."""
    return [item for item in objects if "helm.sh/hook" not in item["metadata"].get("annotations", {})]


def identities(server: ApiServer, namespace: str) -> dict[str, str]:
    """Return the uid of every object with immutable fields; a recreated object would have another uid."""
    kinds = ",".join(FIXED)
    items = json.loads(server.kubectl("-n", namespace, "get", kinds, "-o", "json"))["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in items}


def test_the_server_refuses_unknown_fields(server: ApiServer) -> None:
    text = manifests("service-minimal").replace('"replicas"', '"replica"')
    with pytest.raises(KubectlError, match=r"unknown field|not declared in schema"):
        apply(server, text, "--dry-run=server")


def test_the_namespace_enforces_the_restricted_profile(server: ApiServer) -> None:
    text = manifests("service-minimal").replace('"runAsNonRoot": true', '"runAsNonRoot": false')
    with pytest.raises(KubectlError, match="would violate PodSecurity"):
        apply(server, text, "--dry-run=server")


def test_the_driver_has_exactly_the_permissions_that_it_needs(server: ApiServer, tmp_path: Path) -> None:
    """The chart's own test of rights, run against this server with the driver's token, and with another token."""
    namespace = "rights"
    server.kubectl("create", "-f", "-", text=NAMESPACE.format(name=namespace))
    apply(server, manifests("everything", namespace))
    driver = list_permissions(server, namespace, "everything-with-a-name-that-is-long1-driver", tmp_path)
    assert driver.stdout == "as it should be\n", driver.stderr
    other = list_permissions(server, namespace, "everything-with-a-name-that-is-long1", tmp_path)
    assert "may not create pods" in other.stderr


def test_spark_starts_executors_that_the_server_accepts(server: ApiServer, tmp_path: Path) -> None:
    """A Spark driver with the chart's settings and the driver's token requests pods; they conform to the profile."""
    namespace = "executors"
    server.kubectl("create", "-f", "-", text=NAMESPACE.format(name=namespace))
    apply(server, manifests("cron-k8s-client", namespace))
    driver = f"{RELEASE}-test-cluster"  # any existing pod: the executors belong to the pod of the driver
    with spark_driver(server, namespace, driver, tmp_path) as log:
        executors = wait_for_executors(server, namespace, log)
    for pod in executors:
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert pod["metadata"]["ownerReferences"][0]["name"] == driver
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "executor"
        assert spec["automountServiceAccountToken"] is False
        assert spec["serviceAccountName"] == RELEASE
        assert spec["securityContext"]["runAsUser"] == 185
        assert container["args"] == ["executor"]
        assert container["image"] == "bkheal:0.1.0"
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"/tmp", "/var/lib/bkheal/reports"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
        entrypoint = ENTRYPOINT.read_text()
        given = {variable["name"] for variable in container["env"]}
        assert set(re.findall(r"\$(SPARK_[A-Z_]+)\b", entrypoint)) <= given


@contextlib.contextmanager
def spark_driver(server: ApiServer, namespace: str, pod: str, directory: Path) -> Iterator[Path]:
    """Start a driver as the chart's pods do, with paths of this machine instead of the pod's."""
    made = render(load_values("cron-k8s-client"), namespace=namespace)
    [config] = [item for item in made.of("ConfigMap") if item["metadata"]["name"].endswith("-spark")]
    for name, text in config["data"].items():
        (directory / name).write_text(text.replace("/etc/bkheal-spark", str(directory)))
    (directory / "token").write_text(server.kubectl("-n", namespace, "create", "token", "spark-driver").strip())
    [job, *_] = [pod for pod in pods(made) if pod.owner["kind"] == "CronJob"]
    arguments = {each["name"]: each.get("value", "") for each in job.spec["containers"][0]["env"]}[
        "PYSPARK_SUBMIT_ARGS"
    ]
    login = (
        f"--conf spark.kubernetes.authenticate.caCertFile={server.ca} "
        f"--conf spark.kubernetes.authenticate.oauthTokenFile={directory / 'token'} "
    )
    env = {
        **os.environ,
        "SPARK_CONF_DIR": str(directory),
        "PYSPARK_SUBMIT_ARGS": login + arguments.replace("$(POD_IP)", "127.0.0.1").replace("$(POD_NAME)", pod),
    }
    log = directory / "driver.log"
    with log.open("wb") as output:
        command = [sys.executable, "-c", DRIVER, f"k8s://{server.url}"]
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def wait_for_executors(server: ApiServer, namespace: str, log: Path) -> list[Object]:
    deadline = time.monotonic() + 80
    while time.monotonic() < deadline:
        found = server.kubectl("-n", namespace, "get", "pods", "-l", "spark-role=executor", "-o", "json")
        items: list[Object] = json.loads(found)["items"]
        if len(items) == EXECUTORS:
            return items
        time.sleep(0.5)
    raise TimeoutError(f"Spark started no executors within 80 s:\n{log.read_text(errors='replace')[-4000:]}")


def list_permissions(
    server: ApiServer, namespace: str, account: str, directory: Path
) -> subprocess.CompletedProcess[str]:
    (directory / "token").write_text(server.kubectl("-n", namespace, "create", "token", account).strip())
    shutil.copy(server.ca, directory / "ca.crt")
    script = (CHART / "files" / "tests" / "may.py").read_text()
    for inside, here in (
        ("/var/run/secrets/kubernetes.io/serviceaccount", str(directory)),
        ("https://kubernetes.default.svc", server.url),
    ):
        assert inside in script
        script = script.replace(inside, here)
    return subprocess.run([sys.executable, "-c", script, namespace], capture_output=True, text=True, timeout=60)
