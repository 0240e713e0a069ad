"""A docstring says a thing once: a rewritten sentence must not stay beside the old one."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("auditor", "bookie", "replicator", "spark_jobs")
WORDS_MIN = 4
SHARED_MIN = 0.8


def sentences(source: str) -> Iterator[list[str]]:
    """The sentences of each docstring; code and fields of a list (``name: ...``) are none."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts = re.split(r"(?<=[.)])\s+", " ".join(node.value.value.split()))
            yield [part for part in parts if re.match(r"[A-Z(]", part) and not re.match(r"[\w, ]+Error: ", part)]


def repeated(source: str) -> Iterator[str]:
    for first, second in itertools.chain.from_iterable(map(itertools.pairwise, sentences(source))):
        words = [set(re.findall(r"[a-z]+", part.lower())) for part in (first, second)]
        fewer = min(map(len, words))
        if first == second or (fewer >= WORDS_MIN and len(words[0] & words[1]) >= SHARED_MIN * fewer):
            yield second


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_is_followed_by_another_version_of_itself(package: str) -> None:
    paths = [path for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name]
    found = {str(path.relative_to(ROOT)): list(repeated(path.read_text())) for path in paths}
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_two_versions_of_a_sentence_are_found() -> None:
    assert list(repeated('"""It starts at once. Pure. Pure."""'))
    assert list(
        repeated('"""It may be gone: then creates are refused. It may be deleted: then creates are refused."""')
    )
