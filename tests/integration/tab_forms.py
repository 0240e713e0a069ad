"""The forms of the tab in the Spark UI, sent as a browser does: only with the values of the page."""

from __future__ import annotations

import html
import http.client
import re
from urllib.parse import urlencode, urlsplit

from tests.deadlines import STATE_S

PAGE = "/auditor/"
_FORM = re.compile(r'<form method="post" action="([^"]+)"[^>]*>(.*?)</form>', re.DOTALL)
_FIELD = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


def forms_of(port: int) -> list[dict[str, str]]:
    """Return the forms of the page: their hidden fields, and the address as ``action``; none if there is no page."""
    try:
        status, page, _ = _ask(port, "GET", PAGE, None)
    except (OSError, http.client.HTTPException):
        return []
    found = _FORM.findall(page) if status == 200 else []
    return [
        {"action": html.unescape(action)} | {name: html.unescape(value) for name, value in _FIELD.findall(inside)}
        for action, inside in found
    ]


def post(port: int, path: str, form: dict[str, str]) -> tuple[int, str]:
    """Send a form, and return the status and the path of the redirect."""
    status, _, location = _ask(port, "POST", path, urlencode(form))
    return status, urlsplit(location).path


def _ask(port: int, method: str, path: str, body: str | None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STATE_S)
    headers = {} if body is None else {"Content-Type": "application/x-www-form-urlencoded"}
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.getheader("Location", "")
    finally:
        connection.close()
