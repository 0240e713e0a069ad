"""A time that is not a valid date is unknown: records of other programs may contain any number."""

from __future__ import annotations

import pytest

from bookie.model.times import rfc3339_if_known


@pytest.mark.parametrize("epoch_ms", [-(2**63), -1, 0, 253_402_300_800_000, 2**63 - 1])
def test_a_time_out_of_range_is_unknown(epoch_ms: int) -> None:
    assert rfc3339_if_known(epoch_ms) is None


def test_the_first_and_the_last_time_are_known() -> None:
    assert rfc3339_if_known(1) == "1970-01-01T00:00:00.001Z"
    assert rfc3339_if_known(253_402_300_799_000, "seconds") == "9999-12-31T23:59:59Z"
