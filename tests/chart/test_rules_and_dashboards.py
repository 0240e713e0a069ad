"""The objects made of alert rules and dashboards; the rules themselves are tested with promtool."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookie.runtime.telemetry.metric_definitions import WAIT_BUCKETS_S
from tests.chart.rendering import CHART, Release, render
from tests.chart.rule_files import CRON_KINDS, RUNBOOK, thresholds

RULES = """
groups:
  - name: first
    interval: 30s
    rules:
      - alert: Backlog
        expr: sum(bkheal_underreplicated_ledgers{@selector@}) > @backlog_ledgers@
        for: "@backlog_for@"
        annotations: {summary: "{{ $value }} ledgers wait"}
      - record: cluster:backlog:sum
        expr: sum(bkheal_underreplicated_ledgers{@selector@})
  - name: second
    rules:
      - {alert: Gone, expr: up == 0}
"""
THRESHOLDS = {"backlog_ledgers": 10_000_000, "backlog_for": "15m", "runbook_base": RUNBOOK}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart with the rules and dashboards of this test only."""
    copy = Path(shutil.copytree(CHART, tmp_path / "bkheal", ignore=shutil.ignore_patterns("rules", "dashboards")))
    for folder, name, text in (("rules", "one.yaml", RULES), ("dashboards", "overview.json", '{"title": "{{ x }}"}')):
        (copy / "files" / folder).mkdir()
        (copy / "files" / folder / name).write_text(text)
    return copy


def groups(made: Release) -> dict[str, Any]:
    [rule] = made.of("PrometheusRule")
    return {group["name"]: group for group in rule["spec"]["groups"]}


def rendered(chart: Path, **rules: Any) -> Release:
    metrics = {"prometheusRule": {"enabled": True, **rules}, "dashboards": {"enabled": True}}
    return render({"bookkeeper": {"metadataServiceUri": "zk://zk/ledgers"}, "metrics": metrics}, chart=chart)


def test_thresholds_and_selector_are_filled_in(chart: Path) -> None:
    made = groups(rendered(chart, thresholds=THRESHOLDS, selector='cluster="eu1"'))
    alert, record = made["first"]["rules"]
    assert alert["expr"] == 'sum(bkheal_underreplicated_ledgers{cluster="eu1"}) > 10000000'
    assert alert["for"] == "15m"
    assert alert["annotations"] == {"summary": "{{ $value }} ledgers wait"}
    assert record["record"] == "cluster:backlog:sum"
    assert made["first"]["interval"] == "30s"


def test_alerts_can_be_left_out_and_added(chart: Path) -> None:
    extra = {"alert": "Mine", "expr": "vector(1)"}
    made = groups(rendered(chart, thresholds=THRESHOLDS, disabled=["Gone", "Backlog"], extraRules=[extra]))
    assert {name: [rule.get("alert") for rule in group["rules"]] for name, group in made.items()} == {
        "first": [None],
        "bkheal-extra": ["Mine"],
    }


def test_notes_warn_of_thresholds_and_disabled_alerts_that_no_rule_has() -> None:
    given = {"runbook_base": RUNBOOK, "backlog_age_max_second": 60, "held_back_for": "8h"}
    notes = rendered(CHART, thresholds=given, disabled=["BkhealBacklog", "BkhealBacklogOld"]).notes
    assert "no alert rule uses metrics.prometheusRule.thresholds: backlog_age_max_second." in notes
    assert "disabled names alerts that do not exist: BkhealBacklog." in notes
    notes = rendered(CHART, thresholds={"runbook_base": RUNBOOK}, disabled=["BkhealBacklogOld"]).notes
    assert "metrics.prometheusRule" not in notes


def test_a_threshold_without_a_value_is_refused(chart: Path) -> None:
    from helm_python import HelmError

    with pytest.raises(HelmError, match="no value for @backlog_for@"):
        rendered(chart, thresholds={"backlog_ledgers": 1, "runbook_base": RUNBOOK})


def test_an_objective_that_is_no_bound_of_the_histogram_is_refused(chart: Path) -> None:
    from helm_python import HelmError

    for bound in WAIT_BUCKETS_S:
        assert rendered(chart, thresholds={**THRESHOLDS, "time_to_full_max_seconds": bound}).objects
    with pytest.raises(HelmError, match="time_to_full_max_seconds is not a bound of the histogram"):
        rendered(chart, thresholds={**THRESHOLDS, "time_to_full_max_seconds": 7200})


def test_a_dashboard_is_copied_unchanged(chart: Path) -> None:
    [board] = [item for item in rendered(chart, thresholds=THRESHOLDS).of("ConfigMap") if "dashboard" in str(item)]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert board["data"] == {"overview.json": '{"title": "{{ x }}"}'}
    assert yaml.safe_load(board["data"]["overview.json"])


