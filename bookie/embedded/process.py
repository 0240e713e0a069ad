"""A child process that its owner can watch, pause and kill, and that never outlives its owner.

**Own session.** Ctrl-C in a terminal reaches the owner alone, which then stops its children in order.

**Never outlives its owner**, not even one that was killed with SIGKILL. Each child is started by a two-line shell,
which starts a watch and then becomes the child (same process id). The watch blocks on a pipe whose other end only the
owner holds; the kernel closes it at any end of the owner, and the watch kills its own process group: the child and all
its children. Why not ``PR_SET_PDEATHSIG``: it exists on Linux alone, needs code between fork and exec, and fires when
the *thread* that forked ends, which with thread pools is not when the owner ends. Because the watch belongs to the
group that it kills, the group's number cannot have been given to strangers in the meantime.

Nothing here belongs to an event loop: a process may be started in one loop and stopped in another.
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
"""Neither the exit of a process nor a line in its log can be awaited on every platform; looking is cheap."""

_KILL_DEADLINE_S: Final = 10.0
"""A killed process goes as soon as the kernel has freed its memory; this is only a bound."""
_TAIL_BYTES: Final = 16_384
_READ_BYTES: Final = 1 << 16

_START_WITH_WATCH: Final = """\
exec 3<&0 </dev/null
{ read -r _ <&3; kill -s KILL 0; } >/dev/null 2>&1 &
exec "$@" 3<&-
"""


class EmbeddedProcessError(FatalError):
    """A process that this one depends on did not start, or ended; the text quotes its log."""


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
        """Start a process. That it could not be executed shows as exit code 126 or 127 and a line in its log.

        Args:
            name: what the process is, for logs and errors.
            arguments: program and arguments.
            log_path: file that receives what it prints; its folder is made.
            environment: variables added to those of this process.
            directory: working directory; default this process's.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            log_offset = log.tell()
            process = subprocess.Popen(
                ["/bin/sh", "-c", _START_WITH_WATCH, name, *arguments],
                stdin=subprocess.PIPE,  # the pipe that the watch blocks on; closed on exec in our other children
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
        """Process id, also after the end."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, ``-n`` for death by signal ``n``, or None while it runs."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None:
            self._process.stdin.close()  # kills the watch, and any remaining children
        return code

    @property
    def is_running(self) -> bool:
        """Whether it has not ended (a paused process runs)."""
        return self.exit_code is None

    def log_tail(self, lines: int = 15) -> str:
        """The last ``lines`` lines of the log file."""
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
        """Wait until ``predicate`` holds; ``what`` names that state in the error.

        Raises:
            EmbeddedProcessError: the process ended first, or ``deadline_s`` seconds passed.
        """
        try:
            async with asyncio.timeout(deadline_s):
                while not await predicate():
                    if (code := self.exit_code) is not None:
                        raise self._failure(f"ended with exit code {code} before {what}")
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError:
            raise self._failure(f"was not there after {deadline_s:g} s: waited for {what}") from None

    async def wait_for_line(self, pattern: str, deadline_s: float) -> re.Match[str]:
        """Wait for a line printed since the start in which ``pattern`` (a regular expression) is found.

        Raises:
            EmbeddedProcessError: the process ended first, or ``deadline_s`` seconds passed.
        """
        search = _LineSearch(self.log_path, self._log_offset, re.compile(pattern))
        await self.wait_until(search.look, f"a line matching {pattern!r}", deadline_s)
        assert search.found is not None
        return search.found

    async def stop(self, grace_s: float = 10.0) -> int:
        """End it: SIGTERM, and SIGKILL after ``grace_s`` seconds or when this call is cancelled. Returns the exit code.

        Does nothing to a process that has ended.
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
        """Send SIGKILL to it and to what it started. Returns at once: ``wait`` for the end."""
        if self.is_running:
            os.killpg(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): alive, connected, and silent, all threads of it on return."""
        self._process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it had ended
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a paused process go on."""
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
    """Reads a growing log file once, and remembers the first line that matches."""

    def __init__(self, path: Path, offset: int, pattern: re.Pattern[str]) -> None:
        self.found: re.Match[str] | None = None
        self._path = path
        self._offset = offset
        self._pattern = pattern
        self._rest = b""

    async def look(self) -> bool:
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
