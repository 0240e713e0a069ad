"""The tab in a real Chromium: its place in the navigation bar, a click on a button, and the display of the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.deadlines import STATE_S
from tests.integration.chromium import browser, click, eventually, follow, programs, run_states

__all__ = ["browser"]

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("quick_spark")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ui_url() -> Iterator[str]:
    """The address of the Spark UI in a separate process."""
    programs()
    command = [sys.executable, "-m", "tests.spark.ui_demo"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        url = child.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), url
        yield url
    finally:
        try:
            child.communicate(timeout=STATE_S)  # closes standard input, which ends the child
        finally:
            child.kill()
            child.wait(STATE_S)


def has_come_far(text: str) -> bool:
    return re.search(r"checking \d{2,}/400, about", text) is not None


def keep_picture(browser: Chrome, name: str) -> None:
    """Save a picture of the whole page in the directory in ``BKHEAL_PICTURES``, if it is set.

    ``docs/images/spark-ui-auditor.png`` is the first one.
    """
    if directory := os.environ.get("BKHEAL_PICTURES"):
        browser.set_window_size(1280, 1160)
        browser.save_screenshot(str(Path(directory) / name))


def test_a_user_starts_watches_and_cancels_audits(browser: Chrome, ui_url: str) -> None:
    browser.get(ui_url)
    follow(browser, "Auditor")
    assert urlsplit(browser.current_url).path == "/auditor/"
    assert browser.title.endswith("Auditor")
    assert run_states(browser) == []

    click(browser, "auditor-kind-bookies", "Run audit")
    eventually(browser, lambda page: len(run_states(page)) == 1)
    assert urlsplit(browser.current_url).path == "/auditor/"
    eventually(browser, lambda page: run_states(page) == ["done"])
    eventually(browser, lambda page: "clean" in page.find_element(By.ID, "auditor-runs").text)

    click(browser, "auditor-kind-replicas", "Run audit")
    rows: list[str] = []

    def is_running(page: Chrome) -> bool:
        found = page.find_elements(By.CSS_SELECTOR, "#auditor-runs tbody tr")
        rows[:] = [row.get_attribute("id") or "" for row in found]
        return len(rows) == 2 and run_states(page) == ["running", "done"]

    eventually(browser, is_running)
    running = rows[0]
    click(browser, running, "Pause")
    eventually(browser, lambda page: run_states(page) == ["paused", "done"])
    click(browser, running, "Resume")
    eventually(browser, lambda page: run_states(page) == ["running", "done"])
    eventually(browser, lambda page: has_come_far(page.find_element(By.ID, running).text))
    keep_picture(browser, "spark-ui-running.png")
    click(browser, running, "Cancel")
    eventually(browser, lambda page: run_states(page) == ["cancelled", "done"])
    eventually(browser, lambda page: "cancelled by anonymous" in page.find_element(By.ID, "auditor-runs").text)
    keep_picture(browser, "spark-ui-done.png")

    log = browser.get_log("browser")  # type: ignore[no-untyped-call]  # selenium has no type for it
    assert [line for line in log if line["level"] == "SEVERE"] == []
    screen = {"width": 360, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('table')].filter(e => e.getBoundingClientRect().right > innerWidth)"
        ".map(e => [e.id, getComputedStyle(e.parentElement).overflowX])"
    )
    assert ["auditor-runs", "auto"] in beyond, "the table is not wider than the window, or cannot be scrolled"
    assert {scrolling for _, scrolling in beyond} == {"auto"}
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    follow(browser, "Jobs")
    eventually(browser, lambda page: "Completed Jobs" in page.page_source)
