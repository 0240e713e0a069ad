"""One small Spark session for the ring; starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_jobs.datasource.register import register
from spark_jobs.session import SessionSettings, spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores, the UI on, and the data sources registered."""
    settings = SessionSettings(
        master="local[2]", shuffle_partitions=2, is_ui_enabled=True, extra=(("spark.ui.port", "0"),)
    )
    with spark_session(settings) as session:
        register(session)
        yield session
