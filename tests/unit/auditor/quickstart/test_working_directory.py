"""The directory of the tour and of the demo, and how both end if the disk or their output fails."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from auditor.cli.running import run
from auditor.quickstart.place import NEEDED_BYTES, working_directory
from bookie.embedded.cluster import NoSpaceError
from bookie.model.errors import PermanentError


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def end_with(error: BaseException) -> None:
    with working_directory(None, "tour-") as directory:
        (directory / "log.txt").touch()
        raise error


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (PermanentError("a bookie ended"), True),
        (KeyboardInterrupt(), False),
        (asyncio.CancelledError(), False),
        (BrokenPipeError(), False),
        (BaseExceptionGroup("writers", [ExceptionGroup("", [BrokenPipeError()])]), False),
    ],
    ids=["failure", "Ctrl-C", "SIGTERM", "closed output", "closed output in a task"],
)
def test_logs_are_kept_after_a_failure_and_not_if_the_user_ended_it(
    error: BaseException, is_kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)):
        end_with(error)
    assert bool(list(tmp_path.iterdir())) is is_kept
    assert ("logs of all processes are kept in" in capsys.readouterr().err) is is_kept


@pytest.mark.parametrize("keep", [None, "new/data"])
def test_a_disk_without_room_is_refused_before_the_start(
    keep: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=NEEDED_BYTES - 1))
    place = None if keep is None else tmp_path / keep
    with pytest.raises(NoSpaceError, match=r"needs 512.0 MiB .* has 512.0 MiB: choose a directory"):
        working_directory(place, "tour-").__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "errors",
    [
        (ValueError(), BrokenPipeError(errno.EPIPE, ""), PermanentError("no connection")),
        (OSError(errno.ENOSPC, ""), PermanentError("no connection")),
        (ValueError(), OSError(errno.ENOSPC, "")),
    ],
    ids=["closed output", "own error", "full disk"],
)
def test_one_error_of_several_tasks_is_reported(errors: tuple[Exception, ...]) -> None:
    async def fail() -> None:
        raise BaseExceptionGroup("tasks", errors)

    with pytest.raises((OSError, PermanentError)) as raised:
        run(fail())
    assert raised.value is errors[1]
