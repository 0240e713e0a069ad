"""Invalid values are refused before anything is installed, and the text names them."""

from __future__ import annotations

from typing import Any

import pytest

from bookie.metadata.access import ZooKeeperAccess, parse_acl
from bookie.metadata.own_state import overlaps
from tests.chart.rendering import render

URI = {"metadataServiceUri": "zk://zookeeper:2181/ledgers"}


def nested(path: str, value: Any) -> dict[str, Any]:
    values: Any = value
    for name in reversed(path.split(".")):
        values = {name: values}
    return {**values, "bookkeeper": {**URI, **values.get("bookkeeper", {})}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", 3),
        ("mode", "both"),
        ("auditor.replicaCount", 2),
        ("auditor.replicas", "two"),
        ("auditor.replicas", 0),
        ("auditor.schedules.bookies", "daily"),
        ("auditor.schedules.bookies", "0s"),
        ("auditor.schedules.scrub", "24h"),
        ("auditor.missingShareMax", 1.5),
        ("auditor.driverMemory", "1Gi"),
        ("auditor.resources.limit", {}),
        ("auditor.resources.limits", {"memory": "2 GB"}),
        ("auditor.probes.readiness.periodSeconds", 0),
        ("auditor.probes.ready", {}),
        ("auditor.ports.http", 70000),
        ("auditor.service.type", "ExternalName"),
        ("auditor.ui.proxyBase", "auditor"),
        ("auditor.ui.authProxy.userHeader", "X Forwarded"),
        ("auditor.publicUrl", "bkheal.example.org"),
        ("auditor.publicUrl", "https://me:secret@bkheal.example.org"),
        ("config.auditor", {"public_url": "https://bkheal.example.org"}),
        ("auditor.podAntiAffinityPreset", "required"),
        ("auditor.extraEnv", [{"value": "1"}]),
        ("auditor.extraEnv", {"NAME": "1"}),
        ("auditor.auth.token", "s3cret"),
        ("auditor.auth.anonymousWrite", True),
        ("auditor.schedules.bookies", "0 3 1 * 0"),
        ("auditor.sessionTimeoutSeconds", 60),
        ("config.auditor", {"api_token": "s3cret"}),
        ("config.auditor", {"nested": {"key": 1}}),
        ("config.auditor", {"no_such_option": 1}),
        ("config.auditor", {"metadata_uri": "zk://zookeeper:2181/ledgers"}),
        ("config.auditor", {"http_port": 9000}),
        ("config.auditor", {"tokens_file": "/extra/tokens"}),
        ("config.auditor", {"requests_per_second": 0}),
        ("config.auditor", {"ui_enabled": "yes"}),
        ("config.audit", {"fail_on": "always"}),
        ("config.audit", {"kind": "bookies"}),
        ("config.audit", {"report_dir": "/extra"}),
        ("config.audit", {"output": "json"}),
        ("config.replicator", {"ledgers_in_flight": 1000}),
        ("config.replicator", {"tls_key": "/extra/key"}),
        ("config.bookie", {"journal_dir": "/extra"}),
        ("config.bookie", {"collect_ratio_max": 2}),
        ("config.bookie", {"apache_port": 3182}),
        ("bookies.apachePort", 70000),
        ("bookies.apachePort", "3182"),
        ("bookkeeper.metadataServiceUri", "zookeeper:2181/ledgers"),
        ("bookkeeper.metadataServiceUri", "zk://zookeeper:2181"),
        ("bookkeeper.metadataServiceUri", "oxia://oxia:6648/bookkeeper"),
        ("bookkeeper.metadataServiceUri", "metadata-store:oxia://oxia:6648/bookkeeper"),
        ("bookkeeper.metadataServiceUri", "zk://user:pass@zookeeper:2181/ledgers"),
        ("image.digest", "sha256:abc"),
        ("image.pullPolicy", "Sometimes"),
        ("image.pullSecrets", [{"name": "registry"}]),
        ("cron.kinds.bookies.schedule", "daily"),
        ("cron.kinds.bookies.schedule", "* * * *"),
        ("cron.kinds.bookies.schedule", "TZ=UTC 0 3 * * *"),
        ("cron.kinds.full", {"enabled": True}),
        ("cron.concurrencyPolicy", "Queue"),
        ("cron.startingDeadlineSeconds", 5),
        ("cron.failJobExitCodes", [0]),
        ("cron.failOn", "always"),
        ("cron.reportsKept", 0),
        ("cron.ports.http", -1),
        ("cron.ports.grpc", 8081),
        ("bookkeeper.clientTls.enabled", True),
        ("bookkeeper.clientTls.caKey", ""),
        ("bookkeeper.clientSasl.password", "s3cret"),
        ("bookkeeper.clientSasl.passwordKey", ""),
        ("bookkeeper.clientSasl.mechanism", "GSSAPI"),
        ("bookkeeper.inventoryToken.token", "s3cret"),
        ("bookkeeper.zookeeper.acl", "owner"),
        ("bookkeeper.zookeeper.acl", "sasl:bkheal"),
        ("bookkeeper.zookeeper.acl", "sasl:bkheal:cdrwa,sasl:ops:read"),
        ("bookkeeper.zookeeper.stateRoot", "bkheal"),
        ("bookkeeper.zookeeper.stateRoot", "/bkheal/"),
        ("bookkeeper.zookeeper.stateRoot", "/a/../bkheal"),
        ("bookkeeper.zookeeper.stateRoot", "/bkheal/."),
        ("bookkeeper.zookeeper.stateRoot", "/zookeeper"),
        ("bookkeeper.zookeeper.stateRoot", "/zookeeper/bkheal"),
        ("config.audit", {"inventory_token_file": "/extra/token"}),
        ("config.auditor", {"bookie_sasl_password_file": "/extra/password"}),
        ("config.audit", {"sasl_username": "bkheal"}),
        ("config.replicator", {"sasl_mechanism": "PLAIN"}),
        ("config.replicator", {"http_tls_cert": "/extra/cert"}),
        ("config.bookie", {"http_tls_key": "/extra/key"}),
        ("metrics.pushgateway.url", "pushgateway:9091"),
        ("metrics.pushgateway.url", "http://user:pass@pushgateway:9091"),
        ("networkPolicy.egress.pushgatewayPorts", []),
        ("spark.mode", "cluster"),
        ("spark.conf", {"driver.memory": "1g"}),
        ("spark.localCores", 0),
        ("spark.executor.memory", "4Gi"),
        ("spark.executor.ephemeralStorageLimit", "much"),
        ("spark.executor.dynamicAllocation.idleTimeoutSeconds", 1),
        ("httpRoute.hostnames", ["https://bkheal.example.org"]),
        ("httpRoute.paths", [{"path": "/", "port": "grpc"}]),
        ("httpRoute.parentRefs", [{"namespace": "gateways"}]),
        ("global.imageRegistry", "https://r.example.org/path"),
        ("replicator.throttle.bytesPerSecond", "50Mi"),
        ("replicator.throttle.bytesPerSecond", -1),
        ("replicator.ledgersInFlight", 1000),
        ("replicator.autoscaling.type", "vpa"),
        ("replicator.autoscaling.cooldownSeconds", 10),
        ("bookies.replicas", 0),
        ("bookies.persistence.journal.size", "big"),
        ("bookies.persistence.journal.count", 0),
        ("bookies.persistence.journal.count", 17),
        ("bookies.persistence.ledgers.count", 1.5),
        ("bookies.persistence.retentionPolicy.whenDeleted", "Recycle"),
        ("reports.persistence.accessModes", []),
        ("serviceAccount.automount", True),
        ("networkPolicy.metricsIngress", [{"podselector": {}}]),
        ("networkPolicy.egress.zookeeperPorts", []),
        ("ingress.hosts", [{"host": "a"}]),
        ("ingress.hosts", [{"host": "a", "paths": [{"path": "/", "port": "metrics"}]}]),
        ("metrics.serviceMonitor.interval", "often"),
        ("metrics.prometheusRule.extraRules", [{"alert": "X"}]),
        ("metrics.prometheusRule.thresholds", {"Bad-Name": 1}),
        ("nameOverride", "Upper"),
        ("fullnameOverride", "a" * 37),
        ("logLevel", "TRACE"),
        ("commonLabels", {"replicas": 3}),
    ],
)
def test_the_schema_refuses_invalid_values(path: str, value: Any) -> None:
    from helm_python import HelmError

    with pytest.raises(HelmError) as refused:
        render(nested(path, value))
    last = [part for part in path.split(".") if part in str(refused.value)]
    assert last or "schema" in str(refused.value).lower()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "exactly one of bookkeeper.metadataServiceUri"),
        ({"bookkeeper": {**URI, "pulsar": {"release": "prod"}}}, "exactly one of"),
        ({"bookkeeper": {"pulsar": {"release": "prod"}}, "bookies": {"enabled": True}}, "cannot join a Pulsar cluster"),
        (
            {"bookkeeper": URI, "bookies": {"enabled": True, "apachePort": 3181}},
            "cannot be bookies.ports.bookie or bookies.ports.http",
        ),
        (
            {"bookkeeper": URI, "commonLabels": {"app.kubernetes.io/component": "storage"}},
            "commonLabels: selectors of the chart use the label app.kubernetes.io/component",
        ),
        (
            {"bookkeeper": URI, "bookies": {"podLabels": {"app.kubernetes.io/name": "bookie"}}},
            "bookies.podLabels: selectors of the chart use the label app.kubernetes.io/name",
        ),
        ({"bookkeeper": {**URI, "clientSasl": {"username": "bkheal"}}}, "clientSasl.existingSecret go together"),
        ({"bookkeeper": {**URI, "zookeeper": {"login": {"username": "u"}}}}, "login.existingSecret go together"),
        ({"bookkeeper": {**URI, "zookeeper": {"acl": "creator"}}}, "needs an identity"),
        ({"bookkeeper": {**URI, "clientSasl": {"existingSecret": "s"}}}, "clientSasl.existingSecret go together"),
        (
            {"bookkeeper": {**URI, "clientSasl": {"username": "u", "existingSecret": "s", "mechanism": "PLAIN"}}},
            "needs bookkeeper.clientTls",
        ),
        ({"bookkeeper": {**URI, "inventoryToken": {"existingSecret": "s"}}}, "needs bookkeeper.clientTls"),
        ({"bookkeeper": URI, "spark": {"mode": "k8s-client"}}, "set reports.persistence.enabled"),
        ({"bookkeeper": URI, "spark": {"eventLog": {"enabled": True}}}, "needs spark.eventLog.dir"),
        (
            {"bookkeeper": URI, "bookies": {"enabled": True, "tls": {"enabled": True, "existingSecret": "s"}}},
            "bookkeeper.clientTls.existingSecret go together",
        ),
        (
            {"bookkeeper": {**URI, "clientTls": {"existingSecret": "s"}}, "bookies": {"enabled": True}},
            "bookkeeper.clientTls.existingSecret go together",
        ),
        (
            {
                "bookkeeper": URI,
                "mode": "cron",
                "cron": {"kinds": {"replicas": {"enabled": True}}},
                "replicator": {"enabled": False},
                "bookies": {"enabled": True, "tls": {"enabled": True, "existingSecret": "s"}},
            },
            "bookkeeper.clientTls.existingSecret go together",
        ),
        (
            {
                "bookkeeper": URI,
                "mode": "cron",
                "cron": {"kinds": {"everything": {"enabled": True}}},
                "replicator": {"enabled": False},
                "bookies": {"enabled": True, "tls": {"enabled": True, "existingSecret": "s"}},
            },
            "bookkeeper.clientTls.existingSecret go together",
        ),
        (
            {
                "bookkeeper": URI,
                "spark": {"mode": "k8s-client"},
                "reports": {"persistence": {"enabled": True}},
                "config": {"auditor": {"ui_host": "127.0.0.1", "ui_allow_anonymous": True}},
            },
            "ui_allow_anonymous is for spark.mode=local",
        ),
        (
            {
                "bookkeeper": URI,
                "bookies": {"enabled": True, "tls": {"enabled": True}},
                "replicator": {"enabled": False},
            },
            "needs bookies.tls.existingSecret",
        ),
        (
            {"bookkeeper": URI, "bookies": {"enabled": True, "tls": {"existingSecret": "s"}}},
            "without bookies.tls.enabled",
        ),
        ({"bookkeeper": URI, "replicator": {"autoscaling": {"enabled": True}}}, "prometheusAddress"),
        ({"bookkeeper": URI, "httpRoute": {"enabled": True}}, "needs httpRoute.parentRefs"),
        ({"bookkeeper": URI, "auditor": {"ui": {"authProxy": {"port": 4180}}}}, "in auditor.sidecars"),
        (
            {
                "bookkeeper": URI,
                "auditor": {"ui": {"authProxy": {"port": 4180}}},
                "config": {"auditor": {"ui_allow_anonymous": True}},
            },
            "would let others in",
        ),
        (
            {"bookkeeper": URI, "spark": {"executor": {"instances": 9, "dynamicAllocation": {"enabled": True}}}},
            "not between dynamicAllocation.minInstances and maxInstances",
        ),
        (
            {
                "bookkeeper": URI,
                "mode": "none",
                "replicator": {"autoscaling": {"enabled": True, "prometheusAddress": "http://p:9090"}},
            },
            "the backlog is shown by another release",
        ),
        (
            {
                "bookkeeper": URI,
                "auditor": {"tls": {"existingSecret": "s", "clientCaKey": "ca.crt"}},
                "metrics": {"podMonitor": {"enabled": True}},
            },
            "monitors need metrics.clientTls.existingSecret",
        ),
        (
            {
                "bookkeeper": URI,
                "mode": "cron",
                "exporter": {"tls": {"existingSecret": "s", "clientCaKey": "ca.crt"}},
                "metrics": {"vmPodScrape": {"enabled": True}},
            },
            "exporter.tls.clientCaKey asks scrapers for a certificate",
        ),
        (
            {
                "bookkeeper": URI,
                "auditor": {"auth": {"anonymousRead": False}},
                "metrics": {"serviceMonitor": {"enabled": True}},
            },
            "monitors need metrics.bearerTokenSecret",
        ),
        (
            {
                "bookkeeper": URI,
                "config": {"auditor": {"allow_anonymous_read": False}},
                "metrics": {"podMonitor": {"enabled": True}},
            },
            "monitors need metrics.bearerTokenSecret",
        ),
        ({"bookkeeper": URI, "metrics": {"bearerTokenSecret": {"name": "s"}}}, "bearerTokenSecret.key go together"),
        (
            {"bookkeeper": URI, "metrics": {"podMonitor": {"enabled": True, "interval": "9s"}}},
            "metrics.podMonitor.scrapeTimeout is longer than the interval",
        ),
        (
            {"bookkeeper": URI, "metrics": {"serviceMonitor": {"enabled": True, "scrapeTimeout": "2m"}}},
            "metrics.serviceMonitor.scrapeTimeout is longer than the interval",
        ),
        ({"bookkeeper": URI, "ingress": {"enabled": True}}, "needs ingress.hosts"),
        (
            {
                "bookkeeper": URI,
                "auditor": {"ui": {"enabled": False}},
                "ingress": {"enabled": True, "hosts": [{"host": "a", "paths": [{"path": "/ui", "port": "ui"}]}]},
            },
            "the path /ui leads to the Spark UI, which no Service reaches",
        ),
        (
            {
                "bookkeeper": URI,
                "config": {"auditor": {"ui_host": "127.0.0.1", "ui_allow_anonymous": True}},
                "httpRoute": {
                    "enabled": True,
                    "parentRefs": [{"name": "g"}],
                    "paths": [{"path": "/ui", "port": "ui"}],
                },
            },
            "the path /ui leads to the Spark UI, which no Service reaches",
        ),
        ({"bookkeeper": URI, "auditor": {"preStopSleepSeconds": 60}}, "would be killed before they hand over"),
        ({"bookkeeper": URI, "auditor": {"ports": {"http": 8090}}}, "ports of one pod"),
        (
            {"bookkeeper": URI, "auditor": {"ui": {"authProxy": {"port": 4040}}, "sidecars": [{"name": "proxy"}]}},
            "ports of one pod",
        ),
        (
            {"bookkeeper": URI, "bookies": {"enabled": True, "ports": {"http": 3181}}},
            "bookies.ports.bookie and bookies.ports.http are the same",
        ),
        ({"bookkeeper": URI, "metrics": {"prometheusRule": {"enabled": True}}}, "thresholds.runbook_base"),
        (
            {
                "bookkeeper": URI,
                "replicator": {"autoscaling": {"enabled": True, "type": "hpa", "minReplicas": 9}},
            },
            "minReplicas is greater",
        ),
    ],
)
def test_templates_refuse_conflicting_values(values: dict[str, Any], text: str) -> None:
    from helm_python import HelmError

    with pytest.raises(HelmError, match=text):
        render(values)


