"""The statements in ``docs/placement.md`` hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bookie.metadata.bookies.topology import parse_topology
from bookie.model.spread import DEFAULT_PLACEMENT_POLICY

PAGE = (Path(__file__).parents[4] / "docs/placement.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", blocks("json"))
def test_each_topology_shown_is_valid(block: str) -> None:
    assert parse_topology(block).locations["bk1:3181"] == "/eu/rack1"


@pytest.mark.parametrize("block", blocks("python"))
def test_each_example_runs(block: str) -> None:
    assert "assert" in block
    exec(compile(block, "docs/placement.md", "exec"), {})


def test_defaults_in_the_table_are_those_of_the_policy() -> None:
    assert len(blocks("json")) == 2
    for names, default in re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \| (\S+) \|", PAGE, re.MULTILINE):
        for name in re.findall(r"[a-z_]+", names):
            assert str(getattr(DEFAULT_PLACEMENT_POLICY, name)) == default.strip("`")
