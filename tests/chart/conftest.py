"""The chart's tests need a real helm and Kubernetes' schemas: the extra ``dev``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.required import missing

WITHOUT_HELM = ("test_image", "test_rules_alerts", "test_rules_catalog", "test_rules_dashboards")
NEEDED = ("helm_python", "kubernetes_validate", "jsonschema")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "chart" not in item.path.parts or item.path.stem in WITHOUT_HELM:
        return
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        missing("helm", f"{', '.join(absent)} not installed; run pip install -e '.[dev]'")
