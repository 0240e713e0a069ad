"""The effects of single values."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.chart.rendering import (
    CHART,
    ROOT,
    Object,
    Release,
    canonical,
    executor_template,
    load_values,
    pod_of,
    pods,
    release,
    render,
)

URI = {"metadataServiceUri": "zk://zookeeper:2181/ledgers"}
DNS = [53, 53, 5353, 5353]
"""Ports of pods of DNS, for UDP and TCP; OpenShift's listen on 5353."""
COMPONENT = "app.kubernetes.io/component"
CLIENT_KEYS = {"caKey": "ca.crt", "certKey": "tls.crt", "keyKey": "tls.key"}


def settings(made: Release, table: str) -> dict[str, Any]:
    """Return a table of the configuration file of a process."""
    [config] = [item for item in made.of("ConfigMap") if item["metadata"]["name"].endswith("-config")]
    found: Any = tomllib.loads(config["data"][f"{table.split('.')[0]}.toml"])
    for name in table.split("."):
        found = found[name]
    return dict(found)


def spark_defaults(made: Release) -> dict[str, str]:
    [config] = [item for item in made.of("ConfigMap") if item["metadata"]["name"].endswith("-spark")]
    lines = config["data"]["spark-defaults.conf"].split("\n")
    return dict(line.split(" ", 1) for line in lines if line)


def main_container(made: Release, component: str) -> dict[str, Any]:
    [pod] = [
        pod
        for pod in pods(made)
        if pod.metadata.get("labels", {}).get("app.kubernetes.io/component") == component and pod.owner["kind"] != "Pod"
    ]
    container: dict[str, Any] = pod.spec["containers"][0]
    return container


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def kinds(made: Release) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["name"]) for item in made.objects if item["kind"] != "Pod"}


def test_a_minimal_release_has_these_objects() -> None:
    assert kinds(release("service-minimal")) == {
        ("ConfigMap", "demo-bkheal-config"),
        ("ConfigMap", "demo-bkheal-spark"),
        ("ServiceAccount", "demo-bkheal"),
        ("Deployment", "demo-bkheal-auditor"),
        ("Service", "demo-bkheal-auditor"),
        ("Service", "demo-bkheal-leader"),
        ("PodDisruptionBudget", "demo-bkheal-auditor"),
        *(
            ("CronJob", f"demo-bkheal-once-{name}")
            for name in ("bookies", "everything", "placement", "references", "replicas", "dry-run")
        ),
        ("Deployment", "demo-bkheal-replicator"),
        ("Service", "demo-bkheal-replicator"),
        ("PodDisruptionBudget", "demo-bkheal-replicator"),
    }


def test_a_minimal_release_audits_daily_without_tokens_or_triggers_in_the_ui() -> None:
    made = settings(release("service-minimal"), "auditor")
    assert made["bookies_schedule"] == "24h"
    assert made["ui_trigger_enabled"] is False
    assert made["spark_master"] == "local[2]"
    assert made["http_host"] == "0.0.0.0"
    assert "tokens_file" not in made


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "http://demo-bkheal-leader.bk.svc.cluster.local:8080"),
        ({"auditor": {"tls": {"existingSecret": "tls"}}}, "https://demo-bkheal-leader.bk.svc.cluster.local:8080"),
        ({"auditor": {"publicUrl": "https://bkheal.example.org/"}}, "https://bkheal.example.org"),
        ({"ingress": {"enabled": True, "hosts": [{"host": "h", "paths": [{"path": "/"}]}]}}, "http://h"),
        (
            {
                "ingress": {
                    "enabled": True,
                    "hosts": [
                        {"host": "ui", "paths": [{"path": "/", "port": "ui"}]},
                        {"host": "h", "paths": [{"path": "/", "pathType": "Prefix"}]},
                    ],
                    "tls": [{"hosts": ["h"], "secretName": "h"}],
                }
            },
            "https://h",
        ),
    ],
)
def test_links_to_reports_use_an_address_that_browsers_can_reach(values: dict[str, Any], expected: str) -> None:
    rules = {"enabled": True, "thresholds": {"runbook_base": "https://runbooks.example"}}
    made = render({"bookkeeper": URI, "metrics": {"prometheusRule": rules}, **values})
    assert settings(made, "auditor")["public_url"] == expected
    links = {link.removeprefix(expected) for link in report_links(made)}
    assert "/reports/latest/?kind=placement" in links
    assert all(link.startswith("/reports/") for link in links)


def test_one_service_reaches_the_leader_whatever_auditor_it_selects() -> None:
    made = release("service-minimal")
    every, leader = (made.one("Service", f"demo-bkheal-{name}")["spec"] for name in ("auditor", "leader"))
    assert every["selector"] == leader["selector"]
    own, leading = ({port["port"]: port["targetPort"] for port in spec["ports"]} for spec in (every, leader))
    assert own == {8080: "http", 8081: "grpc", 4040: "ui"}
    assert leading == {8080: "leader-http", 8081: "leader-grpc", 4040: "leader-ui"}
    container = main_container(made, "auditor")
    listening = {port["name"]: port["containerPort"] for port in container["ports"]}
    auditor = settings(made, "auditor")
    for name in ("http", "grpc", "ui"):
        assert listening[f"leader-{name}"] == auditor[f"leader_{name}_port"] != auditor[f"{name}_port"]
    names = [each["name"] for each in container["env"]]
    assert environment(container)["BKHEAL_AUDITOR_ADVERTISED_HOST"] == "$(POD_IP)"
    assert names.index("POD_IP") < names.index("BKHEAL_AUDITOR_ADVERTISED_HOST")


def test_monitors_scrape_each_auditor_once() -> None:
    """They select both Services of auditors, by their labels; only one of them has a port with this name."""
    made = render({"bookkeeper": URI, "metrics": {"serviceMonitor": {"enabled": True}}})
    [monitor] = [item for item in made.of("ServiceMonitor") if item["metadata"]["name"].endswith("auditor")]
    [endpoint] = monitor["spec"]["endpoints"]
    named = [
        item["metadata"]["name"]
        for item in made.of("Service")
        if endpoint["port"] in {port["name"] for port in item["spec"]["ports"]}
        and monitor["spec"]["selector"]["matchLabels"].items() <= item["metadata"]["labels"].items()
    ]
    assert named == ["demo-bkheal-auditor"]


def test_anonymous_buttons_of_the_leader_are_not_served_to_other_machines() -> None:
    made = render({"bookkeeper": URI, "config": {"auditor": {"ui_allow_anonymous": True, "ui_host": "127.0.0.1"}}})
    assert "leader_ui_port" not in settings(made, "auditor")
    leader = made.one("Service", "demo-bkheal-leader")["spec"]
    assert [port["port"] for port in leader["ports"]] == [8080, 8081]


def test_a_proxy_that_authenticates_is_the_only_way_to_the_ui() -> None:
    made = release("service-ui-oauth")
    auditor = settings(made, "auditor")
    assert auditor["ui_host"] == "127.0.0.1"
    assert (auditor["ui_trusted_proxies"], auditor["ui_user_header"]) == ("127.0.0.1,::1", "X-Forwarded-User")
    [proxy] = pod_of(made, "auditor").spec["containers"][1:]
    assert auditor["ui_proxy_port"] == proxy["ports"][0]["containerPort"] == 4180
    assert 4040 not in {port["containerPort"] for port in main_container(made, "auditor")["ports"]}
    every, leader = (made.one("Service", f"demo-bkheal-{name}")["spec"]["ports"] for name in ("auditor", "leader"))
    assert [port["port"] for port in every] == [8080, 8081]
    assert {"name": "leader-ui", "port": 4040, "targetPort": "leader-ui"} in leader
    policy = made.one("NetworkPolicy", "demo-bkheal-auditor")["spec"]["ingress"]
    assert all(4040 not in [port["port"] for port in rule["ports"]] for rule in policy)
    assert "does not authenticate" not in made.notes


