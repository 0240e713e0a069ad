"""Render the chart with a real helm, once per set of values.

The sets are the files in ``helm/bkheal/ci``, where helm's chart testing expects them too.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from tests.required import missing

NEEDED: Final = ("helm_python", "kubernetes_validate", "jsonschema")
ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "bkheal"
VALUES: Final = {path.name.removesuffix("-values.yaml"): path for path in sorted(CHART.glob("ci/*-values.yaml"))}
NAMESPACE: Final = "bk"

Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Release:
    """The result of helm for one set of values."""

    name: str
    objects: tuple[Object, ...]
    """The objects, test hooks included."""
    notes: str

    def of(self, kind: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        [found] = [item for item in self.of(kind) if item["metadata"]["name"] == name]
        return found


@dataclass(frozen=True)
class Pod:
    """A pod, or the template of one."""

    owner: Object
    spec: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def is_long_running(self) -> bool:
        return self.owner["kind"] in ("Deployment", "StatefulSet")


class _UniqueKeys(yaml.CSafeLoader):
    """A loader that refuses a mapping with a key twice, as Kubernetes and many tools do."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        assert len(set(keys)) == len(keys), f"a key is there twice: {sorted(keys)}"
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def need_helm() -> None:
    """Skip the running test if the tools for rendering the chart are not installed, or fail it if it is required."""
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        missing("helm", f"{', '.join(absent)} not installed; run pip install -e '.[dev]'")


def load_values(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(VALUES[name].read_text())
    return values


@functools.cache
def release(name: str) -> Release:
    """The release of the values in ``ci/NAME-values.yaml``."""
    return render(load_values(name), name="everything" if name == "everything" else "demo")


def render(values: Mapping[str, Any], name: str = "demo", chart: Path = CHART, namespace: str = NAMESPACE) -> Release:
    """Render any values.

    Raises:
        HelmError: the schema or a template refused them.
    """
    texts = _chart(chart).render(dict(values), name=name, namespace=namespace)
    notes = next((text for path, text in texts.items() if path.endswith("NOTES.txt")), "")
    manifests = [text for path, text in sorted(texts.items()) if path.endswith(".yaml")]
    objects = [item for text in manifests for item in yaml.load_all(text, _UniqueKeys) if item]
    return Release(name, tuple(objects), notes)


def pods(made: Release) -> Iterator[Pod]:
    """Return every pod of a release: its own, those that controllers make, and Spark's executors."""
    for item in made.objects:
        match item["kind"]:
            case "Pod":
                yield Pod(item, item["spec"], item["metadata"])
            case "Deployment" | "StatefulSet":
                template = item["spec"]["template"]
                yield Pod(item, template["spec"], template["metadata"])
            case "CronJob":
                template = item["spec"]["jobTemplate"]["spec"]["template"]
                yield Pod(item, template["spec"], template["metadata"])
            case _:
                pass


def pod_of(made: Release, component: str) -> Pod:
    """The pod of a Deployment or StatefulSet, by the name of its container."""
    [pod] = [pod for pod in pods(made) if pod.is_long_running and pod.spec["containers"][0]["name"] == component]
    return pod


def executor_template(made: Release) -> Object | None:
    """Return Spark's pod template, if it has one."""
    for item in made.of("ConfigMap"):
        if "executor.yaml" in item.get("data", {}):
            template: Object = yaml.load(item["data"]["executor.yaml"], yaml.CSafeLoader)
            return template
    return None


def canonical(item: Object) -> str:
    """Return a text that is the same for equal objects."""
    return json.dumps(item, sort_keys=True)


@functools.cache
def _chart(path: Path) -> Any:
    from helm_python import Chart

    return Chart.load(str(path))
