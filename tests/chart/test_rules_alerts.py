"""Every alert fires in the cases in which it should, and only in them: promtool runs ``rules/cases.yaml``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from auditor.metrics.catalog import CATALOG
from tests.chart.rendering import NAMESPACE, render
from tests.chart.rule_files import AUDITOR, RUNBOOK, SCOPE, alerts, groups, promtool, recorded_in, rules, write_rules
from tests.required import missing

OF_LEADER = {one.name for one in CATALOG["auditor"] if one.is_leader_only}
IMMEDIATE = {
    "BkhealLedgersLost",
    "BkhealCorruptCopies",
    "BkhealAuditorLeadershipUnstable",
    "BkhealAuditFailing",
    "BkhealBookieIoErrors",
    "BkhealBookieCorruptEntries",
}
"""Alerts that fire immediately; the condition of all others must hold for some time."""
TARGET = {"cluster": "eu", "namespace": "bk"}
APART = {"cluster": "eu", "namespace": "repair"}
"""The target of replicators in a separate namespace."""
JOINED = {
    "BkhealBacklogNotShrinking": TARGET,
    "BkhealRepairTakesTooLong": TARGET,
    "BkhealReplicatorMissing": TARGET,
    "BkhealReplicatorStuck": APART,
    "BkhealReplicatorThrottled": APART,
}
"""Alerts that combine series of replicators with those of other processes, and the target in their labels."""
CRON = "BkhealCronAuditStale"
"""The alert that combines series of a Pushgateway with those of auditors."""


@dataclass(frozen=True)
class Case:
    """One case of ``cases.yaml``."""

    alert: str
    name: str
    series: Mapping[str, str]
    at: str
    every: str
    fires: Mapping[str, str] | None
    value: str | None = None
    is_absent: bool = False

    def as_test(
        self,
        target: Mapping[str, str],
        *,
        is_doubled: bool = False,
        is_scraped_twice: bool = False,
        are_replicators_apart: bool = False,
    ) -> dict[str, Any]:
        """Return the case in promtool's form. The series of the alerts is queried, as it has labels and no texts."""
        series = list(
            self._series(
                target,
                APART if are_replicators_apart else target,
                is_doubled=is_doubled,
                is_scraped_twice=is_scraped_twice,
            )
        )
        target = JOINED[self.alert] if are_replicators_apart else target
        alert = alert_named(self.alert, "cluster" if are_replicators_apart else SCOPE)
        name = f'alertname="{self.alert}"'
        firing: list[dict[str, Any]] = []
        asked = []
        if self.fires is not None:
            labels = {"alertname": self.alert, "alertstate": "firing", "severity": alert["labels"]["severity"]}
            of_target = {} if self.is_absent else target
            firing = [{"value": 1, "labels": selector("ALERTS", {**labels, **self.fires, **of_target})}]
            was_pending = f'count(count_over_time(ALERTS{{{name},alertstate="pending"}}[{self.at}])) > bool 0'
            asked.append((was_pending, [] if self.alert in IMMEDIATE else [{"value": 1, "labels": "{}"}]))
        if self.value is not None:
            labels = {**(self.fires or {}), **target}
            asked.append((f"0 + ({alert['expr']})", [{"value": float(self.value), "labels": selector("", labels)}]))
        asked.append((f'ALERTS{{{name},alertstate="firing"}}', firing))
        return {
            "name": f"{self.alert}: {self.name}",
            "interval": self.every,
            "input_series": series,
            "promql_expr_test": [
                {"expr": query, "eval_time": self.at, "exp_samples": expected} for query, expected in asked
            ],
        }

    def _series(
        self,
        target: Mapping[str, str],
        of_replicators: Mapping[str, str],
        *,
        is_doubled: bool,
        is_scraped_twice: bool,
    ) -> Iterator[dict[str, str]]:
        for series, values in self.series.items():
            is_shown_twice = is_doubled and "instance=" not in series and series.partition("{")[0] in OF_LEADER
            copies: tuple[dict[str, str], ...] = ({"instance": "a"}, {"instance": "b"}) if is_shown_twice else ({},)
            if is_scraped_twice and "job=" not in series:
                copies = ({"job": "service"}, {"job": "pod"})
            shared = of_replicators if series.startswith("bkheal_replicator_") else target
            for more in copies:
                yield {"series": with_labels(series, {**shared, **more}), "values": values}


