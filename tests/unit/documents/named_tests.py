"""Files and tests that a document names: `path` or `path::test`, in backquotes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
_NAMED = re.compile(r"`((?:bookie|replicator|spark_jobs|tests)/[\w/]+\.py)(?:::(\w+))?`")


def named_in(text: str) -> list[tuple[str, str]]:
    """Return each path with its test, or with an empty string, in the order of the text."""
    return _NAMED.findall(text)


def missing(named: list[tuple[str, str]]) -> list[str]:
    """Return the paths and tests that do not exist in the tree."""
    return [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).is_file() or (test and f"def {test}(" not in (ROOT / path).read_text())
    ]
