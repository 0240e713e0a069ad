"""How often another process is checked while a test or a command waits for it."""

from __future__ import annotations

import pytest

from bookie.embedded.process import POLL_INTERVAL_S, pause_s


@pytest.mark.parametrize(
    ("waited_s", "expected_s"), [(0, POLL_INTERVAL_S), (0.1, POLL_INTERVAL_S), (2, 0.1), (4, 0.2), (600, 0.25)]
)
def test_the_pause_between_checks_grows_with_the_time_waited_up_to_a_quarter_second(
    waited_s: float, expected_s: float
) -> None:
    assert pause_s(waited_s) == pytest.approx(expected_s)
