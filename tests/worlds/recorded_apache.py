"""Records of a real Apache cluster (``python -m tests.apache.record``), for tests without one."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent.parent / "data" / "apache"


@cache
def rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of one recorded file."""
    found: list[dict[str, Any]] = json.loads((_DATA / f"{name}.json").read_text())["rows"]
    return found


@cache
def nodes() -> dict[str, bytes]:
    """Return every node of a cluster, by path."""
    return {row["path"]: bytes.fromhex(row["data"]) for row in rows("nodes")}