def test_an_ingress_routes_to_the_leader() -> None:
    [ingress] = release("service-ui").of("Ingress")
    paths = [path["backend"]["service"] for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]
    assert {path["name"] for path in paths} == {"demo-bkheal-leader"}
    served = {port["name"] for port in release("service-ui").one("Service", "demo-bkheal-leader")["spec"]["ports"]}
    assert {path["port"]["name"] for path in paths} == {"leader-http", "leader-ui"} <= served


def test_network_policies_allow_auditors_to_reach_the_leader() -> None:
    policy = release("service-secured").one("NetworkPolicy", "demo-bkheal-auditor")["spec"]
    own = release("service-secured").one("Deployment", "demo-bkheal-auditor")["spec"]["selector"]
    for rules, side in ((policy["ingress"], "from"), (policy["egress"], "to")):
        [rule] = [rule for rule in rules if rule.get(side) == [{"podSelector": own}]]
        assert [port["port"] for port in rule["ports"]] == [8080, 8081, 4040]
    [clients] = [rule for rule in policy["ingress"] if 8090 in [port["port"] for port in rule["ports"]]]
    assert {8090, 8091, 4050} <= {port["port"] for port in clients["ports"]}


def test_without_auditors_no_alert_links_to_their_reports() -> None:
    rules = {"enabled": True, "thresholds": {"runbook_base": "https://runbooks.example"}}
    made = render({"bookkeeper": URI, "metrics": {"prometheusRule": rules}, "mode": "cron"})
    assert report_links(made) == []


def report_links(made: Release) -> list[str]:
    """Return the links of the alerts to reports."""
    [item] = made.of("PrometheusRule")
    rules = [rule for group in item["spec"]["groups"] for rule in group["rules"]]
    return [rule["annotations"]["report_url"] for rule in rules if "report_url" in rule.get("annotations", {})]


def test_tokens_and_certificates_are_mounted_from_secrets() -> None:
    made = release("service-secured")
    auditor = settings(made, "auditor")
    [pod] = [pod for pod in pods(made) if pod.owner["metadata"]["name"] == "demo-bkheal-auditor"]
    mounted = {
        f"{mount['mountPath']}/{item['path']}"
        for mount in pod.spec["containers"][0]["volumeMounts"]
        for volume in pod.spec["volumes"]
        if volume["name"] == mount["name"] and "secret" in volume
        for item in volume["secret"]["items"]
    }
    assert mounted == {auditor["tokens_file"], auditor["tls_cert"], auditor["tls_key"]}
    assert main_container(made, "auditor")["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    [monitor] = [item for item in made.of("ServiceMonitor") if item["metadata"]["name"].endswith("auditor")]
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["authorization"] == {"credentials": {"name": "bkheal-tokens", "key": "metrics"}}


def test_with_client_certificates_probes_only_open_a_connection() -> None:
    made = release("service-client-certificates")
    assert settings(made, "auditor")["tls_client_ca"] == "/etc/bkheal-tls/client-ca.crt"
    assert main_container(made, "auditor")["livenessProbe"]["tcpSocket"] == {"port": "http"}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "bkheal:0.1.0"),
        ({"registry": "r.example.org", "tag": "2"}, "r.example.org/bkheal:2"),
        ({"tag": "2", "digest": "sha256:" + "a" * 64}, "bkheal@sha256:" + "a" * 64),
    ],
)
def test_every_container_uses_the_configured_image(image: dict[str, str], expected: str) -> None:
    made = render({"bookkeeper": URI, "image": image})
    assert {container["image"] for pod in pods(made) for container in pod.containers} == {expected}


def test_a_parent_chart_sets_registry_and_credentials_of_all_charts() -> None:
    parent = {"imageRegistry": "mirror.example.org", "imagePullSecrets": ["mirror", {"name": "other"}], "any": 1}
    image = {"registry": "r.example.org", "pullSecrets": ["own", "mirror"]}
    made = render({"bookkeeper": URI, "image": image, "global": parent, **k8s_client()})
    for pod in pods(made):
        assert {container["image"] for container in pod.containers} == {"mirror.example.org/bkheal:0.1.0"}
        assert pod.spec["imagePullSecrets"] == [{"name": name} for name in ("mirror", "other", "own")]
    spark = spark_defaults(made)
    assert spark["spark.kubernetes.container.image"] == "mirror.example.org/bkheal:0.1.0"
    assert spark["spark.kubernetes.container.image.pullSecrets"] == "mirror,other,own"


def test_the_chart_names_the_image_it_is_for() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    [image] = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    [rendered] = {container["image"] for pod in pods(release("service-minimal")) for container in pod.containers}
    assert image["image"] == rendered == f"bkheal:{chart['appVersion']}"
    assert chart["maintainers"]
    assert chart["icon"].startswith("data:image/svg+xml;base64,")


def test_an_http_route_routes_to_the_leader() -> None:
    route = {
        "enabled": True,
        "parentRefs": [{"name": "internal"}],
        "hostnames": ["bkheal.example.org"],
        "paths": [{"path": "/"}, {"path": "/spark", "port": "ui"}],
    }
    made = render({"bookkeeper": URI, "httpRoute": route})
    [found] = made.of("HTTPRoute")
    ports = {port["port"]: port["targetPort"] for port in made.one("Service", "demo-bkheal-leader")["spec"]["ports"]}
    led = {
        rule["matches"][0]["path"]["value"]: (rule["backendRefs"][0]["name"], ports[rule["backendRefs"][0]["port"]])
        for rule in found["spec"]["rules"]
    }
    assert led == {"/": ("demo-bkheal-leader", "leader-http"), "/spark": ("demo-bkheal-leader", "leader-ui")}
    assert settings(made, "auditor")["public_url"] == "https://bkheal.example.org"


def test_executors_are_allocated_dynamically() -> None:
    spark = spark_defaults(release("cron-k8s-client"))
    assert "spark.executor.instances" not in spark
    dynamic = {
        key.removeprefix("spark.dynamicAllocation."): value for key, value in spark.items() if "Allocation" in key
    }
    assert dynamic == {
        "enabled": "true",
        "shuffleTracking.enabled": "true",
        "initialExecutors": "2",
        "minExecutors": "0",
        "maxExecutors": "16",
        "executorIdleTimeout": "300s",
    }
    assert not any("dynamicAllocation" in key for key in spark_defaults(release("service-k8s-client")))