def alert_named(name: str, scope: str) -> dict[str, Any]:
    found: dict[str, Any]
    [found] = [rule for group in groups(scope=scope) for rule in group["rules"] if rule.get("alert") == name]
    return found


def selector(name: str, labels: Mapping[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={value!r}' for key, value in labels.items())}}}".replace("'", '"')


def with_labels(series: str, labels: Mapping[str, str]) -> str:
    name, _, own = series.partition("{")
    parts = [*(f'{key}="{value}"' for key, value in labels.items()), *([own[:-1]] if own else [])]
    return f"{name}{{{','.join(parts)}}}"


class Texts(yaml.SafeLoader):
    """A loader that converts no scalar, so ``0x10`` stays text."""

    yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}


def cases() -> Iterator[Case]:
    table = yaml.load((Path(__file__).parent / "rules" / "cases.yaml").read_text(), Texts)
    for alert, rows in table.items():
        for number, row in enumerate(rows):
            name = row.get("why", f"case {number + 1}")
            every = row.get("every", "1m")
            fires, value = row.get("fires"), row.get("value")
            yield Case(alert, name, row["series"], row["at"], every, fires, value, "absent" in row)


CASES = tuple(cases())


def tried(
    alert: str,
    folder: Path,
    every: str,
    tests: list[dict[str, Any]],
    scope: str = SCOPE,
    *,
    with_texts: bool = False,
) -> tuple[bool, str]:
    """Run promtool on one alert and the recording rules that it uses, which keep the order of their file.

    Args:
        alert: the name.
        folder: place for the files.
        every: time between two evaluations.
        tests: the tests, in promtool's form; tests that are equal run once.
        scope: as for ``groups``.
        with_texts: whether the alert has its texts. promtool expands them at each evaluation, which takes a fifth of
            its time.
    """
    tests = [test for number, test in enumerate(tests) if test not in tests[:number]]
    rule = alert_named(alert, scope)
    if not with_texts:
        rule = {key: value for key, value in rule.items() if key != "annotations"}
    recording = recording_for(rule["expr"], scope)
    chosen = [{"name": "recording", "rules": recording}] if recording else []
    chosen.append({"name": "alert", "rules": [rule]})
    (folder / "rules.yaml").write_text(yaml.dump({"groups": chosen}, Dumper=yaml.CSafeDumper))
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": every,
        "group_eval_order": [group["name"] for group in chosen],
        "tests": tests,
    }
    (folder / "test.yaml").write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False))
    return promtool("test", "rules", folder / "test.yaml")


def recording_for(expression: str, scope: str) -> list[dict[str, Any]]:
    """Return the recording rules whose results the expression uses, directly or through later rules."""
    [group] = [group for group in groups(scope=scope) if group["name"] == "bkheal-recording"]
    used = recorded_in(expression)
    chosen: list[dict[str, Any]] = []
    for rule in reversed(group["rules"]):
        if rule["record"] in used:
            used |= recorded_in(rule["expr"])
            chosen.insert(0, rule)
    assert used == {rule["record"] for rule in chosen}, "a rule uses a series that is recorded later or never"
    return chosen


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    content, reported = promtool("check", "rules", "--lint-fatal", *write_rules(tmp_path))
    assert content, reported


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    firing = {case.alert for case in CASES if case.fires is not None}
    quiet = {case.alert for case in CASES if case.fires is None}
    assert firing == quiet == alerts().keys()


@pytest.mark.parametrize("alert", sorted({case.alert for case in CASES}))
def test_an_alert_fires_when_it_should_and_not_otherwise(alert: str, tmp_path: Path) -> None:
    mine = [case for case in CASES if case.alert == alert]
    for every in sorted({case.every for case in mine}):
        chosen = [case for case in mine if case.every == every]
        tests = [case.as_test(TARGET) for case in chosen]
        tests += [case.as_test({}, is_doubled=True) for case in chosen]  # the same as without, if no metric is doubled
        tests += [case.as_test({}, is_scraped_twice=True) for case in chosen]
        content, reported = tried(alert, tmp_path, every, tests)
        assert content, reported


