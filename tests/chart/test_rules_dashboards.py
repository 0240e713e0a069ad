"""Dashboards equal their definitions, query existing metrics, and have no overlapping panels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rule_files import CHART, ROOT, problems_of, promtool, uses
from tests.deadlines import PROGRAM_S

BOARDS = {path.stem: path for path in sorted((CHART / "files" / "dashboards").glob("*.json"))}
VARIABLES = {"$__rate_interval": "5m", "$cluster": ".*", "$namespace": ".*", "$instance": ".*", "$kind": ".*"}
COLUMNS = 24


def load(name: str) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(BOARDS[name].read_text())
    return board


def panels(name: str) -> Iterator[dict[str, Any]]:
    return (panel for panel in load(name)["panels"] if panel["type"] != "row")


def queries(name: str) -> Iterator[str]:
    return (replaced(target["expr"]) for panel in panels(name) for target in panel["targets"])


def replaced(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression


def test_all_dashboards_exist() -> None:
    assert BOARDS.keys() == {"overview", "run", "replicator", "bookie"}


def test_the_dashboard_files_match_their_definitions(tmp_path: Path) -> None:
    command = [sys.executable, ".ci/generate_dashboards.py", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=PROGRAM_S)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in BOARDS.values()}, "run python .ci/generate_dashboards.py"


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_is_valid_and_uses_existing_metrics(name: str, tmp_path: Path) -> None:
    found = list(queries(name))
    assert len(found) > 10
    assert {query: problems_of(query) for query in found if problems_of(query)} == {}
    assert [query for query in found if "$" in query] == []
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(found)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": rules}]}))
    content, reported = promtool("check", "rules", tmp_path / "rules.yaml")
    assert content, reported


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_is_limited_to_the_chosen_cluster(name: str) -> None:
    for panel in panels(name):
        for target in panel["targets"]:
            expression = target["expr"]
            assert expression.count('cluster=~"$cluster",namespace=~"$namespace"') >= len(uses(expression)), expression


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap_and_have_ids_of_their_own(name: str) -> None:
    every = load(name)["panels"]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], str] = {}
    for panel in every:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert taken.setdefault(cell, panel["title"]) == panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_has_a_description_and_a_unit(name: str) -> None:
    for panel in panels(name):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
    titles = [panel["title"] for panel in panels(name)]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", BOARDS)
def test_variables_also_match_series_without_their_label(name: str) -> None:
    board = load(name)
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert {"datasource", "cluster", "namespace"} <= variables.keys()
    for variable in (each for each in variables.values() if each["type"] == "query"):
        assert variable["allValue"] == ".*"
        assert variable["current"]["value"] == ["$__all"]
        query = replaced(variable["query"]["query"])
        assert re.fullmatch(r"label_values\((bkheal_\w+)(\{[^}]*\})?, (\w+)\)", query)
        assert problems_of(query) == []
    assert variables["auditor"]["type"] == "textbox"
    [link] = [link for link in board["links"] if link["type"] == "link"]
    assert link["url"] == "${auditor}/reports/latest/"
    used = set(re.findall(r"\$(\w+)", json.dumps(board["panels"]))) - {"__rate_interval", "datasource"}
    assert used <= variables.keys()
    assert board["uid"] == f"bkheal-{name}"
