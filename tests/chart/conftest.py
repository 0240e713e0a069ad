"""The chart's tests need a real helm and Kubernetes' schemas: the extra ``chart``."""

from __future__ import annotations

import importlib.util
import os

import pytest

WITHOUT_HELM = ("test_image", "test_rules_alerts", "test_rules_catalog", "test_rules_dashboards")
NEEDED = ("helm_python", "kubernetes_validate", "jsonschema")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "chart" not in item.path.parts or item.path.stem in WITHOUT_HELM:
        return
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not missing:
        return
    why = f"{', '.join(missing)} not installed; run pip install -e '.[chart]'"
    if "helm" in os.environ.get("BKHEAL_REQUIRE", "").split(","):
        pytest.fail(why)
    pytest.skip(why)
