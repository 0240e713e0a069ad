"""The table of sabotages, and a check that it fits the tree."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("sabotages.toml")
ROOT: Final = Path(__file__).parents[2]
_MARK: Final = "long"
"""Tests with this mark are not part of the gate."""


class StaleTableError(Exception):
    """The table no longer fits the tree."""


@dataclass(frozen=True, slots=True)
class Sabotage:
    """One change that the tests of the gate must detect."""

    name: str
    breaks: str
    """What goes wrong for a user."""
    file: str
    text: str
    """The text to replace, which the file contains exactly once."""
    replacement: str
    tests: tuple[str, ...]
    """The ids of the tests for pytest. Each must fail; without parameters in the id, at least one of its cases."""


def load(path: Path = TABLE) -> tuple[Sabotage, ...]:
    """Return all sabotages, in the order of the table."""
    rows = tomllib.loads(path.read_text())["sabotage"]
    return tuple(Sabotage(**{**row, "tests": tuple(row["tests"])}) for row in rows)


def broken(sabotage: Sabotage, root: Path) -> str:
    """Return the file's text with the change.

    Raises:
        StaleTableError: the file does not contain the text to replace exactly once.
    """
    text = (root / sabotage.file).read_text()
    if (count := text.count(sabotage.text)) != 1:
        raise StaleTableError(f"{sabotage.name}: its text is {count} times in {sabotage.file}, expected once")
    return text.replace(sabotage.text, sabotage.replacement)


def problems(sabotage: Sabotage, root: Path = ROOT) -> Iterator[str]:
    """Return why a sabotage does not fit the tree; empty if it does."""
    if sabotage.text == sabotage.replacement:
        yield "it changes nothing"
    try:
        ast.parse(broken(sabotage, root))
    except (OSError, StaleTableError, SyntaxError) as error:
        yield str(error)
    if not sabotage.tests:
        yield "it names no test"
    for test in sabotage.tests:
        yield from _problems_of_test(test, root)


def _problems_of_test(test: str, root: Path) -> Sequence[str]:
    file, _, name = test.partition("::")
    if not (root / file).is_file():
        return [f"{test}: there is no such file"]
    module = ast.parse((root / file).read_text())
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if name not in functions:
        return [f"{test}: there is no such test"]
    marks = [*functions[name].decorator_list, *_module_marks(module)]
    if any(isinstance(node, ast.Attribute) and node.attr == _MARK for mark in marks for node in ast.walk(mark)):
        return [f"{test}: it is marked {_MARK!r}, so it is not part of the gate"]
    return []


def _module_marks(module: ast.Module) -> Iterator[ast.expr]:
    for node in module.body:
        is_marks = isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        )
        if is_marks and isinstance(node, ast.Assign):
            yield node.value
