"""Whether a Spark session still answers, for a service that keeps one for weeks."""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession


def is_alive(spark: SparkSession) -> bool:
    """Whether the driver's JVM is there and its context not stopped. Blocks for a call into the JVM."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError):  # no answer; no connection; stopped by this side
        return False