def test_executors_have_a_limit_on_local_disk() -> None:
    template = executor_template(release("service-k8s-client"))
    assert template is not None
    resources = template["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"ephemeral-storage": "8Gi"}}
    none = {"executor": {"ephemeralStorageRequest": "", "ephemeralStorageLimit": ""}}
    values = k8s_client()
    template = executor_template(render({"bookkeeper": URI, **values, "spark": {**values["spark"], **none}}))
    assert template is not None
    assert "resources" not in template["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("pulsar", "expected"),
    [
        ({"release": "prod"}, "zk+hierarchical://prod-pulsar-zookeeper:2181/ledgers"),
        ({"release": "pulsar"}, "zk+hierarchical://pulsar-zookeeper:2181/ledgers"),
        ({"release": "my-pulsar", "metadataPrefix": "/x"}, "zk+hierarchical://my-pulsar-zookeeper:2181/x/ledgers"),
    ],
)
def test_the_metadata_uri_is_derived_from_the_pulsar_chart(pulsar: dict[str, str], expected: str) -> None:
    made = render({"bookkeeper": {"pulsar": pulsar}})
    assert environment(main_container(made, "auditor"))["BKHEAL_METADATA_URI"] == expected


def test_the_metadata_uri_may_come_from_a_config_map() -> None:
    [pod] = [pod for pod in pods(release("cron-report-only")) if pod.owner["metadata"]["name"].endswith("-bookies")]
    uri = environment(pod.spec["containers"][0])["BKHEAL_METADATA_URI"]
    assert uri == {"configMapKeyRef": {"name": "cluster-settings", "key": "uri"}}


def cron_jobs(made: Release) -> dict[str, Object]:
    return {item["metadata"]["labels"]["bkheal.io/audit-kind"]: item["spec"] for item in made.of("CronJob")}


def test_one_off_runs_are_jobs_of_suspended_cron_jobs() -> None:
    made = release("service-k8s-client")
    found = {item["metadata"]["name"].rpartition("-once-")[2]: item["spec"] for item in made.of("CronJob")}
    assert found.keys() == {"bookies", "everything", "placement", "references", "replicas", "dry-run"}
    auditor = made.one("Deployment", "demo-bkheal-auditor")["spec"]["template"]["spec"]
    for name, spec in found.items():
        assert spec["suspend"] is True
        pod = spec["jobTemplate"]["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert container["args"][-3:] == (
            ["--kind", "bookies", "--dry-run"] if name == "dry-run" else ["run", "--kind", name]
        )
        assert pod["serviceAccountName"] == auditor["serviceAccountName"]
        assert reports_claim(pod) == reports_claim(auditor) == "shared-reports"
    assert settings(made, "audit.run")["master"] == settings(made, "auditor")["spark_master"]
    off = render({"bookkeeper": URI, "oneOff": {"enabled": False}})
    assert off.of("CronJob") == []
    assert "audit.toml" not in off.one("ConfigMap", "demo-bkheal-config")["data"]


def reports_claim(pod: dict[str, Any]) -> str:
    [volume] = [volume for volume in pod["volumes"] if volume["name"] == "reports"]
    return str(volume["persistentVolumeClaim"]["claimName"])


def test_auditors_and_jobs_share_one_volume_for_reports() -> None:
    """Each auditor serves all reports, also those of an earlier leader and of one-off runs."""
    made = release("service-secured")
    [claim] = made.of("PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    users = [pod.spec for pod in pods(made) if pod.spec["containers"][0]["name"] in ("auditor", "audit")]
    assert len(users) == 7
    assert {reports_claim(spec) for spec in users} == {claim["metadata"]["name"]}
    directory = settings(made, "auditor")["report_dir"]
    assert settings(made, "audit.run")["report_dir"] == directory
    for spec in users:
        assert {"name": "reports", "mountPath": directory} in spec["containers"][0]["volumeMounts"]


def test_an_existing_claim_is_used_for_reports() -> None:
    persistence = {"enabled": True, "existingClaim": "shared"}
    made = render({**load_values("cron-local"), "reports": {"persistence": persistence}})
    assert made.of("PersistentVolumeClaim") == []
    assert {reports_claim(pod.spec) for pod in pods(made) if pod.owner["kind"] == "CronJob"} == {"shared"}


def test_comparisons_with_pulsar_keep_their_reports_on_one_volume() -> None:
    document = (ROOT / "docs" / "pulsar.md").read_text()
    [values] = re.findall(r"```yaml\n# bkheal-values.yaml\n(mode: cron\n.*?)```", document, re.DOTALL)
    made = render(yaml.safe_load(values), name="bkheal")
    for item in made.of("CronJob"):
        pod = item["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "reports"]
        assert volume == {"name": "reports", "persistentVolumeClaim": {"claimName": "bkheal-reports"}}
    assert f"--from=cronjob/{made.one('CronJob', 'bkheal-audit-bookies')['metadata']['name']} " in document
    assert made.one("PersistentVolumeClaim", "bkheal-reports")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_audit_of_the_chart_uses_one_core() -> None:
    test = release("service-minimal").one("Pod", "demo-bkheal-test-audit")
    words = test["spec"]["containers"][0]["command"]
    assert words[words.index("--master") + 1] == "local[1]"


def test_each_enabled_kind_has_a_cron_job() -> None:
    made = cron_jobs(release("cron-local"))
    assert made.keys() == {"bookies", "placement"}
    for kind, spec in made.items():
        assert spec["concurrencyPolicy"] == "Forbid"
        assert spec["timeZone"] == "Etc/UTC"
        assert spec["startingDeadlineSeconds"] == 600
        job = spec["jobTemplate"]["spec"]
        assert (job["backoffLimit"], job["ttlSecondsAfterFinished"]) == (1, 86400)
        assert job["activeDeadlineSeconds"] == {"bookies": 3300, "placement": 21600}[kind], "a run that hangs must end"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert job["template"]["spec"]["containers"][0]["args"][-3:] == ["--kind", kind, "--scheduled"]
    assert cron_jobs(release("cron-report-only")).keys() == {"bookies", "placement", "replicas"}


def test_failures_that_would_happen_again_are_not_retried() -> None:
    job = cron_jobs(release("cron-local"))["bookies"]["jobTemplate"]["spec"]
    drained, again = job["podFailurePolicy"]["rules"]
    assert drained == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert again["onExitCodes"] == {"containerName": "audit", "operator": "In", "values": [2, 7, 78]}
    assert again["action"] == "FailJob"
    strict = cron_jobs(release("cron-report-only"))["bookies"]["jobTemplate"]["spec"]
    assert strict["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [1, 2, 7, 78]


def test_a_lock_held_by_another_run_counts_as_success() -> None:
    [audit] = cron_jobs(release("cron-local"))["bookies"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert audit["command"] == ["tini", "-e", "75", "--", "bkheal"]
    [audit] = cron_jobs(release("cron-report-only"))["bookies"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert "command" not in audit


def test_executors_are_as_restricted_as_all_others() -> None:
    made = release("service-k8s-client")
    template = executor_template(made)
    assert template is not None
    assert template["spec"]["automountServiceAccountToken"] is False
    assert template["spec"]["nodeSelector"] == {"pool": "batch"}
    spark = spark_defaults(made)
    assert spark["spark.kubernetes.container.image"] == "bkheal:0.1.0"
    assert spark["spark.kubernetes.namespace"] == "bk"
    assert spark["spark.executor.instances"] == "8"
    assert spark["spark.eventLog.dir"] == "file:///var/lib/bkheal/reports/events"
    assert settings(made, "auditor")["spark_master"] == "k8s://https://kubernetes.default.svc"
    arguments = environment(main_container(made, "auditor"))["PYSPARK_SUBMIT_ARGS"]
    assert "spark.driver.host=$(POD_IP)" in arguments
    assert "spark.kubernetes.driver.pod.name=$(POD_NAME)" in arguments, (
        "executors must end with the pod of their driver"
    )
    assert arguments.endswith(" pyspark-shell")


def test_the_image_address_and_its_credentials_are_given_to_auditors_jobs_and_executors() -> None:
    credentials = [{"secretRef": {"name": "image-store"}}]
    endpoint = [{"name": "AWS_ENDPOINT_URL", "value": "https://minio:9000"}]
    values = k8s_client()
    values["spark"]["executor"] = {"extraEnv": endpoint, "extraEnvFrom": credentials}
    values["reports"]["image"] = "s3://bkheal/image"
    audited = {"auditor": {"extraEnvFrom": credentials}, "cron": {"extraEnvFrom": credentials}}
    for mode, table in (("service", "auditor"), ("cron", "audit.run")):
        made = render({"bookkeeper": URI, "mode": mode, **audited, **values})
        assert settings(made, table)["image_dir"] == "s3://bkheal/image"
        template = executor_template(made)
        assert template is not None
        [executor] = template["spec"]["containers"]
        assert (executor["env"], executor["envFrom"]) == (endpoint, credentials)
        drivers = (
            [main_container(made, "auditor")]
            if mode == "service"
            else [job["jobTemplate"]["spec"]["template"]["spec"]["containers"][0] for job in cron_jobs(made).values()]
        )
        assert drivers
        assert all(driver["envFrom"] == credentials for driver in drivers)
    plain = executor_template(release("service-k8s-client"))
    assert plain is not None
    assert plain["spec"]["containers"][0].keys().isdisjoint({"env", "envFrom"})
    assert "image_dir" not in settings(release("service-k8s-client"), "auditor")


def test_local_mode_needs_no_permissions() -> None:
    made = release("cron-local")
    assert made.of("Role") == made.of("RoleBinding") == []
    assert executor_template(made) is None


def test_the_role_is_bound_to_the_driver() -> None:
    made = release("cron-k8s-client")
    [role], [binding] = made.of("Role"), made.of("RoleBinding")
    assert [rule["resources"] for rule in role["rules"]] == [
        ["pods", "configmaps", "services", "persistentvolumeclaims"]
    ]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "spark-driver", "namespace": "bk"}]
    assert cron_jobs(made)["bookies"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"] == "spark-driver"
    assert render({"bookkeeper": URI, **k8s_client(), "rbac": {"create": False}}).of("Role") == []


def k8s_client() -> dict[str, Any]:
    return {"spark": {"mode": "k8s-client"}, "reports": {"persistence": {"enabled": True}}}


def test_replicators_share_the_limit_of_the_cluster() -> None:
    assert settings(release("replicators-keda"), "replicator")["bytes_per_second"] == 104857600 // 8
    assert settings(release("replicators-hpa"), "replicator")["bytes_per_second"] == 104857600 // 4
    made = render(
        {"bookkeeper": URI, "replicator": {"throttle": {"bytesPerSecond": 1000, "clusterBytesPerSecond": 9000}}}
    )
    assert settings(made, "replicator")["bytes_per_second"] == 1000
    assert settings(release("service-minimal"), "replicator")["bytes_per_second"] == 0


def test_replicators_scale_on_the_backlog() -> None:
    keda = release("replicators-keda")
    [scaled] = keda.of("ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == (
        'sum(max by (severity) (bkheal_repairable_ledgers{severity!="misplaced",cluster="eu1"}))'
        ' * max(bkheal_recovery_enabled{cluster="eu1"})'
    )
    assert scaled["spec"]["cooldownPeriod"] >= 300
    assert "replicas" not in keda.one("Deployment", "demo-bkheal-replicator")["spec"]
    [hpa] = release("replicators-hpa").of("HorizontalPodAutoscaler")
    [metric] = hpa["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "bkheal_repairable_ledgers"
    assert metric["external"]["target"]["type"] == "AverageValue", (
        "the backlog must be divided by the number of replicas"
    )


def test_without_a_cluster_name_replicators_scale_on_the_backlog_of_their_namespace() -> None:
    scaling = {"autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090"}}
    [scaled] = render({"bookkeeper": URI, "replicator": scaling}).of("ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert query.count('namespace="bk"') == query.count("bkheal_") == 2


def test_replicators_scale_on_moves_only_on_request() -> None:
    def query(**more: Any) -> str:
        scaling = {"autoscaling": {"enabled": True, "prometheusAddress": "http://prometheus:9090", **more}}
        [scaled] = render({"bookkeeper": URI, "replicator": scaling}).of("ScaledObject")
        return str(scaled["spec"]["triggers"][0]["metadata"]["query"])

    assert 'severity!="misplaced"' in query()
    assert query(countMisplaced=True) == query().replace('severity!="misplaced",', "")


def test_bookies_keep_their_names_and_disks() -> None:
    made = release("own-cluster")
    [bookies] = made.of("StatefulSet")
    [container] = bookies["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in container["env"]]
    host = environment(container)["BKHEAL_BOOKIE_ADVERTISED_HOST"]
    assert host == "$(POD_NAME).bkheal-bookie.bk.svc.cluster.local"
    assert names.index("POD_NAME") < names.index("BKHEAL_BOOKIE_ADVERTISED_HOST")  # expanded only if defined before
    assert bookies["spec"]["serviceName"] == "bkheal-bookie"
    headless = made.one("Service", "bkheal-bookie")["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    claims = {claim["metadata"]["name"] for claim in bookies["spec"]["volumeClaimTemplates"]}
    assert claims == {"journal", "ledgers"}
    retention = bookies["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    config = settings(made, "bookie")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert config["journal_dir"].startswith(mounts["journal"])
    assert config["ledger_dir"].startswith(mounts["ledgers"])
    assert config["plaintext"] is True


def test_bookies_with_several_volumes_have_a_directory_on_each() -> None:
    persistence = {"journal": {"count": 2, "size": "5Gi"}, "ledgers": {"count": 3, "storageClass": "hdd"}}
    made = render({"bookkeeper": URI, "bookies": {"enabled": True, "persistence": persistence}})
    [bookies] = made.of("StatefulSet")
    [container] = bookies["spec"]["template"]["spec"]["containers"]
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in bookies["spec"]["volumeClaimTemplates"]}
    assert list(claims) == ["journal", "journal-2", "ledgers", "ledgers-2", "ledgers-3"]
    assert [claim["resources"]["requests"]["storage"] for claim in claims.values()] == ["5Gi"] * 2 + ["200Gi"] * 3
    assert [claim.get("storageClassName") for claim in claims.values()] == [None] * 2 + ["hdd"] * 3
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    config = settings(made, "bookie")
    directories = [*config["journal_dir"].split(","), *config["ledger_dir"].split(",")]
    assert [mounts[directory.removesuffix("/data")] for directory in directories] == list(claims)


def test_bookies_can_use_certificates() -> None:
    config = settings(release("bookies-tls"), "bookie")
    assert "plaintext" not in config
    assert config["tls_ca"] == "/etc/bkheal-tls/ca.crt"
    assert "client-tls" not in {
        mount["name"] for mount in main_container(release("everything"), "bookie")["volumeMounts"]
    }


def test_bookies_with_an_apache_port_serve_apaches_clients() -> None:
    made = release("bookies-apache")
    assert settings(made, "bookie")["apache_port"] == 3182
    container = main_container(made, "bookie")
    assert {"name": "apache", "containerPort": 3182} in container["ports"]
    service = made.one("Service", "demo-bkheal-bookie")["spec"]
    assert {"name": "apache", "port": 3182, "targetPort": "apache"} in service["ports"]
    metrics, clients = made.one("NetworkPolicy", "demo-bkheal-bookie")["spec"]["ingress"]
    assert [port["port"] for port in metrics["ports"]] == [8000]
    assert [port["port"] for port in clients["ports"]] == [3181, 3182]
    assert clients["from"][0] == {"podSelector": {"matchLabels": {"app": "pulsar"}}}


def test_bookies_without_an_apache_port_serve_only_their_own_protocol() -> None:
    made = release("own-cluster")
    assert "apache_port" not in settings(made, "bookie")
    assert [port["name"] for port in main_container(made, "bookie")["ports"]] == ["bookie", "http"]
    assert [port["name"] for port in made.one("Service", "bkheal-bookie")["spec"]["ports"]] == ["bookie", "http"]
    _, clients = made.one("NetworkPolicy", "bkheal-bookie")["spec"]["ingress"]
    assert [port["port"] for port in clients["ports"]] == [3181]


def client_certificates(spec: dict[str, Any]) -> dict[str, str]:
    """Return the path in the first container of each key of the Secret for calls to bookies."""
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "client-tls"]
    [mount] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "client-tls"]
    assert mount["readOnly"] is True
    return {item["key"]: f"{mount['mountPath']}/{item['path']}" for item in volume["secret"]["items"]}


@pytest.mark.parametrize(
    ("name", "component", "table", "prefix"),
    [
        ("everything", "auditor", "auditor", "bookie_tls"),
        ("everything", "replicator", "replicator", "tls"),
        ("cron-tls", "replicator", "replicator", "tls"),
        ("cron-tls", "audit", "audit.run", "tls"),
    ],
)
def test_clients_of_bookies_get_a_certificate(name: str, component: str, table: str, prefix: str) -> None:
    made = release(name)
    given = load_values(name)["bookkeeper"]["clientTls"]
    config = settings(made, table)
    paths = [config[f"{prefix}_{part}"] for part in ("ca", "cert", "key")]
    keys = [given.get(key, default) for key, default in CLIENT_KEYS.items()]
    of_component = [pod for pod in pods(made) if pod.metadata.get("labels", {}).get(COMPONENT) == component]
    assert of_component
    for pod in of_component:
        assert client_certificates(pod.spec) == dict(zip(keys, paths, strict=True))


def password_file(spec: dict[str, Any]) -> tuple[str, str, str]:
    """Return the Secret and key of the password for calls to bookies, and its path in the first container."""
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "client-sasl"]
    [mount] = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "client-sasl"]
    [item] = volume["secret"]["items"]
    assert mount["readOnly"] is True
    return volume["secret"]["secretName"], item["key"], f"{mount['mountPath']}/{item['path']}"


@pytest.mark.parametrize(
    ("name", "component", "table", "prefix"),
    [
        ("service-apache-login", "auditor", "auditor", "bookie_sasl"),
        ("service-apache-login", "replicator", "replicator", "sasl"),
        ("cron-apache-login", "replicator", "replicator", "sasl"),
        ("cron-apache-login", "audit", "audit.run", "sasl"),
    ],
)
def test_clients_of_bookies_get_a_login(name: str, component: str, table: str, prefix: str) -> None:
    made = release(name)
    given = load_values(name)["bookkeeper"]["clientSasl"]
    config = settings(made, table)
    assert config[f"{prefix}_username"] == given["username"] == "bkheal"
    assert config[f"{prefix}_mechanism"] == given.get("mechanism", "DIGEST-MD5")
    of_component = [pod for pod in pods(made) if pod.metadata.get("labels", {}).get(COMPONENT) == component]
    assert of_component
    for pod in of_component:
        expected = ("bookkeeper-login", given.get("passwordKey", "password"), config[f"{prefix}_password_file"])
        assert password_file(pod.spec) == expected


def test_executors_have_the_login_of_their_driver() -> None:
    made = release("service-apache-login")
    template = executor_template(made)
    assert template is not None
    path = settings(made, "auditor")["bookie_sasl_password_file"]
    assert password_file(template["spec"]) == ("bookkeeper-login", "bkheal.password", path)


def test_without_a_user_name_no_process_logs_in() -> None:
    made = release("cron-tls")
    assert [key for table in ("audit.run", "replicator") for key in settings(made, table) if "sasl" in key] == []
    assert {volume["name"] for pod in pods(made) for volume in pod.spec["volumes"]} & {"client-sasl"} == set()


def inventory_token_file(spec: dict[str, Any]) -> str | None:
    """Return the path in the first container of the token for inventories, or ``None`` without a token."""
    mounts = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "inventory-token"]
    if not mounts:
        return None
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "inventory-token"]
    [item] = volume["secret"]["items"]
    assert (volume["secret"]["secretName"], item["key"], mounts[0]["readOnly"]) == ("inventory-token", "token", True)
    return f"{mounts[0]['mountPath']}/{item['path']}"


@pytest.mark.parametrize("mode", ["service", "cron"])
def test_only_audits_and_their_executors_have_the_token_for_inventories(mode: str) -> None:
    bookkeeper = {
        "metadataServiceUri": "zk://zookeeper:2181/ledgers",
        "clientTls": {"existingSecret": "tls"},
        "inventoryToken": {"existingSecret": "inventory-token"},
    }
    shared = {"reports": {"persistence": {"enabled": True}}, "spark": {"mode": "k8s-client"}}
    made = render({"mode": mode, "bookkeeper": bookkeeper, **shared})
    path = settings(made, "audit.run")["inventory_token_file"]
    if mode == "service":
        assert settings(made, "auditor")["inventory_token_file"] == path
    template = executor_template(made)
    assert template is not None
    assert inventory_token_file(template["spec"]) == path
    found = {
        (pod.metadata.get("labels", {}).get(COMPONENT), inventory_token_file(pod.spec))
        for pod in pods(made)
        if pod.spec.get("volumes")
    }
    audits = {"audit", "auditor"} if mode == "service" else {"audit"}
    assert {component for component, file in found if file == path} == audits
    assert {component for component, file in found if file is None} >= {"replicator", "test"}


@pytest.mark.parametrize("component", ["auditor", "replicator"])
def test_commands_in_a_pod_connect_to_bookies_like_its_process(component: str) -> None:
    made = release("service-apache-login")
    reported = environment(main_container(made, component))
    by_variable = {
        name.removeprefix("BKHEAL_").lower(): value
        for name, value in reported.items()
        if name.startswith(("BKHEAL_TLS_", "BKHEAL_SASL_"))
    }
    of_process = {
        key: value for key, value in settings(made, "replicator").items() if key.startswith(("tls_", "sasl_"))
    }
    assert by_variable == of_process
    assert len(of_process) == 6


def test_bookies_need_no_credentials_to_connect_to_bookies() -> None:
    container = main_container(release("everything"), "bookie")
    assert [name for name in environment(container) if name.startswith(("BKHEAL_TLS_", "BKHEAL_SASL_"))] == []


def test_executors_have_the_certificates_of_their_driver() -> None:
    made = release("everything")
    template = executor_template(made)
    assert template is not None
    assert client_certificates(template["spec"])["ca.crt"] == settings(made, "auditor")["bookie_tls_ca"]


def test_without_a_secret_connections_to_bookies_are_not_encrypted() -> None:
    made = release("service-minimal")
    assert [key for table in ("auditor", "replicator") for key in settings(made, table) if "tls" in key] == []


@pytest.mark.parametrize(
    ("is_enabled", "named", "expected"),
    [(True, [3181], [3181, 4181]), (True, [4181], [4181]), (False, [3181], [3181])],
)
def test_network_policies_allow_the_port_of_the_releases_bookies(
    is_enabled: bool, named: list[int], expected: list[int]
) -> None:
    bookies = {"enabled": is_enabled, "ports": {"bookie": 4181}}
    policy = {"enabled": True, "egress": {"bookiePorts": named}}
    made = render({**load_values("service-k8s-client"), "bookies": bookies, "networkPolicy": policy})
    egress = {
        item["metadata"]["labels"][COMPONENT]: [[port["port"] for port in rule.get("ports", ())] for rule in rules]
        for item in made.of("NetworkPolicy")
        for rules in [item["spec"]["egress"]]
    }
    assert {"auditor", "replicator", "executor"} <= egress.keys()
    assert {name for name, ports in egress.items() if expected not in ports} == set()


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"pulsar": {"release": "pulsar"}, "zookeeper": {"tls": {"existingSecret": "s"}}}, [2181, 2281]),
        ({"metadataServiceUri": "zk+hierarchical://zk-0:2182;zk-1:2183/ledgers"}, [2181, 2182, 2183]),
        ({"metadataServiceUri": "metadata-store:zk:zk-0:2181,[fe80::1:42]:2182"}, [2181, 2182]),
        ({"metadataServiceUri": "zk://zk-0/ledgers"}, [2181]),
        ({"existingConfigMap": {"name": "cluster"}}, [2181]),
    ],
)
def test_network_policies_allow_the_ports_of_zookeeper(cluster: dict[str, Any], expected: list[int]) -> None:
    made = render({"bookkeeper": cluster, "networkPolicy": {"enabled": True}, "exporter": {"when": "always"}})
    for policy in made.of("NetworkPolicy"):
        assert [port["port"] for port in policy["spec"]["egress"][1]["ports"]] == expected