@pytest.mark.parametrize("alert", JOINED)
def test_replicators_of_a_named_cluster_may_be_in_another_namespace(alert: str, tmp_path: Path) -> None:
    mine = [case for case in CASES if case.alert == alert]
    [every] = {case.every for case in mine}
    tests = [case.as_test(TARGET, are_replicators_apart=True) for case in mine]
    content, reported = tried(alert, tmp_path, every, tests, scope="cluster")
    assert content, reported


def test_only_these_alerts_join_metrics_of_replicators_and_another_process() -> None:
    named = [rule for group in groups(scope="cluster") for rule in group["rules"]]
    changed = {rule.get("alert") or rule["record"] for rule in named if rule not in rules()}
    changed |= {name for name, alert in alerts().items() if recorded_in(alert["expr"]) & changed}
    assert changed & alerts().keys() == JOINED.keys() | {CRON}


@pytest.mark.parametrize(("has_auditors", "fires"), [(True, False), (False, True)])
def test_results_in_a_pushgateway_do_not_count_beside_auditors_of_the_same_cluster(
    has_auditors: bool, fires: bool, tmp_path: Path
) -> None:
    """A Pushgateway keeps what one-off runs, or CronJobs before the auditors, have pushed; it has no namespace."""
    kind = {"kind": "bookies"}
    series = {selector("bkheal_audit_last_success_timestamp_seconds", {"cluster": "eu", **kind}): "60x400"}
    if has_auditors:
        series[selector("bkheal_audit_period_seconds", {**TARGET, **kind})] = "86400x400"
    labels = {"alertname": CRON, "alertstate": "firing", "severity": "warning", "cluster": "eu", **kind}
    test = {
        "interval": "5m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{CRON}",alertstate="firing"}}',
                "eval_time": "27h",
                "exp_samples": [{"value": 1, "labels": selector("ALERTS", labels)}] if fires else [],
            }
        ],
    }
    content, said = tried(CRON, tmp_path, "5m", [test], scope="cluster")
    assert content, said


@pytest.mark.parametrize("alert", sorted({case.alert for case in CASES}))
def test_the_texts_of_an_alert_are_expanded(alert: str, tmp_path: Path) -> None:
    """promtool prints the texts of unexpected alerts, so the test expects none."""
    case = next(case for case in CASES if case.alert == alert and case.fires is not None)
    test = case.as_test(TARGET)
    del test["promql_expr_test"]
    test["alert_rule_test"] = [{"eval_time": case.at, "alertname": alert, "exp_alerts": []}]
    _, reported = tried(alert, tmp_path, case.every, [test], with_texts=True)
    assert f'alertname="{alert}"' in reported
    assert f'runbook_url="{RUNBOOK}#{alert.lower()}"' in reported
    assert not [wrong for wrong in ("error expanding", "<no value>", "{{", "NaN", "%!") if wrong in reported], reported


def test_the_chart_renders_the_same_rules_as_the_tests() -> None:
    if importlib.util.find_spec("helm_python") is None:
        missing("helm", "helm-python-sdk is not installed; run pip install -e '.[dev]'")
    rule: dict[str, Any] = {"enabled": True, "thresholds": {"runbook_base": RUNBOOK}}
    values: dict[str, Any] = {
        "bookkeeper": {"metadataServiceUri": "zk://zk/ledgers"},
        "auditor": {"publicUrl": AUDITOR},
        "metrics": {"prometheusRule": rule},
    }
    assert rules_of(values) == groups(f'namespace="{NAMESPACE}"', cron_kinds=".+")
    values["bookkeeper"]["clusterName"] = "eu1"
    assert rules_of(values) == groups('cluster="eu1"', scope="cluster", cron_kinds=".+")
    for selector, scope in (('job="x",namespace="bk"', SCOPE), ('namespace=~"bk|repair"', "cluster")):
        rule["selector"] = selector
        assert rules_of(values) == groups('cluster="eu1"', scope, selector, ".+")


def rules_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    [made] = render(values).of("PrometheusRule")
    found: list[dict[str, Any]] = made["spec"]["groups"]
    return found
