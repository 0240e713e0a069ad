"""One-shot audits in this process use the existing Spark session, because a start takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from spark_jobs.one_shot import run as one_shot
from spark_jobs.session import SessionSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lend_session(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, started: Callable[[], object] = lambda: None
) -> None:
    """Use ``spark`` instead of the session started by a one-shot audit, and call ``started`` at its start."""

    @contextmanager
    def session(settings: SessionSettings) -> Iterator[Callable[[], SparkSession]]:
        started()
        yield lambda: spark

    monkeypatch.setattr(one_shot, "starting_session", session)