@pytest.mark.parametrize("component", ["auditor", "exporter"])
def test_annotations_name_the_scheme_of_a_port_with_tls(component: str) -> None:
    def schemes(**values: Any) -> dict[str, str | None]:
        metrics = {"metrics": {"annotations": True}, "exporter": {"when": "always"}}
        made = render({"bookkeeper": URI, "bookies": {"enabled": True}, **metrics, **values})
        return {
            pod.spec["containers"][0]["name"]: pod.metadata["annotations"].get("prometheus.io/scheme")
            for pod in pods(made)
            if pod.is_long_running
        }

    plain = schemes()
    assert set(plain.values()) == {None}
    secured = {"when": "always", "tls": {"existingSecret": "server"}}
    assert schemes(**{component: secured if component == "exporter" else {"tls": secured["tls"]}}) == {
        **plain,
        component: "https",
    }


def test_results_of_cron_jobs_are_pushed() -> None:
    made = release("cron-tls")
    config = settings(made, "audit.run")
    assert (config["pushgateway"], config["cluster_name"]) == ("http://pushgateway:9091", "eu1")
    egress = made.one("NetworkPolicy", "demo-bkheal-audit")["spec"]["egress"]
    peer = {"podSelector": {"matchLabels": {"app": "pushgateway"}}}
    assert {"ports": [{"port": 9091, "protocol": "TCP"}], "to": [peer]} in egress
    others = made.one("NetworkPolicy", "demo-bkheal-replicator")["spec"]["egress"]
    assert 9091 not in {port["port"] for rule in others for port in rule["ports"]}
    assert not {"pushgateway", "cluster_name"} & settings(release("cron-local"), "audit.run").keys()


