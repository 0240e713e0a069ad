"""Who may press a button of the tab: one test for each rule, with a request that the other rules allow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_jobs.ui.request import TabRequest
from spark_jobs.ui.rules import BODY_MAX_BYTES, permission_refusal, refusal, safe_base, safe_link
from spark_jobs.ui.settings import TabSettings

TOKEN = "0123456789abcdef0123456789abcdef"
SETTINGS = TabSettings(is_trigger_enabled=True)
GOOD = TabRequest(
    "POST",
    "/v1/runs",
    user="ann",
    may_modify=True,
    length=60,
    headers={"host": "driver:4040", "sec-fetch-site": "same-origin"},
    form={"token": TOKEN, "kind": "bookies"},
)


def status(request: TabRequest, settings: TabSettings = SETTINGS) -> int:
    found = refusal(request, settings, TOKEN)
    return 0 if found is None else found.status


def with_headers(**headers: str) -> TabRequest:
    """Return the allowed request with exactly these headers."""
    return replace(GOOD, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_logged_in_user_on_our_own_page_may_act() -> None:
    assert status(GOOD) == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "post"])
def test_only_post_requests_act(method: str) -> None:
    assert status(replace(GOOD, method=method)) == 405


@pytest.mark.parametrize("name", ["sec-purpose", "purpose", "x-moz"])
def test_a_prefetch_does_not_act(name: str) -> None:
    assert status(replace(GOOD, headers={**GOOD.headers, name: "prefetch"})) == 403


def test_without_the_switch_no_user_may_act() -> None:
    assert status(GOOD, TabSettings(is_anonymous_allowed=True)) == 403


def test_sparks_modify_acl_is_enforced() -> None:
    assert status(replace(GOOD, may_modify=False)) == 403


def test_an_anonymous_user_may_not_act_even_if_sparks_acl_permits_it() -> None:
    assert status(replace(GOOD, user="")) == 403


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:4040", 0),
        ("127.0.0.1:4040", 0),
        ("[::1]:4040", 0),
        ("10.1.2.3", 0),
        ("ui.example.org", 0),
        ("UI.example.org:80", 0),
        ("proxy.example.org", 0),
        ("rebound.example.com:4040", 403),
        ("localhost.example.com", 403),
        ("127.0.0.1.example.com", 403),
        ("a@localhost", 403),
        ("", 403),
    ],
)
def test_anonymous_users_may_act_only_under_trusted_hosts(host: str, expected: int) -> None:
    settings = replace(
        SETTINGS,
        is_anonymous_allowed=True,
        allowed_hosts=("ui.example.org",),
        proxy_base="https://proxy.example.org/spark",
    )
    request = replace(GOOD, user="", headers={"host": host, "sec-fetch-site": "same-origin"})
    assert status(request, settings) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": "d:4040"}, 0),  # not a browser: only the token counts
        ({"host": "d:4040", "origin": "http://d:4040"}, 0),
        ({"host": "D:4040", "origin": "http://d:4040"}, 0),
        ({"host": "d:4040", "origin": "https://front", "x_forwarded_host": "front, inner"}, 0),
        ({"host": "d:4040", "origin": "https://front"}, 403),
        ({"host": "d:4040", "origin": "http://d:8080"}, 403),
        ({"host": "d:4040", "origin": "null"}, 403),
        ({"host": "d:4040", "origin": "http://[bad"}, 403),
        ({"host": "d:4040", "referer": "http://d:4040/auditor/"}, 0),
        ({"host": "d:4040", "referer": "http://evil/auditor/"}, 403),
        ({"host": "d:4040", "origin": "https://front", "sec_fetch_site": "same-origin"}, 0),  # behind a proxy
        ({"host": "d:4040", "origin": "http://d:4040", "sec_fetch_site": "cross-site"}, 403),
        ({"host": "d:4040", "sec_fetch_site": "same-site"}, 403),
    ],
)
def test_only_requests_from_our_own_pages_act(headers: dict[str, str], expected: int) -> None:
    assert status(with_headers(**headers)) == expected


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN.upper(), TOKEN + "0", "\udcff", "ü" * 32])
def test_the_token_must_match(token: str) -> None:
    assert status(replace(GOOD, form={"token": token, "kind": "bookies"})) == 403


def test_a_program_sends_the_token_in_a_header() -> None:
    assert status(replace(GOOD, form={}, headers={"host": "d", "x-csrf-token": TOKEN})) == 0


def test_the_size_of_a_body_is_checked_before_it_is_read() -> None:
    assert status(replace(GOOD, length=BODY_MAX_BYTES)) == 0
    assert status(replace(GOOD, length=BODY_MAX_BYTES + 1)) == 413
    assert status(with_headers(host="driver:4040", transfer_encoding="chunked")) == 411


def test_a_refused_user_is_shown_what_to_configure() -> None:
    for request, settings, word in (
        (GOOD, TabSettings(), "ui_trigger_enabled"),
        (replace(GOOD, user=""), SETTINGS, "ui_allow_anonymous"),
        (replace(GOOD, may_modify=False), SETTINGS, "spark.modify.acls"),
    ):
        found = permission_refusal(request, settings)
        assert found is not None
        assert word in found.text


@pytest.mark.parametrize(
    ("reported", "configured", "expected"),
    [
        ("", "", ""),
        ("/proxy/app-1", "", "/proxy/app-1"),
        ("/a", "/spark/", "/spark"),
        ("", "https://front.example.org/spark", "https://front.example.org/spark"),
        ("javascript:alert(1)", "", ""),
        ('/"><script>', "", ""),
        ("//evil.example.com", "", ""),
        ("/a b", "", ""),
    ],
)
def test_a_base_is_a_path_or_a_url(reported: str, configured: str, expected: str) -> None:
    assert safe_base(TabRequest(base=reported), TabSettings(proxy_base=configured)) == expected


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        ("http://auditor:8080/reports/x/index.html", True),
        ("https://auditor/reports/x", True),
        ("/reports/x", True),
        ("//evil.example.com/x", False),
        ("/\\evil.example.com", False),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("http://a/\nx", False),
        ("", False),
    ],
)
def test_only_urls_become_links(url: str, is_link: bool) -> None:
    assert safe_link(url) == (url if is_link else "")
