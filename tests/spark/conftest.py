"""Fixtures that several files of this ring use, in addition to the session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.lent_session import lend_session


@pytest.fixture
def running(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands in this process use the existing Spark session."""

    lend_session(monkeypatch, spark)