def test_runs_of_cron_jobs_are_scraped_while_they_run() -> None:
    made = release("cron-scraped")
    config = settings(made, "audit.run")
    assert (config["http_host"], config["http_port"]) == ("0.0.0.0", 8002)
    for spec in cron_jobs(made).values():
        template = spec["jobTemplate"]["spec"]["template"]
        assert {"name": "http", "containerPort": 8002} in template["spec"]["containers"][0]["ports"]
        assert template["metadata"]["annotations"]["prometheus.io/port"] == "8002"
    pod_monitor = made.one("PodMonitor", "demo-bkheal-audit")
    scrape = made.one("VMPodScrape", "demo-bkheal-audit")
    assert pod_monitor["spec"]["selector"] == scrape["spec"]["selector"]
    assert pod_monitor["spec"]["selector"]["matchLabels"][COMPONENT] == "audit"
    assert pod_monitor["metadata"]["labels"]["release"] == "prometheus"
    assert [endpoint["port"] for endpoint in pod_monitor["spec"]["podMetricsEndpoints"]] == ["http"]
    assert {item["metadata"]["name"] for item in made.of("Service")} == {"demo-bkheal-exporter"}


def test_network_policies_of_cron_jobs_allow_scrapers() -> None:
    scraped, spark = release("cron-scraped").one("NetworkPolicy", "demo-bkheal-audit")["spec"]["ingress"]
    assert scraped["ports"] == [{"port": 8002, "protocol": "TCP"}]
    assert scraped["from"][0] == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert "ports" not in spark


