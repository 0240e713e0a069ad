from __future__ import annotations

import pytest

from bookie.model.ids import LEDGER_ID_MAX, InvalidIdError, bookie_id, ledger_id


@pytest.mark.parametrize("text", ["bk1:3181", "10.0.0.1:3181", "bookie-0.bk.svc", "a_b", "@[\\]^;<=>?", "9"])
def test_every_character_that_apache_accepts_is_accepted(text: str) -> None:
    assert bookie_id(text) == text


@pytest.mark.parametrize("text", ["", "a/b", "a b", "bk1\n", "büchse", "a`b", "readonly", "ReadOnly", "a,b", "a+b"])
def test_ids_that_apache_refuses_are_refused_with_the_rule(text: str) -> None:
    with pytest.raises(InvalidIdError, match="not a bookie id"):
        bookie_id(text)


@pytest.mark.parametrize("value", [0, 2147483647, LEDGER_ID_MAX])
def test_ledger_ids_are_63_bits(value: int) -> None:
    assert ledger_id(value) == value


@pytest.mark.parametrize("value", [-1, LEDGER_ID_MAX + 1])
def test_other_ledger_ids_are_refused(value: int) -> None:
    with pytest.raises(InvalidIdError, match="not a ledger id"):
        ledger_id(value)
