"""Every link from one document to another, to a source file or to a heading resolves, and the lists have every page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "helm/bkheal/README.md"])
LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the explicit ids, and the slugs that GitHub and MkDocs generate from headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r'id="([^"]+)"', text))


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def broken(page: Path) -> Iterator[str]:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page: Path) -> None:
    assert list(broken(page)) == []


def test_every_decision_is_in_the_list() -> None:
    records = {path.name for path in (ROOT / "docs/decisions").glob("0*.md")}
    assert len(records) > 20
    assert set(re.findall(r"\((0[\w-]+\.md)\)", (ROOT / "docs/decisions/README.md").read_text())) == records


def test_the_site_has_every_page() -> None:
    """``make site`` fails otherwise, because MkDocs treats its warnings as errors."""
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / ".ci/site/mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT)) for page in PAGES if not re.match(r"0\d", page.name)}
    assert listed == pages


def test_the_readme_names_every_page() -> None:
    named = set(re.findall(r"\((docs/[\w-]+\.md)\)", re.sub(r"#[\w-]+\)", ")", (ROOT / "README.md").read_text())))
    assert named == {str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md")}