def test_runs_of_cron_jobs_without_a_port_are_not_scraped() -> None:
    metrics = {"annotations": True, "podMonitor": {"enabled": True}, "vmPodScrape": {"enabled": True}}
    made = render({**load_values("cron-local"), "metrics": metrics})
    assert "http_port" not in settings(made, "audit.run")
    assert {item["metadata"]["labels"][COMPONENT] for item in made.of("PodMonitor")} == {"exporter", "replicator"}
    for spec in cron_jobs(made).values():
        template = spec["jobTemplate"]["spec"]["template"]
        assert "ports" not in template["spec"]["containers"][0]
        assert "prometheus.io/port" not in template["metadata"]["annotations"]


def test_the_number_of_reports_of_cron_jobs_is_limited() -> None:
    assert settings(release("cron-local"), "audit.run")["reports_kept"] == 50
    assert settings(release("cron-report-only"), "audit.run")["reports_kept"] == 500


def test_strict_placement_is_the_same_for_all() -> None:
    made = release("everything")
    assert settings(made, "auditor")["strict_placement"] is settings(made, "replicator")["strict_placement"] is True
    assert settings(release("cron-local"), "audit.run")["strict_placement"] is False


def test_grace_periods_are_longer_than_processes_need() -> None:
    from bookie.server.settings import BookieSettings
    from replicator.settings import ReplicatorSettings

    graces = {pod.spec["containers"][0]["name"]: pod.spec["terminationGracePeriodSeconds"] for pod in long_running()}
    drain = BookieSettings.__dataclass_fields__["drain_deadline_s"].default
    assert graces["bookie"] > drain
    assert graces["replicator"] > ReplicatorSettings.__dataclass_fields__["grace_s"].default


def long_running() -> list[Any]:
    return [pod for pod in pods(release("own-cluster")) if pod.is_long_running]


def test_own_settings_take_precedence_even_if_they_are_false() -> None:
    made = release("hooks")
    assert settings(made, "auditor")["ui_enabled"] is False
    assert settings(made, "auditor")["requests_per_second"] == 5
    assert settings(made, "replicator")["bytes_per_second"] == 2_000_000_000


def test_a_setting_of_one_process_restarts_no_other() -> None:
    def sums(**values: Any) -> dict[str, str]:
        made = render({**load_values("own-cluster"), **values})
        return {
            pod.owner["metadata"]["name"]: pod.metadata["annotations"]["checksum/config"]
            for pod in pods(made)
            if pod.is_long_running
        }

    before, after = sums(), sums(config={"replicator": {"ledgers_in_flight": 3}})
    assert {name for name in before if before[name] != after[name]} == {"bkheal-replicator"}


def test_a_change_of_the_topology_restarts_no_bookie() -> None:
    def templates(rack: str | None) -> dict[str, str]:
        topology = {} if rack is None else {"bk1:3181": rack}
        made = render({**load_values("own-cluster"), "placement": {"topology": topology}})
        return {
            pod.spec["containers"][0]["name"]: canonical({"metadata": pod.metadata, "spec": pod.spec})
            for pod in pods(made)
            if pod.is_long_running
        }

    none, one, other = templates(None), templates("/eu/rack1"), templates("/eu/rack2")
    assert none["bookie"] == one["bookie"] == other["bookie"]
    assert all(one[name] != other[name] and "topology.json" in one[name] for name in one if name != "bookie")


def test_extra_objects_may_be_templates() -> None:
    made = release("hooks")
    assert made.one("ConfigMap", "from-a-map")["data"] == {"release": "demo"}
    assert made.one("ConfigMap", "from-a-text-demo")


