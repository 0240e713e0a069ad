"""Every set of values lints, renders, and fits the schemas of all Kubernetes releases supported by the chart."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.kubernetes_schemas import CUSTOM, VERSIONS, problems
from tests.chart.rendering import CHART, VALUES, Object, canonical, executor_template, load_values, release


def all_objects() -> list[Object]:
    """Return the objects of all sets of values, each once."""
    made = [release(name) for name in VALUES]
    executors = [template for each in made if (template := executor_template(each))]
    items = [item for each in made for item in each.objects]
    named = [{**template, "metadata": {"name": "executor", **template["metadata"]}} for template in executors]
    return list({canonical(item): item for item in (*items, *named)}.values())


@pytest.mark.parametrize("name", VALUES)
def test_strict_lint_reports_nothing(name: str) -> None:
    from helm_python import lint

    found: dict[str, Any] = lint(str(CHART), load_values(name), strict=True, namespace="bk")
    worst = [message for message in found.get("messages", []) if "icon is recommended" not in str(message)]
    assert worst == []


@pytest.mark.parametrize("name", VALUES)
def test_each_object_has_a_name_of_its_own(name: str) -> None:
    keys = [(item["apiVersion"], item["kind"], item["metadata"]["name"]) for item in release(name).objects]
    assert len(set(keys)) == len(keys) > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_match_the_schemas_of_kubernetes(version: str) -> None:
    assert [problem for item in all_objects() for problem in problems(item, version)] == []


def test_the_schemas_refuse_unknown_fields() -> None:
    item = release("service-minimal").of("Deployment")[0]
    wrong = {**item, "spec": {**item["spec"], "replica": 3}}
    assert problems(wrong, "1.34")


def test_the_test_values_cover_every_kind_in_the_templates() -> None:
    texts = "\n".join(path.read_text() for path in CHART.glob("templates/**/*.yaml"))
    kinds = {line.split()[1] for line in texts.splitlines() if line.startswith("kind: ")}
    made = {item["kind"] for name in VALUES for item in release(name).objects}
    assert kinds <= made
    assert set(CUSTOM) <= made


def test_the_test_values_cover_every_mode() -> None:
    values = [load_values(name) for name in VALUES]
    modes = {(each.get("mode", "service"), each.get("spark", {}).get("mode", "local")) for each in values}
    assert modes >= {("service", "local"), ("service", "k8s-client"), ("cron", "local"), ("cron", "k8s-client")}
    assert len(VALUES) >= 12
