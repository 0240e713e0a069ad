"""Every rule and section that the code cites exists in the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.documents.test_links import anchors

ROOT = Path(__file__).parents[3]
FOLDERS = ("auditor", "bookie", "replicator", "spark_jobs", "tests", "helm", "docs", ".ci")
SECTION = re.compile(r"docs/([\w-]+\.md)((?:(?:, | and )?#[\w-]+)+)")
RULE = re.compile(r"\b(?:R\d{1,3}|J\d\d?|[ST]1?\d|S20|I1?\d|I2[0-4])\b(?![-.=\"'])")
"""Names of rules. A Python string that equals such a name (S3, for example) is in quotes and not a citation."""
OLD = re.compile(r"\b(?:formats?|reliability|design|findings?) (?:sections? )?(?:T\d|\d+\.\d)", re.IGNORECASE)
OWN = Path(__file__).name


@cache
def texts() -> dict[str, str]:
    """Return the text of each source file and document by path."""
    suffixes = {".py", ".md", ".proto", ".toml", ".yaml"}
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    paths += ROOT.glob("*.md")
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths if "_pb2" not in path.name}


def comments(text: str) -> Iterator[str]:
    """Return the docstrings and comments of a Python file."""
    yield from re.findall(r'"""(.*?)"""', text, re.DOTALL)
    yield from re.findall(r"#[^\n]*", text)


def test_every_section_cited_exists() -> None:
    missing, count = [], 0
    for path, text in texts().items():
        for page, cited in SECTION.findall(text):
            for anchor in re.findall(r"#([a-z][\w-]+)", cited):
                count += 1
                if not (ROOT / "docs" / page).exists() or anchor not in anchors(ROOT / "docs" / page):
                    missing.append(f"{path}: docs/{page}#{anchor}")
    assert missing == []
    assert count > 100


@pytest.mark.parametrize("package", ["auditor", "bookie", "replicator", "spark_jobs", "tests/simulation"])
def test_every_rule_cited_is_defined(package: str) -> None:
    invariants = (ROOT / "docs/invariants.md").read_text() + (ROOT / "docs/simulation.md").read_text()
    rows = re.findall(r"^\| (\w+(?:, \w+)*) \|", invariants, re.MULTILINE)
    defined = {rule for row in rows for rule in row.split(", ")} | anchors(ROOT / "docs/failure-model.md")
    missing = {
        f"{path}: {rule}"
        for path, text in texts().items()
        if path.startswith(f"{package}/") and path.endswith(".py")
        for comment in comments(text)
        for rule in RULE.findall(comment)
        if rule not in defined
    }
    assert missing == set()


def test_no_citation_refers_to_notes_outside_of_the_repository() -> None:
    assert [path for path, text in texts().items() if not path.endswith(OWN) and OLD.search(text)] == []
