"""A bookie process from its start to its end, and its exit code.

Standard output has one line, which is written when clients can find the bookie. Before it, metrics and Apache's
protocol each write a line with their address. A failure is one sentence on standard error and an exit code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from typing import Any, Final, NoReturn

from bookie.model.errors import BkhealError
from bookie.model.exit_codes import ExitCode, bookie_exit_code
from bookie.runtime.clock import SystemClock
from bookie.runtime.configuration.file_watch import following
from bookie.runtime.configuration.reload import ConfigSource
from bookie.runtime.file_sizes import raise_file_size_limit
from bookie.runtime.large_messages import prepare_for_large_messages
from bookie.runtime.open_files import raise_open_files_limit
from bookie.runtime.tasks import cancel
from bookie.runtime.waiting import within_running_time
from bookie.server.grpc.server import CONNECTIONS_MAX
from bookie.server.settings import BookieSettings
from bookie.server.start.phases import start_bookie
from bookie.storage.disks.files import is_thread_waiting
from bookie.storage.port import DISK_SILENCE_S_MAX, StalledDiskError

_log = logging.getLogger(__name__)

_RESERVED_FILES: Final = 1024
"""Open files of a bookie without connections: up to 512 of the index and 256 entry logs, the journals, and a
reserve."""
_LARGEST_FILE_BYTES: Final = 2 << 30
"""No file of a bookie becomes larger: an entry log has about 128 MiB, and the manifest of the index up to 1 GiB."""


async def run_bookie(settings: BookieSettings, config: ConfigSource | None = None) -> int:
    """Run a bookie until SIGTERM, SIGINT or a disk failure, and return the exit code of the process.

    Changes of ``config``, the configuration file of the process, are logged: all of them need a restart.
    """
    prepare_for_large_messages()
    _allow_open_files(settings)
    if (limit := raise_file_size_limit()) < _LARGEST_FILE_BYTES:
        _log.warning("the hard limit of file sizes is low", extra={"limit": limit, "recommended": _LARGEST_FILE_BYTES})
    try:
        await _run(settings, config, _stop_requested())
        code: int = ExitCode.OK
    except BkhealError as error:
        code = _reported(error)
    if is_thread_waiting():
        _exit_now(code)
    return code


def _allow_open_files(settings: BookieSettings) -> None:
    """Raise the limit of open files, and warn if connections could use up the files that the storage needs (R134)."""
    limit = raise_open_files_limit()
    wanted = (
        _RESERVED_FILES + CONNECTIONS_MAX + (settings.apache_connections_max if settings.apache_port is not None else 0)
    )
    if limit < wanted:
        _log.warning("the hard limit of open files is low", extra={"limit": limit, "recommended": wanted})


async def _run(settings: BookieSettings, config: ConfigSource | None, stop_asked: asyncio.Future[None]) -> None:
    stack = AsyncExitStack()
    problem: BkhealError | None = None
    try:
        await stack.enter_async_context(following(config, {}, SystemClock(), lambda: _ask(stop_asked)))
        start = asyncio.create_task(start_bookie(settings, stack), name="bookie start")
        await _first_of(start, stop_asked)
        if not start.done():
            await cancel(start)
            return
        running = start.result()
        await _first_of(running.storage.fatal, running.keeper.replaced, stop_asked)
        await running.stop(settings.drain_deadline_s)
        if running.storage.fatal.done():
            fatal = running.storage.fatal.result()
            if isinstance(fatal, StalledDiskError):  # the disk has the index or a journal, so nothing can be closed
                _exit_now(_reported(fatal))
            raise fatal
        if running.keeper.replaced.done():
            raise running.keeper.replaced.result()
    except BkhealError as error:
        problem = error
        raise
    finally:
        await _close(stack, problem)


async def _close(stack: AsyncExitStack, problem: BkhealError | None) -> None:
    """Close everything. ``problem`` is the reason for the end, if it is an error: it is reported first."""
    try:
        await within_running_time(DISK_SILENCE_S_MAX, stack.aclose())
    except TimeoutError:  # all acknowledged data is in the journals
        what = f"the storage has not been closed within {DISK_SILENCE_S_MAX:g} s: a disk does not answer"
        stalled = StalledDiskError(what)
        code = _reported(problem or stalled)
        if problem is not None:
            _reported(stalled)
        _exit_now(code)


def _reported(error: BkhealError) -> int:
    """Write the error to standard error, and return the exit code."""
    sys.stderr.write(f"bookie: {error}\n")
    return bookie_exit_code(error)


def _exit_now(code: int) -> NoReturn:
    """End the process at once. An orderly end would wait for threads that a disk blocks."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    os._exit(code)


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _stop_requested() -> asyncio.Future[None]:
    """Return a future that completes at the first SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask, asked)
    return asked


def _ask(asked: asyncio.Future[None]) -> None:
    if not asked.done():
        _log.info("stop requested")
        asked.set_result(None)
