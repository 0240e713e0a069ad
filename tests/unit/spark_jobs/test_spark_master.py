"""Which texts are addresses of a Spark master."""

from __future__ import annotations

import pytest

from spark_jobs.spark_master import master_problems


@pytest.mark.parametrize(
    "master",
    [
        "",
        "local",
        "local[*]",
        "local[4,2]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://a:7077,b:7077",
        "k8s://https://a:6443",
    ],
)
def test_masters_that_spark_knows(master: str) -> None:
    assert master_problems(master) == []


@pytest.mark.parametrize("master", ["foo", "host:7077", "local[4", "locale", "yarn-client", "spark://", " "])
def test_other_texts_are_refused(master: str) -> None:
    assert len(master_problems(master)) == 1
