"""A hang of Spark's process, as of a real Java process after SIGSTOP."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bookie.embedded.process import ManagedProcess
from tests.deadlines import STATE_S

pytestmark = pytest.mark.integration


async def test_a_hanging_spark_is_detected_and_the_process_exits_with_its_code(tmp_path: Path) -> None:
    """The test also shows that another session uses the Java process of a stopped one."""
    child = ManagedProcess.start(
        "hung", [sys.executable, "-m", "tests.integration.hung_spark_child"], log_path=tmp_path / "log"
    )
    async with child:
        await child.wait_for_line("^java ", STATE_S)
        await child.wait_for_line("^started again$", STATE_S)
        await child.wait_for_line("^gone True, run failed, java -9$", STATE_S)
        assert await child.wait(STATE_S) == 70
