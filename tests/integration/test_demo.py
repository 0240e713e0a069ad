"""The demonstration as a person meets it: its tab clicked, a bookie killed, everything healed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.integration.chromium import DEADLINE_S, browser, click, eventually, programs, run_states

__all__ = ["browser"]

pytestmark = [pytest.mark.integration, pytest.mark.spark]

TOLD_LINES_MAX = 60


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
        with urllib.request.urlopen(f"{self.base}/api/v1/status", timeout=DEADLINE_S) as answer:
            return json.load(answer)


@pytest.fixture
def demo() -> Iterator[Demo]:
    programs()
    command = [sys.executable, "-m", "auditor.cli.main", "demo", "--http-port", "0", "--ui-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("Logs and data")):
            line = process.stdout.readline()
            assert line, "".join(lines)
            lines.append(line)
            assert len(lines) < TOLD_LINES_MAX
        yield Demo(process, "".join(lines))
    finally:
        children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
            left = psutil.wait_procs(children, timeout=DEADLINE_S)[1]
            for child in left:
                child.kill()
        assert process.stdout is not None
        process.stdout.close()
    assert code == 128 + signal.SIGTERM
    assert left == []


def have_ended(states: list[str], done: int) -> bool:
    """Whether so many runs came to their end and none is under way; what a leader had to abandon is not counted."""
    return states.count("done") == done and not {"waiting", "running", "paused"} & set(states)


def test_a_person_starts_an_audit_and_sees_a_lost_bookie_healed(demo: Demo, browser: Chrome) -> None:
    tab = demo.found(r"tab Auditor +(\S+)")

    def shows_the_tab(page: Chrome) -> bool:
        page.get(f"http://{urlsplit(tab).netloc}/jobs/")  # Spark's own pages do not load themselves again
        return bool(page.find_elements(By.LINK_TEXT, "Auditor"))

    eventually(browser, shows_the_tab)
    browser.find_element(By.CSS_SELECTOR, "nav.navbar").find_element(By.LINK_TEXT, "Auditor").click()
    eventually(browser, lambda page: have_ended(run_states(page), 2))  # those of the schedules

    click(browser, "auditor-kind-bookies", "Run audit")
    eventually(browser, lambda page: have_ended(run_states(page), 3))
    eventually(browser, lambda page: "anonymous" in page.find_element(By.ID, "auditor-runs").text)
    assert demo.status()["backlog"]["ledgers"] == 0

    os.kill(int(demo.found(r"kill -9 (\d+)")), signal.SIGKILL)
    victim = demo.found(r"\(bookie (\S+)\)")
    eventually(browser, lambda page: f"lost bookies: {victim}" in page.find_element(By.TAG_NAME, "body").text)
    eventually(browser, lambda page: "bookie loss" in page.find_element(By.ID, "auditor-runs").text)
    eventually(browser, lambda page: have_ended(run_states(page), 4))

    def is_healed(_: Chrome) -> bool:
        backlog = demo.status()["backlog"]
        return bool(backlog["ledgers"]) and backlog["parked"] == {"no_live_copy": backlog["ledgers"]}

    WebDriverWait(browser, DEADLINE_S, poll_frequency=0.5).until(is_healed)
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
    with urllib.request.urlopen(f"{demo.base}/metrics", timeout=DEADLINE_S) as answer:
        metrics = answer.read().decode()
    assert 'bkheal_bookies{state="lost"} 1.0' in metrics
    assert "bkheal_time_to_detect_seconds_count 1.0" in metrics

    parent = psutil.Process(demo.process.pid)
    living = [child for child in parent.children() if child.status() != psutil.STATUS_ZOMBIE]
    (auditor,) = (child for child in living if "auditor" in child.cmdline())
    auditor.kill()
    WebDriverWait(browser, DEADLINE_S, poll_frequency=0.5, ignored_exceptions=(OSError,)).until(
        lambda _: demo.status()["process"].rpartition(":")[2] not in ("", str(auditor.pid))
    )
