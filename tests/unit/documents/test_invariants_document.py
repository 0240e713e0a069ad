"""``docs/invariants.md`` names files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_file_and_test_named_exists() -> None:
    named = re.findall(r"`((?:bookie|replicator|spark_jobs|tests)/[\w/]+\.py)(?:::(\w+))?`", _document())
    assert len(named) > 60
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file() or (test and f"def {test}(" not in (ROOT / path).read_text())
    ]
    assert missing == []


def test_every_safety_rule_has_a_row() -> None:
    rules = re.findall(r"^\| S(\d+) \|", _document(), re.MULTILINE)
    assert [int(rule) for rule in rules] == list(range(1, 21))


def _document() -> str:
    return (ROOT / "docs" / "invariants.md").read_text()
