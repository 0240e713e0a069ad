"""Following a configuration file: when it is read, what is kept, and what is logged. Real files, no real time."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
from pathlib import Path

import pytest

from bookie.model.errors import InvariantError
from bookie.runtime.configuration import file_watch as config_watch
from bookie.runtime.configuration.file_watch import ConfigWatch, following
from bookie.runtime.configuration.reload import ConfigSource, Values
from bookie.runtime.configuration.settings import ConfigurationError
from tests.worlds.clocks import ManualClock

START = {"rate": 1, "racks": 2}


def parse(text: str) -> Values:
    try:
        values: dict[str, object] = START | json.loads(text)
    except ValueError as error:
        raise ConfigurationError([f"no JSON: {error}"]) from error
    problems = [f"{name} is unknown" for name in values.keys() - START.keys()]
    if not isinstance(values["rate"], int) or values["rate"] < 0:
        problems.append(f"rate = {values['rate']} is out of range")
    if problems:
        raise ConfigurationError(problems)
    return values


class Process:
    """A process that follows a file."""

    def __init__(self, path: Path, **given: str) -> None:
        self.path = path
        self.rates: list[int] = []
        self.source = ConfigSource(path, parse, START, given, frozenset({"rate"}))
        self.watch = ConfigWatch(self.source, {"rate": self.rates.append}, ManualClock(turns=0))

    async def reads(self, text: str, *, looks: int = 2) -> None:
        self.path.write_text(text)
        for _ in range(looks):
            await self.watch.check()


@pytest.fixture
def process(tmp_path: Path) -> Process:
    path = tmp_path / "bkheal.toml"
    path.write_text("{}")
    return Process(path)


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name.startswith("bookie")]
    caplog.clear()
    return lines


async def test_a_changed_value_is_applied_and_logged_with_its_old_one(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await process.reads('{"rate": 5}')
    assert process.rates == [5]
    (record,) = caplog.records
    reported = {name: getattr(record, name) for name in ("option", "old", "new", "path")}
    assert reported == {"option": "rate", "old": 1, "new": 5, "path": str(process.path)}
    await process.reads("{}")  # a removed key means the default
    assert process.rates == [5, 1]


async def test_an_unchanged_file_is_not_logged(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    await process.reads("{}", looks=5)
    assert (process.rates, logged(caplog)) == ([], [])


async def test_a_file_that_is_still_being_written_is_not_applied(process: Process) -> None:
    await process.reads('{"rate": 7}')
    await process.reads("", looks=1)
    await process.reads("{}", looks=1)
    await process.reads('{"rate": 8}', looks=1)
    assert process.rates == [7]
    await process.watch.check()
    assert process.rates == [7, 8]


async def test_a_requested_reload_is_applied_at_once_and_logged(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.path.write_text('{"rate": 7}')
    await process.watch.check(is_asked=True)
    assert process.rates == [7]
    assert logged(caplog) == [("WARNING", "option changed")]
    await process.watch.check(is_asked=True)
    assert logged(caplog) == [("WARNING", "configuration reloaded, no changes")]


@pytest.mark.parametrize("content", [b'{"rate": ', b'{"rate": -1, "rat": 2}', b"\xff\xfe", b" " * ((1 << 20) + 1)])
async def test_a_refused_file_changes_nothing_and_is_logged_once(
    process: Process, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    await process.reads('{"rate": 5}')
    caplog.clear()
    process.path.write_bytes(content)
    for _ in range(5):
        await process.watch.check()
    assert process.rates == [5]
    assert logged(caplog) == [("ERROR", "configuration file is refused, the old values stay")]
    await process.reads('{"rate": 6}')
    assert process.rates == [5, 6]


async def test_a_file_that_refers_to_another_is_applied_once_that_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, other, rates = tmp_path / "bkheal.toml", tmp_path / "topology.json", list[int]()

    def parse_with_other(text: str) -> Values:
        if not other.exists():
            raise ConfigurationError([f"there is no file {other}"])
        return parse(text)

    path.write_text('{"rate": 5}')
    source = ConfigSource(path, parse_with_other, START, {}, frozenset({"rate"}))
    watch = ConfigWatch(source, {"rate": rates.append}, ManualClock(turns=0))
    for _ in range(5):
        await watch.check()
    assert (rates, logged(caplog)) == ([], [("ERROR", "configuration file is refused, the old values stay")])
    await watch.check(is_asked=True)
    assert logged(caplog) == [("ERROR", "configuration file is refused, the old values stay")]
    other.touch()
    await watch.check()
    assert (rates, logged(caplog)) == ([5], [("WARNING", "option changed")])


async def test_all_problems_of_a_refused_file_are_in_one_line(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await process.reads('{"rate": -1, "rat": 2}')
    (record,) = caplog.records
    assert all(problem in record.error for problem in ("rat is unknown", "rate = -1 is out of range"))  # type: ignore[attr-defined]


async def test_a_deleted_file_changes_nothing(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    await process.reads('{"rate": 5}')
    caplog.clear()
    process.path.unlink()
    for _ in range(4):
        await process.watch.check()
    assert logged(caplog) == [("ERROR", "configuration file is refused, the old values stay")]
    await process.reads('{"rate": 6}')
    assert process.rates == [5, 6]


async def test_changes_of_a_mounted_config_map_are_detected(tmp_path: Path) -> None:
    """The path remains a link to a link; only the directory at its end changes, and its times may be arbitrary."""
    for name, text in (("one", "{}"), ("two", '{"rate": 5}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bkheal.toml").write_text(text)
        os.utime(tmp_path / name / "bkheal.toml", (1, 1))
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "bkheal.toml").symlink_to("..data/bkheal.toml")
    process = Process(tmp_path / "bkheal.toml")
    await process.watch.check()
    (tmp_path / "..tmp").symlink_to("two")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    await process.watch.check()
    await process.watch.check()
    assert process.rates == [5]


async def test_an_option_set_by_a_flag_is_kept_and_the_log_names_the_flag(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = Process(tmp_path / "bkheal.toml", rate="--rate")
    await process.reads('{"rate": 5}', looks=4)
    assert process.rates == []
    (record,) = caplog.records
    assert (record.getMessage(), record.stays_with) == ("option does not follow the file", "--rate")  # type: ignore[attr-defined]


async def test_an_option_that_needs_a_restart_is_logged_once(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    await process.reads('{"racks": 3}', looks=4)
    assert logged(caplog) == [("WARNING", "option needs a restart")]
    await process.reads('{"racks": 3, "rate": 4}')
    assert logged(caplog) == [("WARNING", "option changed")]
    await process.reads('{"rate": 4}')
    assert logged(caplog) == []


async def test_a_change_between_the_start_and_the_first_check_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "bkheal.toml"
    path.write_text('{"rate": 5}')
    process = Process(path)
    await process.watch.check()
    await process.watch.check()
    assert process.rates == [5]


def test_live_options_must_match_those_that_can_be_applied(process: Process) -> None:
    with pytest.raises(InvariantError, match=r"\['rate'\].*\['port'\]"):
        ConfigWatch(process.source, {"port": print}, ManualClock(turns=0))


async def test_sighup_reads_the_file_at_once(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_watch, "_terminals", frozenset)
    applied: asyncio.Queue[int] = asyncio.Queue()
    async with following(process.source, {"rate": applied.put_nowait}, ManualClock(), pytest.fail):
        for rate in (5, 6):
            process.path.write_text(f'{{"rate": {rate}}}')
            os.kill(os.getpid(), signal.SIGHUP)
            assert await applied.get() == rate
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


async def test_the_file_is_checked_periodically(process: Process) -> None:
    applied: asyncio.Queue[int] = asyncio.Queue()
    async with following(process.source, {"rate": applied.put_nowait}, ManualClock(turns=1), pytest.fail):
        for rate in (5, 6):
            process.path.write_text(f'{{"rate": {rate}}}')
            assert await applied.get() == rate


async def test_a_closed_terminal_ends_the_process_as_before(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, stream = pty.openpty()
    monkeypatch.setattr(config_watch, "_STREAMS", (stream,))
    applied: asyncio.Queue[int] = asyncio.Queue()
    hung_up = asyncio.Event()
    async with following(process.source, {"rate": applied.put_nowait}, ManualClock(), hung_up.set):
        process.path.write_text('{"rate": 5}')
        os.kill(os.getpid(), signal.SIGHUP)  # the process has a terminal
        assert await applied.get() == 5
        assert not hung_up.is_set()
        os.close(terminal)
        os.kill(os.getpid(), signal.SIGHUP)
        await hung_up.wait()
    os.close(stream)


async def test_a_closed_terminal_does_not_end_a_process_that_ignores_it(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``nohup``, a process ignores SIGHUP, but the signal still makes it read the file."""
    terminal, stream = pty.openpty()
    monkeypatch.setattr(config_watch, "_STREAMS", (stream,))
    applied: asyncio.Queue[int] = asyncio.Queue()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with following(process.source, {"rate": applied.put_nowait}, ManualClock(), pytest.fail):
            os.close(terminal)
            process.path.write_text('{"rate": 5}')
            os.kill(os.getpid(), signal.SIGHUP)
            assert await applied.get() == 5
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(stream)


async def test_without_a_file_nothing_is_watched() -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with following(None, {"rate": print}, ManualClock(turns=0), pytest.fail):
        assert signal.getsignal(signal.SIGHUP) == before


async def test_an_unexpected_error_does_not_end_the_watch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, failed, taken = tmp_path / "bkheal.toml", asyncio.Event(), asyncio.Event()

    def odd(text: str) -> Values:
        if text == "odd":
            failed.set()
            raise PermissionError("a directory that may not be searched")
        return parse(text)

    path.write_text("odd")
    watch = ConfigWatch(
        ConfigSource(path, odd, START, {}, frozenset({"rate"})), {"rate": lambda _: taken.set()}, ManualClock(turns=0)
    )
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(20):
        await failed.wait()
        path.write_text('{"rate": 5}')
        await asyncio.wait([running, (waiting := asyncio.create_task(taken.wait()))], return_when="FIRST_COMPLETED")
    assert taken.is_set()
    assert [line for line in logged(caplog) if line[0] == "ERROR"] == [("ERROR", "reading the configuration failed")]
    running.cancel()
    await asyncio.wait([running, waiting])
