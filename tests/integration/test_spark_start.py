"""The start of Spark leaves the handling of Ctrl-C to the caller of the process."""

from __future__ import annotations

import signal

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_spark_does_not_replace_the_handler_of_ctrl_c(spark: SparkSession) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Spark's handler of Ctrl-C is installed"
    assert spark.range(3).count() == 3
