"""``bkheal ledger list`` of more ledgers than fit into memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from auditor.cli.ledgers import ledger
from bookie.client import connect
from bookie.metadata.ledgers.ledgers import Unreadable
from bookie.metadata.port import StoreUnavailableError
from bookie.model.exit_codes import ExitCode
from bookie.model.ids import LedgerId


class Lost:
    """A client whose session is lost after some ledgers."""

    async def scan_ledgers(self, where: object, *, limit: int | None) -> AsyncIterator[Unreadable]:
        for number in range(3):
            yield Unreadable(LedgerId(number), "damaged")
        raise StoreUnavailableError("no answer")


def test_ledgers_are_printed_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any, **__: Any) -> AbstractAsyncContextManager[Lost]:
        return nullcontext(Lost())

    monkeypatch.setattr(connect, "connect", lost)
    result = CliRunner().invoke(ledger.app, ["list", "-o", "jsonl", "--metadata-uri", "zk://h:1/ledgers"])
    assert isinstance(result.exception, StoreUnavailableError)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["kind"], line["ledger_id"], line["state"]) for line in lines] == [
        ("Ledger", number, "UNREADABLE") for number in range(3)
    ]


def test_creation_times_that_no_ledger_can_have_are_refused() -> None:
    words = ["list", "--created-after", "1d", "--created-before", "2d", "--metadata-uri", "zk://h:1/ledgers"]
    assert CliRunner().invoke(ledger.app, words).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("command", [["list"], ["write", "--entries", "1"]], ids=["list", "write"])
def test_a_key_of_custom_metadata_given_twice_is_refused(command: list[str]) -> None:
    """Only the last value would count, but the list promises ledgers that meet all conditions."""
    words = [*command, "--custom", "app=one", "--custom", "app=two", "--metadata-uri", "zk://h:1/ledgers"]
    assert CliRunner().invoke(ledger.app, words).exit_code == ExitCode.USAGE
