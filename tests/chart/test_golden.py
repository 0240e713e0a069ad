"""Properties of every pod and object, for all values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    VALUES,
    Object,
    Pod,
    Release,
    executor_template,
    load_values,
    pods,
    release,
    render,
)

EVERY = pytest.mark.parametrize("name", VALUES)
SECRET_NAME = re.compile(r"(?i)(password|token|secret|credential|private)")
FILES_OF_SECRETS = {
    "tokens_file",
    "sasl_password_file",
    "bookie_sasl_password_file",
    "BKHEAL_SASL_PASSWORD_FILE",
    "BKHEAL_ZK_PASSWORD_FILE",
    "BKHEAL_ZK_TLS_CA",
    "BKHEAL_ZK_TLS_CERT",
    "BKHEAL_ZK_TLS_KEY",
}
"""Settings and variables that name a file of a Secret."""


def selects(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def all_pods(name: str) -> list[Pod]:
    made = release(name)
    executor = executor_template(made)
    extra = [Pod({"kind": "Executor"}, executor["spec"], executor["metadata"])] if executor else []
    return [*pods(made), *extra]


@EVERY
def test_pods_fit_the_restricted_profile(name: str) -> None:
    for pod in all_pods(name):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (185, 185, 185)
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.spec.keys()
        kinds = {next(iter(volume.keys() - {"name"})) for volume in pod.spec.get("volumes", [])}
        assert kinds <= {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
        for container in pod.containers:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in container["securityContext"]


@EVERY
def test_containers_have_requests_and_a_memory_limit(name: str) -> None:
    for pod in pods(release(name)):
        for container in pod.containers:
            assert container["resources"]["limits"]["memory"], container["name"]


@EVERY
def test_long_running_containers_have_three_probes(name: str) -> None:
    for pod in pods(release(name)):
        if not pod.is_long_running:
            continue
        main = pod.spec["containers"][0]
        ports = {port["name"] for port in main["ports"]}
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            how = main[kind].get("httpGet") or main[kind]["tcpSocket"]
            assert how["port"] in ports
            assert {"periodSeconds", "timeoutSeconds", "failureThreshold"} <= main[kind].keys()


@EVERY
def test_liveness_probes_never_check_readiness(name: str) -> None:
    for pod in pods(release(name)):
        main = pod.spec["containers"][0]
        if "httpGet" in main.get("livenessProbe", {}):
            assert main["livenessProbe"]["httpGet"]["path"] == main["startupProbe"]["httpGet"]["path"] == "/livez"
            assert main["readinessProbe"]["httpGet"]["path"] == "/readyz"


@EVERY
def test_every_mount_has_its_volume_and_tmp_is_writable(name: str) -> None:
    for pod in all_pods(name):
        claims = pod.owner.get("spec", {}).get("volumeClaimTemplates", [])
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | {
            claim["metadata"]["name"] for claim in claims
        }
        ours = [container for container in pod.containers if "volumeMounts" in container]
        mounts = {mount["name"] for container in ours for mount in container["volumeMounts"]}
        assert mounts <= volumes
        for container in ours:
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@EVERY
def test_config_files_that_pods_mount_exist(name: str) -> None:
    made = release(name)
    files = {item["metadata"]["name"]: item.get("data", {}).keys() for item in made.of("ConfigMap")}
    for pod in pods(made):
        for volume in pod.spec.get("volumes", []):
            if "configMap" in volume:
                wanted = {item["key"] for item in volume["configMap"].get("items", [])}
                assert wanted <= files[volume["configMap"]["name"]]


@EVERY
def test_secrets_are_given_by_reference(name: str) -> None:
    made = release(name)
    assert made.of("Secret") == []
    for pod in all_pods(name):
        for container in pod.containers:
            for variable in container.get("env", []):
                if variable["name"] in FILES_OF_SECRETS:
                    assert is_of_a_secret(variable["value"], pod.spec, container)
                elif SECRET_NAME.search(variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"]
    settings = {key for item in made.of("ConfigMap") for text in item.get("data", {}).values() for key in keys(text)}
    assert {key for key in settings if SECRET_NAME.search(key)} <= FILES_OF_SECRETS


def test_every_container_with_the_metadata_uri_gets_the_login_for_zookeeper() -> None:
    """This includes all containers of each pod, the init containers too, and Helm's tests."""
    seen = 0
    for pod in all_pods("service-locked-zookeeper"):
        for container in [*pod.spec.get("initContainers", []), *pod.spec["containers"]]:
            given = {variable["name"]: variable.get("value", "") for variable in container.get("env", [])}
            if "BKHEAL_METADATA_URI" not in given:
                continue
            seen += 1
            files = {name: value for name, value in given.items() if name in FILES_OF_SECRETS}
            assert len([name for name in files if name.startswith("BKHEAL_ZK_")]) == 4
            assert all(is_of_a_secret(path, pod.spec, container) for path in files.values())
            assert (given["BKHEAL_ZK_ACL"], given["BKHEAL_ZK_USERNAME"]) == ("creator", "bookkeeper")
            assert given["BKHEAL_STATE_ROOT"] == "/pulsar/bkheal"
            assert given["BKHEAL_METADATA_URI"] == "zk+hierarchical://pulsar-zookeeper:2281/ledgers"
    assert seen >= 3


