"""Links to reports use an address that a browser can reach."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from auditor.service.addresses import report_base_url
from auditor.service.settings import ServiceSettings

HOST = socket.gethostname()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "http://127.0.0.1:8080/reports"),
        ({"http_host": "0.0.0.0"}, f"http://{HOST}:8080/reports"),
        ({"http_host": "::"}, f"http://{HOST}:8080/reports"),
        ({"http_host": "fd00::1"}, "http://[fd00::1]:8080/reports"),
        ({"http_port": 0}, ""),
        ({"http_host": "0.0.0.0", "public_url": "https://bkheal.example.org"}, "https://bkheal.example.org/reports"),
        ({"public_url": "https://example.org/bkheal/"}, "https://example.org/bkheal/reports"),
        ({"http_port": 0, "public_url": "http://bkheal:80"}, "http://bkheal:80/reports"),
    ],
)
def test_links_contain_an_address_that_a_browser_can_use(settings: dict[str, Any], expected: str) -> None:
    assert report_base_url(ServiceSettings(metadata_uri="zk://h:2181/ledgers", **settings)) == expected
