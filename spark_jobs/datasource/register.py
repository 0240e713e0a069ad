"""Register the data sources in a Spark session."""

from __future__ import annotations

import threading
from typing import Final

from pyspark.sql import SparkSession

from spark_jobs.datasource.bookies import BookieSource
from spark_jobs.datasource.ledgers import LedgerSource
from spark_jobs.datasource.references import ReferenceSource
from spark_jobs.datasource.tasks import TaskSource

_REGISTERED: Final = "bkheal.sources.registered"
_LOCK: Final = threading.Lock()
"""Without the lock, concurrent runs could each find nothing registered, and all of them would register."""


def register(spark: SparkSession) -> None:
    """Register all data sources, once per session, because Spark warns of a repetition."""
    with _LOCK:
        if spark.conf.get(_REGISTERED, None) is None:
            for source in (LedgerSource, BookieSource, TaskSource, ReferenceSource):
                spark.dataSource.register(source)
            spark.conf.set(_REGISTERED, "true")