def is_of_a_secret(path: str, spec: dict[str, Any], container: dict[str, Any]) -> bool:
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    return path in {
        f"{mount['mountPath']}/{item['path']}"
        for mount in container["volumeMounts"]
        for item in volumes.get(mount["name"], {}).get("secret", {}).get("items", [])
    }


def keys(text: str) -> set[str]:
    """Return the keys of a TOML file or of a Spark configuration file."""
    return {re.split("[ =]", line.strip())[0] for line in text.splitlines() if re.match(r"\s*[\w.]+( =)? ", line)}


@EVERY
def test_only_the_driver_on_kubernetes_has_a_token(name: str) -> None:
    made = release(name)
    is_k8s = bool(made.of("Role"))
    for pod in all_pods(name):
        main = pod.spec["containers"][0]["name"]
        is_rbac_test = pod.metadata.get("name", "").endswith("-test-rbac")
        expected = is_k8s and (main in ("auditor", "audit") or is_rbac_test)
        assert pod.spec["automountServiceAccountToken"] is expected
    for account in made.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@EVERY
def test_names_are_short_enough(name: str) -> None:
    """This includes the longest name that helm accepts for a release, and each CronJob."""
    values = load_values(name)
    for own in ("fullnameOverride", "extraDeploy"):  # users choose these names
        values.pop(own, None)
    kinds = {kind: {"enabled": True} for kind in yaml.safe_load((CHART / "values.yaml").read_text())["cron"]["kinds"]}
    values["cron"] = {**values.get("cron", {}), "kinds": kinds}
    longest = render(values, name="bookkeeper-recovery-for-production-in-eu-central-1-a1")
    for item in (*release(name).objects, *longest.objects):
        limit = 52 if item["kind"] == "CronJob" else 63
        assert len(item["metadata"]["name"]) <= limit
        assert all(len(str(value)) <= 63 for value in item["metadata"].get("labels", {}).values())
    names = [(item["kind"], item["metadata"]["name"]) for item in longest.objects]
    assert len(names) == len(set(names))
    assert not any("--" in cut for _, cut in names)


@EVERY
def test_selectors_find_their_pods_and_no_others(name: str) -> None:
    made = release(name)
    labelled = [(pod.metadata.get("labels", {}), pod) for pod in pods(made)]
    for item, selector, component in selectors(made):
        found = [pod for labels, pod in labelled if selects(selector, labels)]
        components = {pod.metadata["labels"]["app.kubernetes.io/component"] for pod in found}
        assert components <= {component}, item["metadata"]["name"]
        assert found or component == "executor", item["metadata"]["name"]


