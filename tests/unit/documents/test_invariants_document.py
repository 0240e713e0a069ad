"""``docs/invariants.md`` names files and tests that exist."""

from __future__ import annotations

import re

from tests.unit.documents.named_tests import ROOT, missing, named_in


def test_every_file_and_test_mentioned_exists() -> None:
    named = named_in(_document())
    assert len(named) > 60
    assert missing(named) == []


def test_every_safety_rule_has_a_row() -> None:
    rules = re.findall(r"^\| S(\d+) \|", _document(), re.MULTILINE)
    assert [int(rule) for rule in rules] == list(range(1, 21))


def _document() -> str:
    return (ROOT / "docs" / "invariants.md").read_text()
