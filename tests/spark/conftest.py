"""What several files of this ring need beside the session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from spark_jobs.one_shot import run as one_shot


@pytest.fixture
def running(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process use the session that is there."""

    @contextmanager
    def session(settings: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(one_shot, "spark_session", session)
