"""Report pages in a real Chromium: their appearance in light and dark, on a desktop and on a phone.

A page must contain everything it needs: a browser sends no further request for it and logs no error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from selenium.webdriver import Chrome

from tests.integration import chromium
from tests.worlds import report as world

pytestmark = pytest.mark.integration

SITUATIONS = {
    "clean": world.CLEAN,
    "under-replicated": world.UNDER_REPLICATED,
    "no live copy": world.NO_LIVE_COPY,
    "held": world.HELD,
    "incomplete": world.INCOMPLETE,
    "waiting": world.WAITING,
    "placement": world.PLACEMENT,
    "replicas": world.REPLICAS,
    "references": world.REFERENCES,
    "many": world.MANY,
    "attack": world.ATTACK,
}


class Browser:
    """One Chromium and its logs."""

    def __init__(self, chrome: Chrome) -> None:
        self._chrome = chrome

    def open(self, page: Path, width: int = 1200, scheme: str = "light") -> None:
        """Load a page with this screen width and colour scheme."""
        self.log("browser"), self.log("performance")
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self._chrome.get(page.as_uri())

    def run(self, script: str) -> Any:
        """Return the value of a script in the page. The page's policy does not apply to scripts of WebDriver."""
        return self._chrome.execute_script(script)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return the log lines since the last call."""
        return cast("list[dict[str, Any]]", self._chrome.execute("getLog", {"type": kind})["value"])

    def requests(self) -> list[str]:
        """Return the addresses requested since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.started(**{"goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}) as chrome:
        yield Browser(chrome)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each situation, with some earlier runs."""
    made = {}
    for name, run in SITUATIONS.items():
        directory = tmp_path_factory.mktemp("reports")
        earlier = [world.at(world.UNDER_REPLICATED if day == 3 else world.CLEAN, day) for day in range(6)]
        places = world.topology(len(run.bookies), 12, zones=3) if name in ("many", "no live copy") else None
        made[name] = world.write(directory, *earlier, world.at(run, 6), places=places) / "report.html"
    return made


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_page_sends_no_requests_and_has_no_errors(browser: Browser, pages: dict[str, Path], name: str) -> None:
    for page in (pages[name], pages[name].parents[1] / "index.html"):
        browser.open(page)
        assert browser.run("return document.readyState") == "complete"
        assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
        assert browser.log("browser") == []
        assert browser.run("return getComputedStyle(document.body).maxWidth && document.styleSheets.length") == 1


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_page_fits_the_screen_and_can_be_read_on_it(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    browser.open(pages[name], width, scheme)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(OVERFLOWS) == []
    assert browser.run(PALE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_color_scheme_of_the_system(browser: Browser, pages: dict[str, Path], scheme: str) -> None:
    browser.open(pages["clean"], scheme=scheme)
    color = browser.run("return getComputedStyle(document.body).backgroundColor")
    brightness = max(int(part) for part in re.findall(r"\d+", color)[:3])
    assert brightness > 200 if scheme == "light" else brightness < 60


def test_a_user_reads_the_verdict_the_numbers_and_the_next_steps(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["no live copy"])
    text = browser.run("return document.body.innerText")
    for words in (
        "3 ledgers have entries without a live copy.",
        "These entries cannot be read or repaired until a bookie that holds them returns.",
        "bkheal ledger show 42\nbkheal ledger show 99",
        "clean → no live copy",
        "Since the last complete bookie check, 2026-01-07 03:04:47 UTC",
        "/zone-1/rack-01",
    ):
        assert words in text
    assert browser.run("return document.querySelectorAll('.chart circle').length") >= 7
    widths = browser.run(
        "return [...document.querySelectorAll('td.bar .down')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(widths) >= 3
    assert min(widths) > 0


def test_markup_in_names_is_shown_as_text(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["attack"])
    assert browser.run("return document.querySelectorAll('script, img, iframe, [onerror]').length") == 0
    assert "<script>alert(1)</script>" in browser.run("return document.body.innerText")
    assert browser.run("return [...document.links].map(a => a.protocol).filter(p => p !== 'file:')") == []


def test_the_content_security_policy_blocks_what_escaping_would_miss(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    """The test inserts markup into a page without the templates, which would escape it."""
    evil = (
        "<script>document.title='run'</script><img src='http://127.0.0.1:9/x'><p style='color:red' id='p'>p</p></main>"
    )
    page = tmp_path / "report.html"
    page.write_text(pages["clean"].read_text().replace("</main>", evil))
    browser.open(page)
    assert browser.run("return document.title") != "run"
    assert browser.run("return getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    assert len([entry for entry in browser.log("browser") if "Content Security Policy" in entry["message"]]) >= 3


def test_the_index_links_to_a_report_and_back(browser: Browser, pages: dict[str, Path]) -> None:
    index = pages["clean"].parents[1] / "index.html"
    browser.open(index)
    assert browser.run("return document.querySelectorAll('tbody tr').length") == 7
    target = browser.run("return document.querySelector('h1 a').href")
    assert target == pages["clean"].as_uri()
    browser.open(pages["clean"])
    assert browser.run("return document.querySelector('a[href$=\"index.html\"]').href") == index.as_uri()


OVERFLOWS = """
return [...document.querySelectorAll('h1, h2, p, li, pre, dd, dt, .tiles div')]
  .filter(e => e.clientWidth && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60));
"""
"""A script for texts wider than their boxes."""

PALE = """
const parse = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 || n[3] ? n : null; };
const linear = v => v <= 10 ? v / 3294.6 : ((v / 255 + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
const behind = e => e ? parse(getComputedStyle(e).backgroundColor) || behind(e.parentElement) : [255, 255, 255];
const pale = [];
for (const e of document.body.querySelectorAll('*')) {
  if (e.closest('svg') || ![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  if (!e.getClientRects().length) continue;
  const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) pale.push(e.className + ': ' + e.textContent.trim().slice(0, 40));
}
return pale;
"""
"""A script for texts with less contrast to their background than WCAG's level AA requires: 4.5 to 1."""
