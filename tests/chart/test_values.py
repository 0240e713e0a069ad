"""The file values.yaml, its schema, the templates and the README agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.chart.rendering import CHART
from tests.chart.values_table import README, documented, value_at, with_table

SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())
LEFT_TO_USERS: Final = {
    "requests",
    "limits",
    "claims",
    "initialDelaySeconds",
    "successThreshold",
    "terminationGracePeriodSeconds",
}
"""Keys inside resources and probes without a default."""


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        found: dict[str, Any] = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        return resolved(found)
    return schema


def schema_paths(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every path of named properties, without those in lists."""
    for name, part in resolved(schema).get("properties", {}).items():
        yield (*path, name)
        yield from schema_paths(part, (*path, name))


def closed_value_paths(value: Any, schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each path of the defaults, down to the maps whose keys users choose."""
    properties = resolved(schema).get("properties")
    if not isinstance(value, dict) or properties is None:
        return
    for name, part in value.items():
        yield (*path, name)
        yield from closed_value_paths(part, properties.get(name, {}), (*path, name))


def maps(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name, part in resolved(schema).get("properties", {}).items():
        if "properties" in resolved(part):
            yield (*path, name), resolved(part)
        yield from maps(part, (*path, name))


def test_every_value_is_in_the_schema() -> None:
    known = set(schema_paths(SCHEMA))
    assert [path for path in closed_value_paths(DEFAULTS, SCHEMA) if path not in known] == []


def test_every_key_of_the_schema_is_in_the_values() -> None:
    there = set(closed_value_paths(DEFAULTS, SCHEMA))
    missing = {path for path in schema_paths(SCHEMA) if path not in there}
    of_tables = {path for path in missing if path[0] == "config" and len(path) == 3}
    assert {path for path in missing - of_tables if path[-1] not in LEFT_TO_USERS} == set()


def test_maps_of_the_schema_allow_no_unknown_keys() -> None:
    is_open = [path for path, schema in maps(SCHEMA) if schema.get("additionalProperties") is not False]
    assert is_open == [("global",)]  # parent charts share keys in it
    assert SCHEMA["additionalProperties"] is False


def test_the_schema_is_valid_and_uses_all_its_definitions() -> None:
    from jsonschema import Draft7Validator

    Draft7Validator.check_schema(SCHEMA)
    Draft7Validator(SCHEMA).validate(DEFAULTS)
    used = set(re.findall(r'"#/definitions/(\w+)"', json.dumps(SCHEMA)))
    assert used == SCHEMA["definitions"].keys()


def test_every_value_is_documented() -> None:
    """The comment is at the value, at a map that contains it, or at each of its parts."""
    covered = {tuple(each.path.split(".")) for each in documented()}
    leaves = [path for path in closed_value_paths(DEFAULTS, SCHEMA) if not has_below(path)]
    assert [path for path in leaves if not is_covered(path, value_at(DEFAULTS, list(path)), covered)] == []


def is_covered(path: tuple[str, ...], value: Any, covered: set[tuple[str, ...]]) -> bool:
    if any(path[:length] in covered for length in range(1, len(path) + 1)):
        return True
    return isinstance(value, dict) and all((*path, name) in covered for name in value)


def has_below(path: tuple[str, ...]) -> bool:
    return any(other != path and other[: len(path)] == path for other in closed_value_paths(DEFAULTS, SCHEMA))


def test_every_value_is_used_by_a_template() -> None:
    templates = [path for path in CHART.rglob("templates/**/*") if path.is_file()]
    text = "\n".join(path.read_text() for path in templates)
    names = {path[-1] for path in closed_value_paths(DEFAULTS, SCHEMA)}
    whole = set(SCHEMA["definitions"]["probe"]["properties"]) | LEFT_TO_USERS | {"whenDeleted", "whenScaled"}
    kinds = {"bookies", "placement", "replicas", "references", "everything"}  # the templates loop over these
    unused = {name for name in names - whole - kinds if not re.search(rf'\.{name}\b|"{name}"', text)}
    assert unused == set()


def test_the_table_of_values_in_the_readme_is_current() -> None:
    assert README.read_text() == with_table(README.read_text()), "run python -m tests.chart.values_table"


def test_the_chart_has_the_version_of_the_package() -> None:
    import tomllib

    from tests.chart.rendering import ROOT

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    assert chart["apiVersion"] == "v2"