def selectors(made: Release) -> Iterator[tuple[Object, dict[str, str], str]]:
    """Yield each object that selects pods, with its selector and its component."""
    for item in made.objects:
        spec: Any = item.get("spec", {})
        match item["kind"]:
            case "Service":
                selector = spec["selector"]
            case "NetworkPolicy":
                selector = spec["podSelector"]["matchLabels"]
            case "Deployment" | "StatefulSet" | "PodDisruptionBudget" | "PodMonitor" | "VMPodScrape":
                selector = spec["selector"]["matchLabels"]
            case _:
                continue
        yield item, selector, item["metadata"]["labels"]["app.kubernetes.io/component"]


@EVERY
def test_ports_of_services_exist(name: str) -> None:
    made = release(name)
    for service in made.of("Service"):
        targets = {port["targetPort"] for port in service["spec"]["ports"]}
        [pod] = [pod for pod in pods(made) if selects(service["spec"]["selector"], pod.metadata.get("labels", {}))]
        assert targets <= {port["name"] for port in pod.spec["containers"][0]["ports"]}


@EVERY
def test_all_objects_have_the_common_labels(name: str) -> None:
    made = release(name)
    for item in made.objects:
        if not item["metadata"]["name"].startswith("from-a-"):
            labels = item["metadata"]["labels"]
            assert labels["app.kubernetes.io/instance"] == made.name
            assert labels["app.kubernetes.io/part-of"] == "bkheal"
            assert item["metadata"]["namespace"] == "bk"


@EVERY
def test_a_change_of_settings_restarts_pods(name: str) -> None:
    for pod in pods(release(name)):
        if pod.owner["kind"] != "Pod":
            assert re.fullmatch("[0-9a-f]{64}", pod.metadata["annotations"]["checksum/config"])


@EVERY
def test_changes_of_mounted_files_reach_running_pods(name: str) -> None:
    """Kubernetes never updates files that are mounted by subPath."""
    for pod in all_pods(name):
        for container in pod.containers:
            assert [mount for mount in container.get("volumeMounts", []) if "subPath" in mount] == []


@EVERY
def test_every_command_has_a_metadata_uri(name: str) -> None:
    for pod in pods(release(name)):
        for container in pod.containers:
            if container["image"].rpartition("/")[2].startswith("bkheal"):
                [uri] = [each for each in container["env"] if each["name"] == "BKHEAL_METADATA_URI"]
                assert uri.get("value", "zk").startswith("zk")
                assert "value" in uri or uri["valueFrom"]["configMapKeyRef"]["key"]


@EVERY
def test_secrets_are_readable_by_the_group_of_the_processes(name: str) -> None:
    """The files belong to root, and the group is that of the pod."""
    modes = {
        volume["secret"]["defaultMode"]
        for pod in all_pods(name)
        for volume in pod.spec.get("volumes", [])
        if "secret" in volume
    }
    assert modes <= {0o440}


@EVERY
def test_services_are_not_passed_as_environment_variables(name: str) -> None:
    """Those of a release `bkheal` would be read as options, for example `BKHEAL_AUDITOR_PORT`."""
    for pod in all_pods(name):
        assert pod.spec["enableServiceLinks"] is False, pod.metadata


@EVERY
def test_only_one_ready_pod_is_evicted_at_a_time(name: str) -> None:
    for item in release(name).of("PodDisruptionBudget"):
        assert (item["spec"]["maxUnavailable"], item["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@EVERY
def test_only_components_with_several_pods_have_disruption_budgets(name: str) -> None:
    made = release(name)
    several = {
        item["metadata"]["name"]
        for kind in ("Deployment", "StatefulSet")
        for item in made.of(kind)
        if item["spec"].get("replicas", 2) > 1
    }
    assert {item["metadata"]["name"] for item in made.of("PodDisruptionBudget")} == several
