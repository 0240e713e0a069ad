"""The table of values in the chart's README, made from the comments in values.yaml.

``python -m tests.chart.values_table`` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.chart.rendering import CHART

README: Final = CHART / "README.md"
BEGIN: Final = "<!-- values: begin -->"
END: Final = "<!-- values: end -->"
_KEY: Final = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z0-9_]+):")
_SHOWN_MAX: Final = 60


@dataclass(frozen=True)
class Documented:
    """A value whose comment begins with ``# --``."""

    path: str
    text: str
    default: Any


def documented(path: Path = CHART / "values.yaml") -> Iterator[Documented]:
    """The documented values, in the order of the file."""
    values = yaml.safe_load(path.read_text())
    at: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in path.read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment = [text.removeprefix("# -- ")] if text.startswith("# -- ") else [*comment, text.lstrip("# ")]
            if not text.startswith("# -- ") and len(comment) == 1:
                comment = []
            continue
        if found := _KEY.match(line):
            indent = len(found["indent"])
            at = [*((depth, key) for depth, key in at if depth < indent), (indent, found["key"])]
            if comment:
                names = [key for _, key in at]
                yield Documented(".".join(names), " ".join(comment), value_at(values, names))
        comment = []


def value_at(values: Any, names: list[str]) -> Any:
    for name in names:
        values = values[name]
    return values


def table() -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| `{each.path}` | {_shown(each.default)} | {each.text} |" for each in documented())])


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) <= _SHOWN_MAX else "see values.yaml"


def with_table(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
