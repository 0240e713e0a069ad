"""No docstring contains a sentence twice, which happens when a sentence is rewritten and the old one remains."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator

import pytest

from tests.worlds.sources import PACKAGES, sources

WORDS_MIN = 4
SHARED_MIN = 0.8


def sentences(nodes: Iterable[ast.AST]) -> Iterator[list[str]]:
    """Return the sentences of each docstring, without code and list items (``name: ...``)."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            parts = re.split(r"(?<=[.)])\s+", " ".join(node.value.value.split()))
            yield [part for part in parts if re.match(r"[A-Z(]", part) and not re.match(r"[\w, ]+Error: ", part)]


def repeated(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for first, second in itertools.chain.from_iterable(map(itertools.pairwise, sentences(nodes))):
        words = [set(re.findall(r"[a-z]+", part.lower())) for part in (first, second)]
        fewer = min(map(len, words))
        if first == second or (fewer >= WORDS_MIN and len(words[0] & words[1]) >= SHARED_MIN * fewer):
            yield second


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_is_followed_by_another_version_of_itself(package: str) -> None:
    found = {source.path: list(repeated(source.nodes)) for source in sources(package)}
    assert {path: texts for path, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    "docstring",
    [
        "It starts at once. Pure. Pure.",
        "It may be gone: then creates are refused. It may be deleted: then creates are refused.",
    ],
)
def test_two_versions_of_a_sentence_are_found(docstring: str) -> None:
    assert list(repeated(ast.walk(ast.parse(f'"""{docstring}"""'))))
