"""Options applied by running processes restart no pods; every other option does."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from auditor.cli.configuration.settings import LIVE
from tests.chart.rendering import CHART, Release, load_values, pods, render
from tests.chart.test_components import settings

PROCESSES: Final = ("auditor", "replicator", "bookie")
SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
VALUES: Final = load_values("own-cluster")
LIVE_OPTIONS: Final = [(words[0], option) for words, options in LIVE.items() for option in sorted(options)]


def another(schema: dict[str, Any], now: Any) -> Any:
    """Return a value that the schema accepts and that is not ``now``."""
    if "enum" in schema:
        return next(each for each in schema["enum"] if each != now)
    match schema["type"]:
        case "boolean":
            return not now
        case "integer" | "number":
            low = schema.get("minimum", 1)
            return low if low != now else low + 1
        case "array":
            return ["another"]
        case _:
            return "another"


def templates(made: Release) -> dict[str, Any]:
    """Return the pod template of each long-running component."""
    return {
        pod.owner["metadata"]["labels"]["app.kubernetes.io/component"]: pod.owner["spec"]["template"]
        for pod in pods(made)
        if pod.is_long_running
    }


def rendered_with(table: str, values: dict[str, Any]) -> Release:
    return render({**VALUES, "config": {table: values}})


@functools.cache
def before() -> Release:
    """Return the release with which all others are compared."""
    return render(VALUES)


def options() -> Iterator[tuple[str, str]]:
    """Yield each option in the free tables of long-running processes."""
    for table in PROCESSES:
        for name in SCHEMA["properties"]["config"]["properties"][table]["properties"]:
            yield table, name


def test_the_chart_has_live_options_exactly_for_processes_that_reload_their_file() -> None:
    assert LIVE.keys() == {(process,) for process in PROCESSES}


@pytest.mark.parametrize(("table", "name"), LIVE_OPTIONS)
def test_every_live_option_can_be_set(table: str, name: str) -> None:
    assert (table, name) in set(options())


@pytest.mark.parametrize(("table", "name"), list(options()))
def test_an_option_restarts_the_pods_of_its_process_unless_it_is_live(table: str, name: str) -> None:
    now = settings(before(), table).get(name)
    value = another(SCHEMA["properties"]["config"]["properties"][table]["properties"][name], now)
    made = rendered_with(table, {name: value})
    assert settings(made, table)[name] == value != now
    old, new = templates(before()), templates(made)
    changed = {component for component in old if old[component] != new[component]}
    assert changed == (set() if name in LIVE[(table,)] else {table})


def test_a_copy_limit_in_the_config_table_restarts_no_pod() -> None:
    slow, fast = (rendered_with("replicator", {"bytes_per_second": rate}) for rate in (1000, 2_000_000_000))
    assert settings(slow, "replicator")["bytes_per_second"] == 1000
    assert settings(fast, "replicator")["bytes_per_second"] == 2_000_000_000
    assert templates(slow) == templates(fast) == templates(before())


@pytest.mark.parametrize(
    "values",
    [
        {"replicator": {"throttle": {"bytesPerSecond": 1000}}},
        {"replicator": {"throttle": {"clusterBytesPerSecond": 1000}}},
        {"auditor": {"requestsPerSecond": 5}},
    ],
)
def test_a_value_that_sets_a_live_option_restarts_no_pod(values: dict[str, Any]) -> None:
    [component] = values
    made = render({**VALUES, component: {**VALUES.get(component, {}), **values[component]}})
    assert templates(made) == templates(before())


def test_a_live_option_with_another_one_restarts_the_same_pods_as_the_other_one() -> None:
    alone = rendered_with("replicator", {"ledgers_in_flight": 3})
    both = rendered_with("replicator", {"ledgers_in_flight": 3, "bytes_per_second": 1000})
    assert templates(alone) == templates(both) != templates(before())