@pytest.mark.parametrize(
    ("bookkeeper", "ledgers_root"),
    [
        ({"metadataServiceUri": "zk://zookeeper:2181/ledgers"}, "/ledgers"),
        ({"metadataServiceUri": "zk+hierarchical://zk-0:2181;zk-1:2181/a/ledgers/"}, "/a/ledgers"),
        ({"metadataServiceUri": "metadata-store:zk:zk-0:2181,zk-1:2181/a"}, "/a/ledgers"),
        ({"metadataServiceUri": "metadata-store:zk:zookeeper:2181"}, "/ledgers"),
        ({"pulsar": {"release": "prod", "metadataPrefix": "/a/"}}, "/a/ledgers"),
    ],
)
def test_a_state_root_that_the_processes_would_refuse_is_refused(bookkeeper: dict[str, Any], ledgers_root: str) -> None:
    """The chart and the processes agree, so no pod ends with exit code 78 because of the state root."""
    from helm_python import HelmError

    for root in (ledgers_root, f"{ledgers_root}/bkheal", "/a", "/bkheal", f"{ledgers_root}-2", "/zookeepers", "/a..b"):
        values = {"bookkeeper": {**bookkeeper, "zookeeper": {"stateRoot": root}}}
        if overlaps(root, ledgers_root):
            with pytest.raises(HelmError, match=f"stateRoot={root} and the ledgers root {ledgers_root} must not"):
                render(values)
        else:
            assert ZooKeeperAccess(state_root=root)
            render(values)


