"""One-shot audits in this process use the Spark session that is there: starting one takes seconds."""

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
    """Use ``spark`` wherever a one-shot audit starts a session; ``started`` is called when it does."""

    @contextmanager
    def session(settings: SessionSettings, beside: Callable[[], object]) -> Iterator[SparkSession]:
        beside()
        started()
        yield spark

    monkeypatch.setattr(one_shot, "spark_session", session)
