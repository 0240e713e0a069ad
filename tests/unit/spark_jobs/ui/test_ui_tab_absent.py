"""If the Spark UI has no place for a tab, there is one warning and no other effect."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkAttributeError

from spark_jobs.ui.tab import AttachedTab, attach_tab
from tests.spark.ui_twin import AuditorTwin


class Connect:
    """A session of Spark Connect."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802  Spark's name
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})


class Without:
    """A classic session without a UI, or one that raises ``error`` on access to its UI."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.sparkContext = self._jsc = self

    def sc(self) -> Without:
        return self

    def ui(self) -> Without:
        return self

    def isDefined(self) -> bool:  # noqa: N802  Scala's name
        if self._error is not None:
            raise self._error
        return False


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (Connect(), "Spark Connect"),
        (Without(), "spark.ui.enabled=false"),
        (Without(Py4JError("the JVM is gone")), "the JVM is gone"),
        (Without(ConnectionRefusedError(111, "refused")), "refused"),
    ],
)
def test_a_tab_that_cannot_be_attached_causes_one_warning(
    session: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tab = attach_tab(session, AuditorTwin(session))
    assert (tab.url, reason in tab.why_not) == ("", True)
    tab.detach()
    (line,) = caplog.records
    assert (line.levelno, line.getMessage()) == (logging.WARNING, "no auditor tab in the Spark UI")


class EndedTab:
    """The Java side of a tab whose JVM has ended."""

    def detach(self) -> None:
        raise Py4JError("the JVM is gone")


def test_detaching_from_a_stopped_spark_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    tab = AttachedTab("http://127.0.0.1:4040/auditor/", "", EndedTab())
    tab.detach()
    tab.detach()
    assert tab.url == ""
    assert [line.getMessage() for line in caplog.records] == ["auditor tab not detached"]
