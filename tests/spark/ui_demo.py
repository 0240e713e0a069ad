"""Run a Spark session with the tab and the twin of an auditor until stdin ends; print the UI's address."""

from __future__ import annotations

import sys

from spark_jobs.session import SessionSettings, spark_session
from spark_jobs.ui.settings import TabSettings
from spark_jobs.ui.tab import attach_tab
from tests.spark.ui_twin import AuditorTwin


def main() -> None:
    settings = SessionSettings(master="local[2]", is_ui_enabled=True, extra=(("spark.ui.port", "0"),))
    with spark_session(settings) as session:
        twin = AuditorTwin(session, "/environment/")
        tab = attach_tab(session, twin, TabSettings(is_trigger_enabled=True, is_anonymous_allowed=True))
        print(session.sparkContext.uiWebUrl if tab.url else tab.why_not, flush=True)
        sys.stdin.read()
        tab.detach()
        for run in twin.snapshot().runs:
            twin.cancel(run.record.run_id, "", "")


if __name__ == "__main__":
    main()