def test_a_state_root_is_accepted_if_the_ledgers_root_is_in_a_config_map() -> None:
    assert render(
        {"bookkeeper": {"existingConfigMap": {"name": "c", "key": "k"}, "zookeeper": {"stateRoot": "/a"}}}
    ).objects


def test_values_without_a_number_or_a_choice_are_not_in_conflict() -> None:
    """Each of them has the default of Kubernetes, of the operator or of the option."""
    auditor = {"terminationGracePeriodSeconds": None, "auth": {"anonymousRead": None}}
    monitor = {"enabled": True, "interval": None, "scrapeTimeout": None}
    assert render({"bookkeeper": URI, "auditor": auditor, "metrics": {"serviceMonitor": monitor}}).objects


def test_an_audit_that_contacts_no_bookie_needs_no_certificate_for_bookies() -> None:
    tls = {"enabled": True, "existingSecret": "s"}
    kinds = {"everything": {"enabled": True}}
    render(
        {
            "bookkeeper": URI,
            "mode": "cron",
            "cron": {"kinds": kinds},
            "replicator": {"enabled": False},
            "bookies": {"enabled": True, "tls": tls},
            "config": {"audit": {"with_inventory": False}},
        }
    )


@pytest.mark.parametrize(
    "uri",
    [
        "zk://zookeeper/ledgers",
        "zk+hierarchical://zk-0.zk:2181;zk-1.zk:2181/a/ledgers",
        "zk+longhierarchical://10.0.0.1:2181,10.0.0.2:2181/ledgers",
        "zk+null://[::1]:2181/ledgers",
        "metadata-store:zk:zk-0.zk:2181,zk-1.zk:2181",
        "metadata-store:zk:zookeeper:2181/prefix",
    ],
)
def test_valid_metadata_uris_are_accepted(uri: str) -> None:
    from bookie.metadata.uri import parse_uri

    parse_uri(uri)
    assert render({"bookkeeper": {"metadataServiceUri": uri}}).objects


@pytest.mark.parametrize(
    "acl",
    [
        "world",
        "creator",
        "sasl:bkheal:cdrwa",
        "sasl:bkheal:cdrwa, world:anyone:r,",
        "x509:CN=bkheal,O=Example:cdrwa; ip:10.0.0.0/8:r;",
        "auth::cdrwa",
    ],
)
def test_valid_acls_are_accepted(acl: str) -> None:
    assert parse_acl(acl)
    assert render(nested("bookkeeper.zookeeper", {"acl": acl, "tls": {"existingSecret": "s"}}))


@pytest.mark.parametrize(
    "schedule", ["off", "90s", "15m", "24h", "7d", "17 2 * * 0", "*/5 0-6 1,15 1 *", "0 3 * * mon-fri"]
)
def test_valid_schedules_are_accepted(schedule: str) -> None:
    from auditor.service.runs.schedule import parse_schedule

    parse_schedule(schedule)
    assert render({"bookkeeper": URI, "auditor": {"schedules": {"bookies": schedule}}}).objects
