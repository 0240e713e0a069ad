"""Host names that can be looked up, and names whose lookup raises an error other than ``OSError``."""

from __future__ import annotations

import pytest

from bookie.model.hosts import host_problems, is_host, is_port


@pytest.mark.parametrize(
    "name",
    ["zk1", "zk.example.com.", "x" * 63, "10.0.0.1", "::1", "[::1]", "fe80::1%eth0", "b\u00fccher.example", "a_b"],
)
def test_names_and_addresses_are_hosts(name: str) -> None:
    assert is_host(name)
    assert list(host_problems("host", name)) == []


@pytest.mark.parametrize(
    "name", ["", ".", "zk..example.com", ".zk", "x" * 64, f"a.{'x' * 64}.b", "\u00df" * 70, "a\0b", "a\nb", "\udcff"]
)
def test_invalid_names_are_not_hosts(name: str) -> None:
    assert not is_host(name)


def test_a_setting_may_be_empty_but_not_an_invalid_host() -> None:
    assert [*host_problems("host", None), *host_problems("host", "")] == []
    assert list(host_problems("http_host", "a..b")) == ["http_host = 'a..b' is not a host name or address"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("65535", True), ("0", False), ("65536", False), ("", False), ("\u00b2", False), ("1" * 5000, False)],
)
def test_ports_are_accepted_or_refused(text: str, expected: bool) -> None:
    assert is_port(text) is expected
