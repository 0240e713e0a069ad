"""The chart's alert and recording rules with their thresholds filled in, and promtool to test them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from auditor.metrics.catalog import CATALOG
from bookie.runtime.telemetry.metric_definitions import Definition, MetricType
from tests.deadlines import PROGRAM_S
from tests.required import missing

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "bkheal"
RULE_FILES: Final = tuple(sorted((CHART / "files" / "rules").glob("*.yaml")))
TOKEN: Final = re.compile(r"@([a-z][a-z0-9_]*)@")
RUNBOOK: Final = "https://runbooks.example/bkheal/operations"
"""The address of docs/operations.md in these tests."""
AUDITOR: Final = "https://bkheal.example"
"""The address of the auditors of these tests, for browsers."""
CRON_KINDS: Final = "bookies|placement"
"""The kinds of audits that have CronJobs by default."""
ANY_RELEASE: Final = 'namespace=~".*"'
SCOPE: Final = "cluster, namespace"
"""The labels that processes of one cluster share, if the cluster has no name."""
TARGET_LABELS: Final = frozenset({"cluster", "namespace", "pod", "instance", "job"})
"""The labels that a scrape adds."""
_USE: Final = re.compile(r"(?<![:\w])(bkheal_\w+)(?::|(\{[^}]*\})?)")
_RECORDED: Final = re.compile(r"\b\w+:bkheal_\w+:\w+")
_MATCHER: Final = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING: Final = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


@functools.cache
def thresholds() -> Mapping[str, object]:
    """Return the thresholds that are the chart's defaults."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return dict(values["metrics"]["prometheusRule"]["thresholds"])


def filled_in(
    text: str,
    changed: Mapping[str, object] | None = None,
    selector: str = "",
    own: str = ANY_RELEASE,
    scope: str = SCOPE,
    cron_kinds: str = CRON_KINDS,
) -> str:
    """Return a rules file as the chart makes it; ``changed`` replaces thresholds."""
    values = {
        **thresholds(),
        "runbook_base": RUNBOOK,
        "public_url": AUDITOR,
        "selector": selector,
        "scope": scope,
        "own": own,
        "cron_kinds": cron_kinds,
        **(changed or {}),
    }
    return TOKEN.sub(lambda found: str(values[found[1]]), text)


@functools.cache
def groups(
    own: str = ANY_RELEASE, scope: str = SCOPE, selector: str = "", cron_kinds: str = CRON_KINDS
) -> list[dict[str, Any]]:
    """The groups of all files, with the chart's defaults; ``own`` is the matcher of the release."""
    texts = [
        filled_in(path.read_text(), own=own, scope=scope, selector=selector, cron_kinds=cron_kinds)
        for path in RULE_FILES
    ]
    return [group for text in texts for group in yaml.load(text, yaml.CSafeLoader)["groups"]]


@functools.cache
def rules() -> list[dict[str, Any]]:
    """Return all rules."""
    return [rule for group in groups() for rule in group["rules"]]


@functools.cache
def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


@functools.cache
def recorded() -> dict[str, str]:
    """Return the expressions of recording rules, by the names of their records."""
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def write_rules(folder: Path, changed: Mapping[str, object] | None = None) -> list[Path]:
    """Write the files with thresholds filled in."""
    made = []
    for path in RULE_FILES:
        made.append(folder / path.name)
        made[-1].write_text(filled_in(path.read_text(), changed))
    return made


def find_program(name: str) -> str:
    """Return a program of Debian's package prometheus; without it the test is skipped, or fails if it is required."""
    found = shutil.which(name)
    if found is None:
        missing(name, f"no {name}: install Debian's package prometheus")
    return found


def promtool(*arguments: str | Path) -> tuple[bool, str]:
    """Run promtool, and return whether it succeeded, and its output."""
    command = [find_program("promtool"), *map(str, arguments)]
    environment = {**os.environ, "GOGC": "400"}  # with fewer garbage collections it needs a fifth less processor time
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, env=environment)
    return ended.returncode == 0, ended.stdout + ended.stderr


@dataclass(frozen=True)
class Use:
    """One metric in a query, and its label selectors."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]


def uses(expression: str) -> list[Use]:
    """Return the uses of metrics in a query, without recorded ones."""
    plain = _RECORDED.sub("1", expression)
    return [Use(found[1], tuple(_MATCHER.findall(found[2] or ""))) for found in _USE.finditer(plain)]


def recorded_in(expression: str) -> set[str]:
    """Return the names of the recorded series in a query."""
    return set(_RECORDED.findall(expression))


def problems_of(expression: str) -> list[str]:
    """Return all names, labels and values of labels that the catalog of metrics lacks."""
    series = dict(_series())
    found = [f"{name} is not recorded" for name in recorded_in(expression) - recorded().keys()]
    labels = set(TARGET_LABELS) | {"le"}
    for name in recorded_in(expression) & recorded().keys():
        labels |= _labels_of(recorded()[name])
    for use in uses(expression):
        if use.name not in series:
            found.append(f"{use.name} is no metric")
            continue
        own = series[use.name].labels
        labels |= own.keys()
        for label, operator, value in use.matchers:
            if label in TARGET_LABELS or label == "le":
                continue
            wanted = value.split("|") if "~" in operator else [value]
            if label not in own:
                found.append(f"{use.name} has no label {label}")
            elif not series[use.name].is_free and "$" not in value:
                found += [f"{use.name}: {label} is never {one}" for one in wanted if one not in (*own[label], ".*")]
    for group in _GROUPING.findall(expression):
        found += [
            f"nothing here has a label {label}" for label in map(str.strip, group.split(",")) if label not in labels
        ]
    return found


def _labels_of(expression: str) -> set[str]:
    return {label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")}


def _series() -> Iterator[tuple[str, Definition]]:
    for definitions in CATALOG.values():
        for one in definitions:
            if one.type is MetricType.HISTOGRAM:
                yield from ((f"{one.name}{suffix}", one) for suffix in ("_bucket", "_count", "_sum"))
            else:
                yield one.name, one
