"""Schemas of all objects: strict ones of Kubernetes releases, and our own of custom resources."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import Any, Final

from tests.chart.rendering import Object

VERSIONS: Final = ("1.28", "1.29", "1.30", "1.31", "1.32", "1.33", "1.34")
CUSTOM: Final = {path.stem: path for path in sorted(Path(__file__).parent.glob("schemas/*.json"))}


def problems(item: Object, version: str) -> list[str]:
    """Return the errors of an object under the schema of a Kubernetes release. Unknown fields are errors."""
    validator = _custom(item["kind"]) if item["kind"] in CUSTOM else _builtin(item["apiVersion"], item["kind"], version)
    where = f"{item['kind']} {item['metadata'].get('name')}"
    return [f"{where}: {'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(item)]


@functools.cache
def _custom(kind: str) -> Any:
    from jsonschema import Draft7Validator

    schema = json.loads(CUSTOM[kind].read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


@functools.cache
def _builtin(api_version: str, kind: str, version: str) -> Any:
    from jsonschema import Draft202012Validator
    from referencing import Resource

    folder = _folder(version)
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = json.loads((folder / f"{kind.lower()}-{group}.json").read_text())
    registry: Any = Resource.from_contents(schema) @ _definitions(folder)
    return Draft202012Validator(schema, registry=registry)


@functools.cache
def _definitions(folder: Path) -> Any:
    from referencing import Registry, Resource

    return Resource.from_contents(json.loads((folder / "_definitions.json").read_text())) @ Registry()


def _folder(version: str) -> Path:
    package = importlib.util.find_spec("kubernetes_validate")
    assert package is not None
    assert package.origin is not None
    [folder] = (Path(package.origin).parent / "kubernetes-json-schema").glob(f"v{version}*-local-strict")
    return folder
