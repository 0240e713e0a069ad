"""The command line, as an operator uses it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

DEADLINE_S = 100.0
"""Never reached where the test passes."""


async def bkheal(uri: str, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run one command as an operator does; its JSON document, if it was to have one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BKHEAL_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "auditor.cli.main", *arguments, "--output", "json"),
        env={**kept, "BKHEAL_METADATA_URI": uri},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        out, err = await process.communicate()
    assert process.returncode == code, (arguments, out.decode(), err.decode())
    document = json.loads(out) if out else {"error": err.decode()}
    assert isinstance(document, dict)
    return document