def test_spread_constraints_get_their_selector() -> None:
    [bookies] = release("bookies-tls").of("StatefulSet")
    [constraint] = bookies["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraint["labelSelector"]["matchLabels"] == bookies["spec"]["selector"]["matchLabels"]


def test_replicators_can_reach_only_what_they_need() -> None:
    policy = release("service-secured").one("NetworkPolicy", "demo-bkheal-replicator")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [DNS, [2181], [3181]]
    [rule] = policy["ingress"]
    scraper, chart_test = rule["from"]
    assert scraper == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert chart_test["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"


def test_bookies_accept_clients_and_scrapers_on_different_ports() -> None:
    clients, scrapers = ({"namespaceSelector": {"matchLabels": {"of": who}}} for who in ("clients", "scrapers"))
    policy = {"enabled": True, "clientIngress": [clients], "metricsIngress": [scrapers]}
    bookies = {"enabled": True, "apachePort": 3182}
    made = render({"bookkeeper": URI, "bookies": bookies, "networkPolicy": policy})
    rules = made.one("NetworkPolicy", "demo-bkheal-bookie")["spec"]["ingress"]
    reached = {rule["from"][0]["namespaceSelector"]["matchLabels"]["of"]: rule["ports"] for rule in rules}
    assert {who: [port["port"] for port in ports] for who, ports in reached.items()} == {
        "clients": [3181, 3182],
        "scrapers": [8000],
    }


@pytest.mark.parametrize(
    ("preset", "kind"),
    [
        ("hard", "requiredDuringSchedulingIgnoredDuringExecution"),
        ("soft", "preferredDuringSchedulingIgnoredDuringExecution"),
    ],
)
def test_pods_of_a_component_avoid_each_others_nodes(preset: str, kind: str) -> None:
    made = render({"bookkeeper": URI, "bookies": {"enabled": True, "podAntiAffinityPreset": preset}})
    [bookies] = made.of("StatefulSet")
    affinity = bookies["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert affinity.keys() == {kind}
    [term] = affinity[kind]
    assert term.get("podAffinityTerm", term) == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": bookies["spec"]["selector"],
    }


def test_an_audit_accepts_no_connections() -> None:
    policy = render({**load_values("cron-local"), "networkPolicy": {"enabled": True}})
    assert policy.one("NetworkPolicy", "demo-bkheal-audit")["spec"]["ingress"] == []


def test_processes_that_place_copies_get_the_topology_as_a_file() -> None:
    made = release("own-cluster")
    for table in ("auditor", "replicator"):
        assert settings(made, table)["topology_file"] == "/etc/bkheal/topology.json"
    [config] = [item for item in made.of("ConfigMap") if item["metadata"]["name"].endswith("-config")]
    assert yaml.safe_load(config["data"]["topology.json"]) == {
        "bkheal-bookie-0.bkheal-bookie.bk.svc.cluster.local": "/r1"
    }


def test_an_exporter_gets_the_topology_too() -> None:
    made = render({"bookkeeper": URI, "mode": "cron", "placement": {"topology": {"bk1": "/r1"}}})
    assert settings(made, "exporter")["topology_file"] == "/etc/bkheal/topology.json"
    [config] = [volume for volume in pod_of(made, "exporter").spec["volumes"] if volume["name"] == "config"]
    assert {"key": "topology.json", "path": "topology.json"} in config["configMap"]["items"]


def test_chart_tests_are_hooks_that_clean_up() -> None:
    made = release("everything")
    tests = made.of("Pod")
    names = {item["metadata"]["name"].rpartition("-test-")[2] for item in tests}
    assert names == {"cluster", "audit", "auditor", "leader", "exporter", "replicator", "bookie", "rbac"}
    for item in tests:
        annotations = item["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    assert len(release("cron-k8s-client").of("Pod")) == 4


@pytest.mark.parametrize(
    ("is_open", "token", "paths"),
    [
        (True, {}, {"auditor": ["/livez", "/readyz", "/metrics", "/status"], "leader": ["/livez", "/status"]}),
        (False, {}, {"auditor": ["/livez", "/readyz"], "leader": ["/livez"]}),
        (
            False,
            {"name": "s", "key": "k"},
            {"auditor": ["/livez", "/readyz", "/metrics", "/status"], "leader": ["/livez", "/status"]},
        ),
    ],
)
def test_chart_tests_request_only_what_an_auditor_shows_them(
    is_open: bool, token: dict[str, str], paths: dict[str, list[str]]
) -> None:
    auditor = {"auth": {"anonymousRead": is_open}}
    made = render({"bookkeeper": URI, "auditor": auditor, "metrics": {"bearerTokenSecret": token}})
    commands = {
        item["metadata"]["name"].rpartition("-test-")[2]: item["spec"]["containers"][0] for item in made.of("Pod")
    }
    for name, expected in paths.items():
        assert commands[name]["command"][4:] == expected
        assert ("TOKEN" in environment(commands[name])) is bool(token)


@pytest.mark.parametrize(
    ("name", "warning", "is_there"),
    [
        ("service-minimal", "can be read without a token", True),
        ("service-secured", "can be read without a token", False),
        ("service-minimal", "No API tokens", True),
        ("service-secured", "No API tokens", False),
        ("everything", "refuse every user", True),
        ("service-ui", "refuse every user", False),
        ("service-minimal", "Spark UI does not authenticate", True),
        ("service-single", "Spark UI does not authenticate", False),
        ("service-ui", "Spark UI does not authenticate", False),
        ("service-pulsar", "auto-recovery of its own", False),
        ("service-pulsar", "nothing in this namespace repairs", False),
        ("service-minimal", "bookie-grpc", False),
        ("service-apache-login", "in the clear", False),
        ("service-minimal", "reports are deleted with their pod", True),
        ("service-k8s-client", "reports are deleted with their pod", False),
        ("own-cluster", "without encryption", True),
        ("everything", "without encryption", False),
        ("service-minimal", "auditor-token NAME", True),
        ("service-minimal", "port-forward service/demo-bkheal-leader 4040", True),
    ],
)
def test_notes_contain_the_expected_warnings(name: str, warning: str, is_there: bool) -> None:
    assert (warning in release(name).notes) is is_there


def test_notes_do_not_warn_of_lost_reports_if_a_store_keeps_them() -> None:
    made = render({"bookkeeper": URI, "reports": {"store": "s3://bucket/reports"}})
    assert "reports are deleted" not in made.notes


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ({"auditor": {"auth": {"anonymousRead": None}}}, True),
        ({"auditor": {"auth": {"anonymousRead": False}}}, False),
        ({"auditor": {"auth": {"anonymousRead": False}}, "config": {"auditor": {"allow_anonymous_read": True}}}, True),
        ({"config": {"auditor": {"allow_anonymous_read": False}}}, False),
    ],
)
def test_notes_warn_of_an_api_that_needs_no_token(values: dict[str, Any], is_there: bool) -> None:
    assert ("can be read without a token" in render({"bookkeeper": URI, **values}).notes) is is_there


@pytest.mark.parametrize("mode", ["service", "cron", "none"])
@pytest.mark.parametrize("has_replicators", [True, False])
def test_notes_show_the_status_in_a_pod_of_the_release(mode: str, has_replicators: bool) -> None:
    made = render({"bookkeeper": URI, "mode": mode, "replicator": {"enabled": has_replicators}})
    named = re.findall(r"exec deploy/(\S+) -- bkheal status", made.notes)
    assert len(named) == (has_replicators or mode != "none")
    assert {*named} <= {item["metadata"]["name"] for item in made.of("Deployment")}


def test_notes_do_not_warn_of_buttons_that_only_a_port_forward_reaches() -> None:
    options = {"ui_host": "127.0.0.1", "ui_allow_anonymous": True}
    made = render({"bookkeeper": URI, "auditor": {"ui": {"triggerEnabled": True}}, "config": {"auditor": options}})
    assert "pod/LEADER 4040" in made.notes
    assert "refuse every user" not in made.notes
    assert "does not authenticate" not in made.notes


@pytest.mark.parametrize(
    ("values", "is_there"),
    [
        ({"auditor": {"replicas": 1}}, False),
        ({"auditor": {"replicas": 2}}, True),
        ({"auditor": {"replicas": 1}, "spark": {"mode": "k8s-client"}}, True),
        ({"mode": "cron", "spark": {"mode": "k8s-client"}}, True),
    ],
)
def test_notes_warn_of_a_volume_that_not_all_pods_can_mount(values: dict[str, Any], is_there: bool) -> None:
    reports = {"persistence": {"enabled": True, "accessModes": ["ReadWriteOnce"]}}
    assert ("is not ReadWriteMany" in render({"bookkeeper": URI, "reports": reports, **values}).notes) is is_there


def test_notes_start_a_first_audit_from_a_cron_job_of_the_release() -> None:
    kinds = {"bookies": {"enabled": False}, "everything": {"enabled": True}}
    made = render({"bookkeeper": URI, "mode": "cron", "cron": {"kinds": kinds}})
    [named] = re.findall(r"--from=cronjob/(\S+)", made.notes)
    assert (
        made.one("CronJob", named)["spec"]["jobTemplate"]["metadata"]["labels"]["bkheal.io/audit-kind"] == "everything"
    )
    none = render({"bookkeeper": URI, "mode": "cron", "cron": {"kinds": {"bookies": {"enabled": False}}}})
    assert "cronjob/demo-bkheal-audit-placement " in none.notes


@pytest.mark.parametrize(("when", "is_there"), [("never", True), ("cron", False), ("always", False)])
def test_notes_warn_of_alerts_without_data(when: str, is_there: bool) -> None:
    metrics = {"prometheusRule": {"enabled": True, "thresholds": {"runbook_base": "https://wiki.example.org"}}}
    made = render({**load_values("cron-local"), "metrics": metrics, "exporter": {"when": when}})
    assert ("alerts see neither the cluster" in made.notes) is is_there


@pytest.mark.parametrize(
    ("mode", "when", "is_there"),
    [
        ("cron", "cron", True),
        ("cron", "never", False),
        ("service", "cron", False),
        ("service", "always", True),
        ("none", "cron", False),
        ("none", "always", True),
    ],
)
def test_an_exporter_runs_if_no_auditor_of_the_release_leads(mode: str, when: str, is_there: bool) -> None:
    values = {"bookkeeper": URI, "mode": mode, "exporter": {"when": when}, "networkPolicy": {"enabled": True}}
    metrics = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    made = render({**values, "metrics": metrics})
    name = ("demo-bkheal-exporter",) if is_there else ()
    for kind in ("Deployment", "Service", "ServiceMonitor", "PodMonitor", "NetworkPolicy"):
        found = {item["metadata"]["name"] for item in made.of(kind)}
        assert tuple(found & {"demo-bkheal-exporter"}) == name, kind


@pytest.mark.parametrize(("mode", "table"), [("cron", "audit"), ("service", "auditor")])
def test_an_exporter_has_the_rules_of_the_audits_for_what_is_held_back(mode: str, table: str) -> None:
    rules = {"missing_share_max": 0.9, "critical_delay_s": 900, "rack_outage_delay_s": 0, "flapping_delay_s": 60}
    values = {"bookkeeper": URI, "mode": mode, "exporter": {"when": "always"}}
    made = render({**values, "config": {table: {**rules, "history_days": 3}}})
    assert {name: settings(made, "exporter").get(name) for name in [*rules, "history_days"]} == {
        **rules,
        "history_days": None,
    }
    made = render({**values, "config": {table: rules, "exporter": {"flapping_delay_s": 7}}})
    assert settings(made, "exporter")["flapping_delay_s"] == 7


@pytest.mark.parametrize("name", ["everything", "cron-scraped", "service-k8s-client"])
def test_labels_of_the_operator_replace_those_of_the_chart(name: str) -> None:
    part_of, team, chart, grafana = "app.kubernetes.io/part-of", "team", "helm.sh/chart", "grafana_dashboard"
    values = load_values(name)
    values["commonLabels"] = {part_of: "messaging", team: "storage", chart: "ours", grafana: "no"}
    for component in ("auditor", "replicator", "cron"):
        values[component] = {**values.get(component, {}), "podLabels": {team: component}}
    made = render(values)
    found = [item["metadata"]["labels"] for item in made.objects]
    assert {(labels[part_of], labels[team], labels[chart]) for labels in found} == {("messaging", "storage", "ours")}
    dashboards = {labels[grafana] for labels in found} - {"no"}
    assert dashboards == ({"1"} if values.get("metrics", {}).get("dashboards", {}).get("enabled") else set())
    of_pods = [pod.metadata["labels"] for pod in pods(made) if pod.owner["kind"] != "Pod"]
    assert {labels[part_of] for labels in of_pods} == {"messaging"}
    assert {labels[team] for labels in of_pods} & {"auditor", "replicator", "cron"}


def test_an_exporter_has_the_brake_setting_of_the_audits_and_contacts_no_bookie() -> None:
    made = render(
        {**load_values("cron-tls"), "cron": {"missingShareMax": 0.2}, "config": {"exporter": {"session_timeout_s": 20}}}
    )
    config = settings(made, "exporter")
    assert config == {
        "backlog_interval_s": 15,
        "missing_share_max": 0.2,
        "http_host": "0.0.0.0",
        "http_port": 8002,
        "session_timeout_s": 20,
    }
    container = main_container(made, "exporter")
    assert {mount["name"] for mount in container["volumeMounts"]} == {"config", "tmp"}
    assert [name for name in environment(container) if name.startswith("BKHEAL_TLS_")] == []
    policy = made.one("NetworkPolicy", "demo-bkheal-exporter")["spec"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [DNS, [2181]]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [[8002]]


@pytest.mark.parametrize(
    ("name", "tables"),
    [("everything", ["auditor", "exporter", "replicator", "bookie"]), ("cron-scraped", ["audit.run", "exporter"])],
)
@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_all_processes_listen_on_the_same_address(name: str, tables: list[str], address: str) -> None:
    """With ``::``, pods need no IPv4 address."""
    made = render({**load_values(name), "listenAddress": address})
    for table in tables:
        found = settings(made, table)
        assert {found[key] for key in ("host", "http_host", "grpc_host", "ui_host") if key in found} == {address}, table


def test_the_driver_has_its_ipv6_address_in_brackets() -> None:
    """Spark refuses the address without them."""
    made = render({**load_values("service-k8s-client"), "listenAddress": "::"})
    assert spark_defaults(made)["spark.driver.bindAddress"] == "[::]"
    arguments = environment(main_container(made, "auditor"))["PYSPARK_SUBMIT_ARGS"]
    assert "spark.driver.host=[$(POD_IP)] " in arguments


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "VMPodScrape"])
@pytest.mark.parametrize("component", ["auditor", "exporter"])
def test_monitors_present_a_certificate_where_it_is_required(kind: str, component: str) -> None:
    made = release("everything")
    found = made.one(kind, f"everything-with-a-name-that-is-long1-{component}")["spec"]
    [endpoint] = found.get("endpoints") or found["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "prometheus-client", "key": "ca.crt"}},
        "cert": {"secret": {"name": "prometheus-client", "key": "tls.crt"}},
        "keySecret": {"name": "prometheus-client", "key": "tls.key"},
    }


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "VMPodScrape"])
def test_monitors_keep_the_labels_of_series(kind: str) -> None:
    """Some series have a label `namespace`, which is a namespace of Pulsar."""
    for monitor in release("everything").of(kind):
        [endpoint] = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True


