"""Numbers with units on a command line."""

from __future__ import annotations

import pytest
import typer

from auditor.cli.cluster.throttle import number_of_bytes
from auditor.cli.spans import delay_s


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("0", 0), ("1048576", 1 << 20), ("50MiB", 50 << 20), ("2g", 2 << 30), ("50MB", 50_000_000), ("1 kb", 1000)],
)
def test_the_unit_decides_between_binary_and_decimal_bytes(text: str, bytes_: int) -> None:
    assert number_of_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["", "-1", "1.5MiB", "9999999GiB", "MB"])
def test_other_texts_are_not_numbers_of_bytes(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a number of bytes"):
        number_of_bytes(text)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("600", 600), ("10m", 600), ("1h", 3600)])
def test_a_delay_is_a_number_of_seconds_or_a_time_span(text: str, seconds: int) -> None:
    assert delay_s(text, 86400, "DELAY") == seconds


@pytest.mark.parametrize("text", ["-5", "86401", "2d", "ten", "1.5h", "9" * 5000])
def test_other_texts_are_not_delays(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        delay_s(text, 86400, "DELAY")
