"""The real Chromium of this machine, for tests that see a page as a user does."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException, TimeoutException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from bookie.runtime.ports import free_loopback_port
from tests.deadlines import PROGRAM_S
from tests.required import missing

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,960",
)
"""Options with which Chromium loads only the requested page, and without its sandbox, which fails in a container."""


def programs() -> tuple[str, str]:
    """Return the paths of Chromium and its driver. Without them the test is skipped, unless they are required."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        absent = "chromium" if chromium is None else "chromedriver"
        missing("browser", f"{absent} is not on the path; on Debian: apt-get install chromium chromium-driver")
    return chromium, driver


@contextlib.contextmanager
def started(**capabilities: object) -> Iterator[Chrome]:
    """Run a fresh Chromium without history during the block. The capabilities are WebDriver's.

    Its driver listens on a port that this process chooses. By default the driver chooses a port that is free for IPv6,
    and exits if the same port is in use for IPv4.
    """
    chromium, driver = programs()
    options = ChromeOptions()
    options.binary_location = chromium
    for name, value in capabilities.items():
        options.set_capability(name, value)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = Service(executable_path=driver, port=free_loopback_port(random.Random()))
        made = Chrome(options=options, service=service)
        try:
            made.set_page_load_timeout(PROGRAM_S)
            yield made
        finally:
            made.quit()


@pytest.fixture
def browser() -> Iterator[Chrome]:
    """A fresh Chromium for one test."""
    with started() as made:
        yield made


def eventually(browser: Chrome, condition: Callable[[Chrome], bool]) -> None:
    """Wait for a condition on a page. The page reloads itself, so elements come and go."""
    gone = (NoSuchElementException, StaleElementReferenceException)
    try:
        WebDriverWait(browser, PROGRAM_S, poll_frequency=0.1, ignored_exceptions=gone).until(condition)
    except TimeoutException:
        shown = browser.find_element(By.TAG_NAME, "body").text
        pytest.fail(f"not seen within {PROGRAM_S} s; {browser.current_url} shows:\n{shown}")


def click(browser: Chrome, row: str, label: str) -> None:
    """Press a button in a row of a table."""

    def press(found: Chrome) -> bool:
        button: WebElement = found.find_element(By.CSS_SELECTOR, f"#{row}").find_element(
            By.XPATH, f".//button[text()='{label}']"
        )
        button.click()
        return True

    eventually(browser, press)


def follow(browser: Chrome, link: str) -> None:
    """Click a link in the navigation bar once it is shown: the page reloads itself, and a narrow one hides the bar."""

    def press(found: Chrome) -> bool:
        found.find_element(By.CSS_SELECTOR, "nav.navbar").find_element(By.LINK_TEXT, link).click()
        return True

    eventually(browser, press)


def run_states(browser: Chrome) -> list[str]:
    """Return the first words of each run's state, newest first."""
    cells = browser.find_elements(By.CSS_SELECTOR, "#auditor-runs tbody tr td:nth-child(3)")
    return [cell.text.split(":")[0] for cell in cells]
