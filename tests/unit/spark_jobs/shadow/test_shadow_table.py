"""The table of a comparison with another auditor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.runs.port import RunStoppedError
from spark_jobs.shadow.run import _write


def test_a_comparison_that_is_stopped_leaves_no_part_of_its_table(tmp_path: Path) -> None:
    def stopped() -> Iterator[Sequence[Mapping[str, Any]]]:
        yield []
        raise RunStoppedError("cancelled")

    with pytest.raises(RunStoppedError):
        _write(tmp_path / "shadow.parquet", stopped())
    assert list(tmp_path.iterdir()) == []
