"""The demo as a user sees it: clicks in its tab, a killed bookie, and a complete repair."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.deadlines import PROGRAM_S, STATE_S
from tests.integration.chromium import browser, click, eventually, follow, run_states
from tests.integration.tab_forms import forms_of

__all__ = ["browser"]

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

OUTPUT_LINES_MAX = 60


@dataclass
class Demo:
    process: subprocess.Popen[str]
    text: str

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.text, re.MULTILINE)
        assert match is not None, self.text
        return match[1]

    @property
    def base(self) -> str:
        return self.found(r"^auditor ready on (http://\S+)")

    def status(self) -> Any:
        with urllib.request.urlopen(f"{self.base}/api/v1/status", timeout=STATE_S) as answer:
            return json.load(answer)

    def kill_bookie(self) -> str:
        """Kill a bookie as the demo's text proposes, and return the bookie's id."""
        os.kill(int(self.found(r"kill -9 (\d+)")), signal.SIGKILL)
        return self.found(r"\(bookie (\S+)\)")

    def kill_auditor(self) -> None:
        """Kill the auditor, and wait until another auditor process answers in its place."""
        parent = psutil.Process(self.process.pid)
        living = [child for child in parent.children() if child.status() != psutil.STATUS_ZOMBIE]
        (auditor,) = (child for child in living if "auditor" in child.cmdline())
        auditor.kill()
        self.until(lambda: self.status()["process"].rpartition(":")[2] not in ("", str(auditor.pid)))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition. A restarted auditor does not answer for a while."""
        deadline_s = time.monotonic() + PROGRAM_S
        while not self._holds(holds):
            assert time.monotonic() < deadline_s, self.text
            time.sleep(0.1)  # between two attempts

    def _holds(self, holds: Callable[[], bool]) -> bool:
        try:
            return holds()
        except OSError:
            return False


@pytest.fixture
def demo() -> Iterator[Demo]:
    command = [sys.executable, "-m", "auditor.cli.main", "demo", "--http-port", "0", "--ui-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("Logs and data")):
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
            assert len(lines) < OUTPUT_LINES_MAX
        yield Demo(process, "".join(lines))
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            code = process.wait(PROGRAM_S)
        finally:
            process.kill()
            left = psutil.wait_procs(children, timeout=STATE_S)[1]
            for child in left:
                child.kill()
        assert process.stdout is not None
        process.stdout.close()
    assert code == 128 + signal.SIGTERM
    assert left == []


def have_ended(states: list[str], done: int) -> bool:
    """Return whether at least ``done`` runs have ended and none is under way.

    There may be more runs: the demo has short sessions, and audits the loss of a bookie that a busy machine stalls.
    """
    return states.count("done") >= done and not {"waiting", "running", "paused"} & set(states)


def test_the_demo_runs_the_service_restarts_ended_processes_and_cleans_up(demo: Demo) -> None:
    """The fixture checks at its end that the demo and all of its processes end."""
    demo.until(lambda: demo.status()["is_leader"] and len(demo.status()["bookies"]["writable"]) == 6)
    tab = urlsplit(demo.found(r"tab Auditor +(\S+)"))
    assert tab.port is not None
    demo.until(lambda: "bookies" in [form.get("kind") for form in forms_of(tab.port or 0)])
    demo.kill_auditor()
    victim = demo.kill_bookie()
    demo.until(lambda: victim in [lost["bookie_id"] for lost in demo.status()["bookies"]["lost"]])


@pytest.mark.long
def test_a_user_starts_an_audit_and_sees_the_repair_of_a_lost_bookie(demo: Demo, browser: Chrome) -> None:
    """This test is long; the short suite covers its parts.

    These are the demo (above), the tab in a browser (``test_ui_browser.py``), and the repair after the kill of a bookie
    by the same processes (``test_operator_guide.py``).
    """
    tab = demo.found(r"tab Auditor +(\S+)")

    def shows_the_tab(page: Chrome) -> bool:
        page.get(f"http://{urlsplit(tab).netloc}/jobs/")  # Spark's own pages do not reload themselves
        return bool(page.find_elements(By.LINK_TEXT, "Auditor"))

    eventually(browser, shows_the_tab)
    follow(browser, "Auditor")
    eventually(browser, lambda page: have_ended(run_states(page), 2))  # the runs of the schedules

    click(browser, "auditor-kind-bookies", "Run audit")
    eventually(browser, lambda page: have_ended(run_states(page), 3))
    eventually(browser, lambda page: "anonymous" in page.find_element(By.ID, "auditor-runs").text)
    demo.until(lambda: demo.status()["backlog"]["ledgers"] == 0)

    victim = demo.kill_bookie()
    eventually(browser, lambda page: f"Lost bookie: {victim}" in page.find_element(By.TAG_NAME, "body").text)
    eventually(browser, lambda page: f"loss of {victim}" in page.find_element(By.ID, "auditor-runs").text)
    eventually(browser, lambda page: have_ended(run_states(page), 4))

    def is_healed() -> bool:
        backlog = demo.status()["backlog"]
        return bool(backlog["ledgers"]) and backlog["parked"] == {"no_live_copy": backlog["ledgers"]}

    demo.until(is_healed)
    reports: set[str | None] = set()

    def is_linked(page: Chrome) -> bool:
        links = page.find_elements(By.CSS_SELECTOR, "#auditor-runs tbody tr:first-child a")
        reports.update([link.get_attribute("href") for link in links])
        return bool(reports)

    eventually(browser, is_linked)
    (report,) = reports
    assert report is not None
    browser.get(report)
    text = browser.find_element(By.TAG_NAME, "body").text.lower()
    assert "no live copy" in text, (report, text)
    with urllib.request.urlopen(f"{demo.base}/metrics", timeout=STATE_S) as answer:
        metrics = answer.read().decode()
    assert re.search(r'^bkheal_bookies{state="lost"} [1-9]', metrics, re.MULTILINE)
    assert re.search(r"^bkheal_time_to_detect_seconds_count [1-9]", metrics, re.MULTILINE)
