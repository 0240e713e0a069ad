"""The parts of a release that an upgrade must not change: immutable fields, and names of objects with data.

For each release, the tests have these fields, the values that they were made from, and an archive of the chart for
tests that install it. So the tests need no git history.
``python -m tests.chart.upgrades NAME CHART`` stores them for the chart in a folder, which is made of each release by
``git archive TAG helm/bkheal | tar x -C FOLDER``.
"""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.archives import unpack
from tests.chart.rendering import CHART, Object, Release, render

STORED: Final = Path(__file__).parent / "released"
FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("selector",),
    "StatefulSet": ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"),
    "PersistentVolumeClaim": ("accessModes", "storageClassName", "volumeMode", "selector"),
    "Service": ("clusterIP",),
    "RoleBinding": ("roleRef",),
}
"""The immutable fields of a spec, or of the object. A headless Service cannot get an address later."""
REQUIRED: Final = {"metrics": {"prometheusRule": {"thresholds": {"runbook_base": "https://runbooks.example"}}}}
"""The values that later releases require; CHANGELOG.md lists them. All values of earlier releases remain accepted."""


def fixed(made: Release) -> dict[str, dict[str, Any]]:
    """Return the fixed fields of each object that has any, by kind and name."""
    return {
        f"{item['kind']}/{item['metadata']['name']}": fields(item) for item in made.objects if item["kind"] in FIXED
    }


def fields(item: Object) -> dict[str, Any]:
    """Return the fixed fields that one object sets."""
    of = item.get("spec", item)
    return {name: of[name] for name in FIXED[item["kind"]] if name in of}


def stored() -> Mapping[str, Mapping[str, Any]]:
    """Return all stored releases by their names."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(STORED.glob("*.json"))}


def merged(values: Any, more: Any) -> Any:
    """Return ``values`` with those of ``more``, which replace the same ones at any depth."""
    if not (isinstance(values, dict) and isinstance(more, dict)):
        return more
    return {**values, **{name: merged(values[name], part) if name in values else part for name, part in more.items()}}


def unpacked(name: str, directory: Path) -> Path:
    """Unpack a stored release's chart in ``directory``, and return its folder."""
    unpack(STORED / f"{name}.tgz", directory)
    return directory / CHART.name


def main(name: str, chart: Path) -> None:
    """Store a release."""
    found = {}
    for path in sorted(chart.glob("ci/*-values.yaml")):
        values = yaml.safe_load(path.read_text())
        found[path.name.removesuffix("-values.yaml")] = {"values": values, "fixed": fixed(render(values, chart=chart))}
    STORED.mkdir(exist_ok=True)
    (STORED / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    with tarfile.open(STORED / f"{name}.tgz", "w:gz") as archive:
        archive.add(chart, CHART.name)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
