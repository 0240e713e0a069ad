"""Schemathesis tries every operation of a running service, using only ``/openapi.json``, and finds no difference.

It sends valid and invalid requests in all phases and with all of its checks: no answer contradicts the description, no
invalid request is accepted, no valid one is refused, and no operation succeeds without its token.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import pytest

from bookie.runtime.access.tokens import Role
from tests.deadlines import PROGRAM_S
from tests.worlds.api import running

pytestmark = [pytest.mark.integration, pytest.mark.needs("schemathesis")]

_CONFIGURATION: Final = """
[checks.positive_data_acceptance]
# 422: each part of the request is valid, and together they exclude each other, which a schema cannot express
# 414: each part of the request is valid, and together they are too long for its first line
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "414", "422", "503"]
"""


async def explore(directory: Path, examples: int, *options: str, is_open: bool) -> None:
    """Run the program on an API, and fail with its output if it found a difference.

    Args:
        directory: for its files.
        examples: number of examples for each operation and phase.
        options: further options of the program.
        is_open: whether the API requires no token, and none is sent; else every operation requires one.
    """
    (directory / "schemathesis.toml").write_text(_CONFIGURATION)
    async with running(
        directory, in_flight_max=1_000, allow_anonymous_read=is_open, allow_anonymous_write=is_open
    ) as world:
        token = world.tokens[max(Role, key=list(Role).index)].token
        report = directory / "reports" / await world.start()
        report.mkdir(parents=True)
        (report / "summary.json").write_text("{}")
        credentials = [] if is_open else ["--header", f"Authorization: Bearer {token}"]
        source = f"{world.url}/openapi.json"
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "schemathesis.cli", "run", source, "--checks", "all", "--no-color",
            "--max-examples", str(examples), "--suppress-health-check", "all", *credentials, *options,
            cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            printed, _ = await asyncio.wait_for(program.communicate(), PROGRAM_S * 5)
        finally:
            if program.returncode is None:
                program.kill()
    if program.returncode != 0:
        pytest.fail(printed.decode(), pytrace=False)


async def test_an_api_with_tokens_matches_its_schema(tmp_path: Path) -> None:
    await explore(tmp_path, 2, "--generation-deterministic", is_open=False)


@pytest.mark.long
async def test_an_api_without_tokens_matches_its_schema(tmp_path: Path) -> None:
    await explore(tmp_path, 2, "--generation-deterministic", "--phases", "fuzzing,stateful", is_open=True)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_open", [False, True], ids=["with tokens", "open"])
async def test_new_examples_find_no_difference_from_the_schema(tmp_path: Path, is_open: bool) -> None:
    await explore(tmp_path, 50, "--generation-database", "none", is_open=is_open)