def test_boards_link_to_the_reports_of_their_release() -> None:
    values = {"bookkeeper": {"metadataServiceUri": "zk://zk/ledgers"}, "metrics": {"dashboards": {"enabled": True}}}
    made = render({**values, "auditor": {"publicUrl": "https://bkheal.example.org"}})
    boards = [
        json.loads(text) for item in made.of("ConfigMap") if "dash" in str(item) for text in item["data"].values()
    ]
    assert len(boards) >= 4
    for board in boards:
        [auditor] = [each for each in board["templating"]["list"] if each["name"] == "auditor"]
        assert auditor["query"] == auditor["current"]["value"] == "https://bkheal.example.org"


def test_labels_for_the_selector_of_the_operator_are_set(chart: Path) -> None:
    made = rendered(chart, thresholds=THRESHOLDS, additionalLabels={"release": "prometheus"})
    assert made.of("PrometheusRule")[0]["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("base", ["", "docs/operations.md", "runbooks.example/x"])
def test_a_runbook_address_that_is_not_a_url_is_refused(chart: Path, base: str) -> None:
    from helm_python import HelmError

    with pytest.raises(HelmError, match="runbook_base: the URL at which you publish"):
        rendered(chart, thresholds={**THRESHOLDS, "runbook_base": base})


def test_alerts_on_missing_metrics_select_only_this_release() -> None:
    runbook = {"thresholds": {"runbook_base": RUNBOOK}}
    assert 'component=~"auditor|exporter",namespace="bk",' in never_scraped(rendered(CHART, **runbook))
    made = render(
        {
            "bookkeeper": {"metadataServiceUri": "zk://zk/ledgers", "clusterName": "eu1"},
            "metrics": {"prometheusRule": {"enabled": True, **runbook}},
        }
    )
    assert 'component=~"auditor|exporter",cluster="eu1",' in never_scraped(made)


def test_a_release_without_cluster_metrics_has_no_alert_on_missing_ones() -> None:
    rule = {"enabled": True, "thresholds": {"runbook_base": RUNBOOK}}
    values = {"bookkeeper": {"metadataServiceUri": "zk://zk/ledgers"}, "metrics": {"prometheusRule": rule}}
    assert never_scraped(render({**values, "mode": "none"})) == ""
    assert never_scraped(render({**values, "mode": "cron", "exporter": {"when": "never"}})) == ""
    assert never_scraped(render({**values, "mode": "cron"})) != ""
    assert never_scraped(render({**values, "mode": "none", "exporter": {"when": "always"}})) != ""


@pytest.mark.parametrize(
    ("bookies", "changed", "expected"),
    [
        ({"enabled": True}, {}, 1 << 30),
        ({"enabled": True, "readOnlyBelowBytes": 5 << 30}, {}, 5 << 30),
        ({"enabled": True, "readOnlyBelowBytes": 5 << 30}, {"disk_reserve_bytes": 7 << 30}, 7 << 30),
        ({"enabled": False, "readOnlyBelowBytes": 5 << 30}, {}, 1 << 30),
    ],
)
def test_the_threshold_for_a_full_disk_is_where_its_bookie_becomes_read_only(
    bookies: dict[str, object], changed: dict[str, object], expected: int
) -> None:
    rule = {"enabled": True, "thresholds": {"runbook_base": RUNBOOK, **changed}}
    uri = {"metadataServiceUri": "zk://zk/ledgers"}
    made = render({"bookkeeper": uri, "bookies": bookies, "metrics": {"prometheusRule": rule}})
    assert f"< {expected}\n" in expression(made, "BkhealBookieDiskFullSoon")


def test_the_chart_uses_the_default_reserve_of_a_disk() -> None:
    default = thresholds()["disk_reserve_bytes"]
    assert f"disk_reserve_bytes) {default})" in (CHART / "templates" / "prometheusrule.yaml").read_text()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"mode": "cron"}, CRON_KINDS),
        (
            {"mode": "cron", "cron": {"kinds": {"placement": {"enabled": False}, "replicas": {"enabled": True}}}},
            "bookies|replicas",
        ),
        ({"mode": "cron", "cron": {"dryRun": True}}, "none"),
        ({}, ".+"),
    ],
)
def test_successes_are_expected_only_for_kinds_with_a_cron_job(values: dict[str, Any], expected: str) -> None:
    rule = {"enabled": True, "thresholds": {"runbook_base": RUNBOOK}}
    made = render(
        {"bookkeeper": {"metadataServiceUri": "zk://zk/ledgers"}, "metrics": {"prometheusRule": rule}, **values}
    )
    assert expression(made, "BkhealCronAuditStale").count(f'kind=~"{expected}",kind') == 2
    assert f'success_timestamp_seconds{{kind=~"{expected}",}}' in expression(made, "BkhealAuditNeverSucceeded")


def never_scraped(made: Release) -> str:
    """Return the expression of the never-scraped alert, or an empty text without the alert."""
    return expression(made, "BkhealAuditorNeverScraped")


def expression(made: Release, alert: str) -> str:
    """Return the expression of an alert, or an empty text without the alert."""
    rules = [rule for group in groups(made).values() for rule in group["rules"]]
    return next((str(rule["expr"]) for rule in rules if rule.get("alert") == alert), "")
