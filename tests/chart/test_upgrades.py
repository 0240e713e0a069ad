"""Values of an earlier release still render, and an upgrade changes nothing that Kubernetes refuses to change."""

from __future__ import annotations

import copy
import json

import pytest

from tests.chart.rendering import load_values, release, render
from tests.chart.upgrades import FIXED, REQUIRED, fields, fixed, merged, stored

RELEASES = stored()
SETS = [(name, values) for name, sets in RELEASES.items() for values in sets]


@pytest.mark.parametrize(("name", "values"), SETS)
def test_an_upgrade_changes_no_field_that_kubernetes_does_not_allow_to_change(name: str, values: str) -> None:
    earlier = RELEASES[name][values]
    now = fixed(render(merged(earlier["values"], REQUIRED)))
    assert {key: now.get(key) for key in earlier["fixed"]} == earlier["fixed"]


def test_the_stored_releases_contain_every_kind_with_immutable_fields() -> None:
    for sets in RELEASES.values():
        kinds = {key.partition("/")[0] for one in sets.values() for key in one["fixed"]}
        assert kinds == FIXED.keys()
    made = {item["kind"] for values in ("own-cluster", "everything") for item in release(values).objects}
    assert made >= FIXED.keys()


def test_a_label_that_changes_with_the_chart_would_be_noticed() -> None:
    """A common mistake is the version of the chart in the labels of the claims of a StatefulSet."""
    [bookies] = release("own-cluster").of("StatefulSet")
    other = copy.deepcopy(bookies)
    other["spec"]["volumeClaimTemplates"][0]["metadata"].setdefault("labels", {})["helm.sh/chart"] = "bkheal-0.2.0"
    assert fields(other) != fields(bookies)
    assert "0.1.0" not in json.dumps(fixed(render(load_values("own-cluster"))))
