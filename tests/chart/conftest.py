"""The chart's tests need a real helm and Kubernetes' schemas: the extra ``dev``."""

from __future__ import annotations

import pytest

from tests.chart.rendering import need_helm

WITHOUT_HELM = ("test_image", "test_rules_alerts", "test_rules_catalog", "test_rules_dashboards")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "chart" not in item.path.parts or item.path.stem in WITHOUT_HELM:
        return
    need_helm()
