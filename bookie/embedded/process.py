"""A child process, which its owner can watch, pause and kill, and which never outlives its owner.

**Own session.** Ctrl-C in a terminal reaches only the owner, which then stops its children in order.

**Never outlives its owner**, even if the owner is killed with SIGKILL. A short shell script starts a watch and then
becomes the child (same process id). The watch blocks on a pipe, and only the owner has its other end. The kernel closes
this end when the owner ends for any reason. The watch then kills its own process group: the child and all its children.
``PR_SET_PDEATHSIG`` is not used because it exists only on Linux, needs code between fork and exec, and takes effect at
the end of the forking *thread*, which in a thread pool may be long before the end of the owner. The watch belongs to
the killed group, so the group's number cannot have been reused for other processes.

Nothing here is bound to an event loop: a process may be started in one loop and stopped in another.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from bookie.model.errors import FatalError

_log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.02
"""Polling is cheap, and not every platform allows waiting for the exit of a process or for a line in its log."""
_PAUSE_SHARE: Final = 0.05
_PAUSE_S_MAX: Final = 0.25

_KILL_DEADLINE_S: Final = 10.0
"""A killed process ends as soon as the kernel has freed its memory; this is only a bound."""
_TAIL_BYTES: Final = 16_384
_READ_BYTES: Final = 1 << 16

_WATCHDOG_SCRIPT: Final = """\
exec 3<&0 </dev/null
{ read -r _ <&3; kill -s KILL 0; } >/dev/null 2>&1 &
exec "$@" 3<&-
"""


def pause_s(waited_s: float) -> float:
    """Return how long to wait before the next check of another process, after ``waited_s`` seconds of checks.

    A check may be a request that costs both processes milliseconds. So a wait takes at most a twentieth longer than
    necessary, and the checks in a long wait do not take the processor from the process that is waited for.
    """
    return min(max(POLL_INTERVAL_S, _PAUSE_SHARE * waited_s), _PAUSE_S_MAX)


class EmbeddedProcessError(FatalError):
    """A required process did not start, or ended; the text quotes its log."""


class ManagedProcess:
    """One child process. Its standard output and error go to a log file, appended."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log_path: Path, log_offset: int) -> None:
        self.name = name
        self.log_path = log_path
        self._process = process
        self._log_offset = log_offset

    @classmethod
    def start(
        cls,
        name: str,
        arguments: Sequence[str],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> ManagedProcess:
        """Start a process. If it cannot be executed, its exit code is 126 or 127, and its log contains the reason.

        Args:
            name: name of the process, for logs and errors.
            arguments: program and arguments.
            log_path: file for its output; the folder is created.
            environment: variables added to this process's environment.
            directory: working directory; by default this process's.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            log_offset = log.tell()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG_SCRIPT, name, *arguments],
                stdin=subprocess.PIPE,  # the watch blocks on this pipe; closed on exec in other children
                stdout=log,
                stderr=log,
                bufsize=0,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
            )
        return cls(name, process, log_path, log_offset)

    @property
    def pid(self) -> int:
        """The process id, even after the end."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, ``-n`` after signal ``n``, or None while it runs."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            self._process.stdin.close()  # kills the watch, and any remaining children
        return code

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended (a paused one counts as running)."""
        return self.exit_code is None

    def log_tail(self, lines: int = 15) -> str:
        """Return the last ``lines`` lines of the log file."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])

    async def wait(self, deadline_s: float) -> int:
        """Wait for its end and return the exit code.

        Raises:
            TimeoutError: it still runs after ``deadline_s`` seconds.
        """
        async with asyncio.timeout(deadline_s):
            while (code := self.exit_code) is None:  # noqa: ASYNC110 (a child's end sets no event)
                await asyncio.sleep(POLL_INTERVAL_S)
        return code

    async def wait_until(self, predicate: Callable[[], Awaitable[bool]], what: str, deadline_s: float) -> None:
        """Wait until ``predicate`` holds; ``what`` describes it in the error.

        Raises:
            EmbeddedProcessError: the process ended first, or ``deadline_s`` seconds passed.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with asyncio.timeout(deadline_s):
                while not await predicate():
                    if (code := self.exit_code) is not None:
                        raise self._failure(f"ended with exit code {code} before {what}")
                    await asyncio.sleep(pause_s(loop.time() - began_s))
        except TimeoutError:
            raise self._failure(f"was not there after {deadline_s:g} s: waited for {what}") from None

    async def wait_for_line(self, pattern: str, deadline_s: float) -> re.Match[str]:
        """Wait for a line matching the regular expression ``pattern``, printed since the start.

        Raises:
            EmbeddedProcessError: the process ended first, or ``deadline_s`` seconds passed.
        """
        search = _LineSearch(self.log_path, self._log_offset, re.compile(pattern))
        await self.wait_until(search.poll, f"a line matching {pattern!r}", deadline_s)
        assert search.found is not None
        return search.found

    async def stop(self, grace_s: float = 10.0) -> int:
        """End it with SIGTERM, and SIGKILL after ``grace_s`` seconds or on cancellation; return the exit code.

        Has no effect on an ended process.
        """
        try:
            if self.is_running:
                self._process.terminate()
                self.resume()  # a paused process would not see the signal
                await self.wait(grace_s)
        except TimeoutError:
            _log.warning("process killed", extra={"child": self.name, "pid": self.pid, "grace_s": grace_s})
        finally:
            self.kill9()
        return await self.wait(_KILL_DEADLINE_S)

    def kill9(self) -> None:
        """Send SIGKILL to it and its children. Returns at once: ``wait`` for the end."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Pause it (SIGSTOP). It stays alive and connected; all its threads are stopped on return."""
        self._process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it had ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume a paused process (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    async def __aenter__(self) -> ManagedProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _failure(self, what: str) -> EmbeddedProcessError:
        return EmbeddedProcessError(
            f"{self.name} (process {self.pid}) {what}. Log {self.log_path} ends with:\n{self.log_tail() or '(empty)'}"
        )


class _LineSearch:
    """Reads a growing log file once, and keeps the first line that matches."""

    def __init__(self, path: Path, offset: int, pattern: re.Pattern[str]) -> None:
        self.found: re.Match[str] | None = None
        self._path = path
        self._offset = offset
        self._pattern = pattern
        self._rest = b""

    async def poll(self) -> bool:
        while self.found is None and (chunk := self._read()):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            matches = (self._pattern.search(line.decode(errors="replace")) for line in lines)
            self.found = next((match for match in matches if match), None)
        return self.found is not None

    def _read(self) -> bytes:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            chunk = log.read(_READ_BYTES)
        self._offset += len(chunk)
        return chunk
