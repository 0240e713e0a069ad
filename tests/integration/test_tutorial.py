"""The Python blocks of the tutorial run unchanged, one after another, on a real cluster."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest

from bookie.embedded.cluster import EmbeddedCluster

pytestmark = pytest.mark.integration

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TUTORIAL.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_every_block_of_the_tutorial_runs(shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BKHEAL_METADATA_URI", shared_cluster.metadata_uri)
    assert len(BLOCKS) >= 8
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        code = compile(block, f"tutorial.md block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
