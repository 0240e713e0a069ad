"""The status page in a real Chromium: its style is allowed, it runs no script, and its links work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from auditor.api.http.status_page import status_page
from bookie.metadata.bookies.maintenance import MaintenanceWindow
from bookie.model.ids import BookieId
from bookie.model.run import RunCause, RunKind, RunRecord, RunState
from tests.integration.chromium import browser
from tests.worlds import report
from tests.worlds.api import EVIL, NOW_MS, TwinControl, running

__all__ = ["browser"]

pytestmark = pytest.mark.integration


async def test_a_user_reads_the_status_and_follows_a_link_from_a_run_to_its_report(
    browser: Chrome, tmp_path: Path
) -> None:
    async with running(tmp_path) as world:
        run_id = await world.start()
        await world.control.finish(run_id)
        await world.start(RunKind.REPLICAS)
        summary = replace(report.NO_LIVE_COPY, run_id=run_id)
        report.write(tmp_path / "reports", summary)
        world.control.windows = (
            MaintenanceWindow("rack:/r1", (BookieId("a:3181"),), "me", NOW_MS, NOW_MS + 3_600_000),
        )

        def read() -> None:
            browser.get(f"{world.url}/status")
            text = browser.find_element(By.TAG_NAME, "body").text
            for words in (run_id, "rack:/r1", "critical", f"d{EVIL}"):
                assert words in text, text
            assert browser.find_elements(By.TAG_NAME, "script") == [], "a name became markup"
            assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            styled = "return getComputedStyle(document.querySelector('table')).borderCollapse"
            assert browser.execute_script(styled) == "collapse", "the policy blocks the page's own style"
            assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
            browser.find_element(By.LINK_TEXT, "findings").click()
            assert browser.current_url == f"{world.url}/reports/{run_id}/"
            assert "No live copy" in browser.find_element(By.TAG_NAME, "body").text

        await asyncio.to_thread(read)


async def test_the_page_fits_a_narrow_screen_with_scrollable_tables(browser: Chrome, tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        run_id = await world.start()
        await world.control.finish(run_id)

        def read() -> None:
            screen = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            browser.get(f"{world.url}/status")
            assert browser.execute_script("return innerWidth") == 390
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
            heading = browser.find_element(By.TAG_NAME, "h1")
            assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", heading)
            hidden = "return [...document.querySelectorAll('table')].filter(e => e.getBoundingClientRect().right > 390"
            hidden += " && getComputedStyle(e.parentElement).overflowX != 'auto').length"
            assert browser.execute_script(hidden) == 0, "a wide table cannot be scrolled"

        await asyncio.to_thread(read)


def test_a_long_name_is_wrapped_and_not_cut_off(browser: Chrome, tmp_path: Path) -> None:
    owner = "bookie-0.bookies.bookkeeper.svc.cluster.local:3181"
    run = RunRecord("20261201T101500Z-0a1b2c", RunKind.REFERENCES, RunCause.BOOKIE_LOSS, owner, "h:1")
    run = replace(run, state=RunState.CANCELLED, is_dry_run=True, started_ms=NOW_MS - 200_000, finished_ms=NOW_MS - 1)
    run = replace(run, detail="no session from zk+hierarchical://zookeeper-0.zookeeper:2181/ledgers")
    file = tmp_path / "status.html"
    file.write_text(status_page(TwinControl().status(), [run] * 20, NOW_MS).html)
    screen = {"width": 1100, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(file.as_uri())
    assert owner in browser.find_element(By.TAG_NAME, "body").text
    cut = "return [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.execute_script(cut) == 0