def test_monitors_check_a_certificate_only_with_a_ca() -> None:
    [monitor] = [
        item
        for item in release("service-secured").of("ServiceMonitor")
        if item["metadata"]["name"].endswith("-auditor")
    ]
    assert monitor["spec"]["endpoints"][0]["tlsConfig"] == {"insecureSkipVerify": True}
    named = release("service-client-certificates").one("ServiceMonitor", "demo-bkheal-auditor")["spec"]["endpoints"][0]
    assert named["tlsConfig"]["serverName"] == "bkheal.example.org"


def test_notes_warn_if_no_process_repairs() -> None:
    pulsar = {"pulsar": {"release": "prod", "autorecoveryDisabled": True}}
    assert "nothing in this namespace repairs" in render({"bookkeeper": pulsar, "replicator": {"enabled": False}}).notes


def test_notes_warn_of_a_second_auto_recovery() -> None:
    assert "auto-recovery of its own" in render({"bookkeeper": {"pulsar": {"release": "prod"}}}).notes


def test_only_long_running_pods_wait_for_zookeeper_before_they_create_the_root() -> None:
    made = [pod for pod in pods(release("own-cluster")) if pod.spec.get("initContainers")]
    waiting = {pod.is_long_running for pod in made if "--wait" in pod.spec["initContainers"][0]["args"]}
    ending = {pod.is_long_running for pod in made if "--wait" not in pod.spec["initContainers"][0]["args"]}
    assert (waiting, ending) == ({True}, {False})
