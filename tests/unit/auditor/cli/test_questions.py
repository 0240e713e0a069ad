"""A signal ends a prompt of a command at once, with 128 + signal, and the command cleans up. No answer means no."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from auditor.cli.changing import confirm, confirm_ledgers
from auditor.cli.ledgers import ledger, log
from auditor.cli.main import app
from auditor.cli.running import run
from bookie.metadata.access import DEFAULT_STATE_ROOT
from bookie.metadata.nodes import put
from bookie.metadata.own_state import StateRecord, StateRootError, decode_state_record, record_path
from bookie.metadata.runs.election import election_path
from bookie.metadata.store.memory import MemoryStore
from bookie.metadata.store.memory_cell import MemoryCell
from bookie.metadata.store.zookeeper import ZooKeeperStore
from bookie.model.exit_codes import ExitCode
from bookie.runtime.configuration.settings import ConfigurationError
from tests.worlds.cluster import formatted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signalled(number: int) -> Callable[..., Any]:
    """Send a signal during a prompt; the answer is yes if the signal has no effect."""

    def ask(*_: Any, **__: Any) -> str:
        os.kill(os.getpid(), number)
        return "7"

    return ask


@asynccontextmanager
async def cleaning(done: list[str]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await asyncio.sleep(0.01)  # gives the loop a turn to handle its signals
        done.append("cleaned up")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("kind", ["confirm", "prompt"])
def test_a_signal_ends_a_prompt_inside_the_loop(monkeypatch: pytest.MonkeyPatch, number: int, kind: str) -> None:
    monkeypatch.setattr(typer, kind, signalled(number))
    monkeypatch.setattr("auditor.cli.changing._is_terminal", lambda: True)
    done: list[str] = []

    async def work() -> None:
        async with cleaning(done):
            if kind == "confirm":
                confirm("Sure?", is_sure=False)
            else:
                confirm_ledgers("Sure?", [7], is_sure=False)
            done.append("changed")

    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(typer.Exit) as ended:
        run(work())
    assert (ended.value.exit_code, done) == (128 + number, ["cleaned up"])
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_after_the_answer_to_a_prompt_a_signal_cancels_the_work_again(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    done: list[str] = []

    async def work() -> None:
        async with cleaning(done):
            confirm("Sure?", is_sure=False)
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    with pytest.raises(typer.Exit) as ended:
        run(work())
    assert (ended.value.exit_code, done) == (128 + number, ["cleaned up"])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (ledger, ["ledger", "delete", "7"]),
        (log, ["log", "delete", "orders"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_ctrl_c_at_a_prompt_outside_the_loop_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, words: list[str]
) -> None:
    async def show(*_: Any) -> dict[str, Any]:
        return {"state": "closed", "length": 1, "ledgers": []}

    monkeypatch.setattr(module, "_show", show)
    monkeypatch.setattr(f"{typer.confirm.__module__}.visible_prompt_func", signalled(signal.SIGINT))
    with pytest.raises(SystemExit) as ended:
        app([*words, "--metadata-uri", "zk://h:1/ledgers"])
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("typed", "is_confirmed"), [("7", True), (" 7 ", True), ("", False), ("77", False), ("y", False)]
)
def test_each_ledger_id_must_be_typed_exactly(monkeypatch: pytest.MonkeyPatch, typed: str, is_confirmed: bool) -> None:
    monkeypatch.setattr("auditor.cli.changing._is_terminal", lambda: True)
    answers = iter(["8", typed])
    monkeypatch.setattr(typer, "prompt", lambda *_, **__: next(answers))
    if is_confirmed:
        confirm_ledgers("Sure?", [8, 7], is_sure=False)
        return
    with pytest.raises(typer.Exit) as ended:
        confirm_ledgers("Sure?", [8, 7], is_sure=False)
    assert ended.value.exit_code == ExitCode.FAILED


@pytest.mark.parametrize("typed", ["", "\n", "n\n", "7\n"], ids=repr)
@pytest.mark.parametrize(
    "words",
    [["ledger", "delete", "7"], ["log", "delete", "orders"]],
    ids=" ".join,
)
def test_nothing_is_deleted_without_a_yes(monkeypatch: pytest.MonkeyPatch, words: list[str], typed: str) -> None:
    done: list[str] = []

    async def show(*_: Any) -> dict[str, Any]:
        return {"state": "closed", "length": 1, "ledgers": []}

    async def change(*_: Any) -> list[int]:
        done.append("changed")
        return []

    for module in (ledger, log):
        monkeypatch.setattr(module, "_show", show)
        monkeypatch.setattr(module, "_delete", change)
    uri = ("--metadata-uri", "zk://h:1/ledgers")
    ended = CliRunner().invoke(app, [*words, *uri], input=typed)
    is_answered = typed in ("\n", "n\n")
    assert ended.exit_code == (ExitCode.FAILED if is_answered else ExitCode.USAGE)
    assert ("Use --yes; nothing was changed" in ended.output) == (not is_answered)
    assert done == []
    assert CliRunner().invoke(app, [*words, *uri], input="y\n").exit_code == ExitCode.OK
    assert done == ["changed"]


@pytest.mark.parametrize("root", ["relative", "/bkheal/below", "/ledgers"])
def test_there_is_no_question_about_a_move_to_an_impossible_state_root(root: str) -> None:
    asked = CliRunner().invoke(app, ["cluster", "move-state", root, "--metadata-uri", "zk://h:1/ledgers"], input="y\n")
    assert isinstance(asked.exception, ConfigurationError | StateRootError)
    assert "[y/N]" not in asked.output


def state_root_of(cell: MemoryCell) -> StateRecord:
    """Return the record of the state root of the cluster at /ledgers."""
    [data] = asyncio.run(MemoryStore(cell).get_many_data([record_path("/ledgers")]))
    return decode_state_record("/ledgers", data)


@pytest.mark.parametrize("state", ["no cluster", "an auditor runs", "idle"])
def test_only_a_move_that_can_begin_is_asked_about(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    cell = MemoryCell()

    async def connect(*_: Any, **__: Any) -> MemoryStore:
        return MemoryStore(cell)

    async def make_cluster() -> None:
        store = MemoryStore(cell)
        await formatted(store, "/ledgers")
        if state == "an auditor runs":
            await put(store, f"{election_path('/ledgers')}/V_0000000001", b'bookieId: "auditor-1"\n')

    monkeypatch.setattr(ZooKeeperStore, "connect", connect)
    if state != "no cluster":
        asyncio.run(make_cluster())
    words = ["cluster", "move-state", "/moved", "--metadata-uri", "zk://h:1/ledgers"]
    asked = CliRunner().invoke(app, words, input="y\n")
    assert ("[y/N]" in asked.output) == (state == "idle")
    assert (asked.exit_code == ExitCode.OK) == (state == "idle")
    assert state_root_of(cell).state_root == ("/moved" if state == "idle" else DEFAULT_STATE_ROOT)
