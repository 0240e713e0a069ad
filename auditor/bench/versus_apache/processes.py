"""Contestants: programs that read commands line by line, and answer with lines of JSON.

Each program ends when its input ends, so none outlives the benchmark. Java programs are compiled once, so their start
times do not include the compiler.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from bookie.embedded.apache import java_properties
from bookie.embedded.apache_settings import write_log_settings, write_settings
from bookie.model.errors import FatalError, PermanentError
from bookie.runtime.java import Java, java_environment

READY_DEADLINE_S: Final = 120.0
_END_DEADLINE_S: Final = 30.0
_COMPILE_DEADLINE_S: Final = 120.0
_TAIL_CHARACTERS: Final = 3000
_LINE_BYTES_MAX: Final = 1 << 20


class ContestantError(FatalError):
    """A contestant did not start, ended, or took too long; the message quotes its log."""


class JdkMissingError(PermanentError):
    """There is no Java compiler; the message contains the remedy."""


@dataclass(frozen=True, slots=True)
class JavaPrograms:
    """Our small compiled Java programs that call Apache's classes."""

    java: Java
    lib: Path
    classes: Path

    @classmethod
    def compile(cls, java: Java, lib: Path, directory: Path) -> JavaPrograms:
        """Compile them into ``directory``. Blocks for seconds.

        Raises:
            JdkMissingError: no compiler next to ``java`` or on the path.
            ContestantError: they do not compile against the jars in ``lib``.
        """
        beside = java.home / "bin" / "javac"
        compiler = str(beside) if os.access(beside, os.X_OK) else shutil.which("javac")
        if compiler is None:
            raise JdkMissingError(
                f"no javac in {java.home}/bin or on the path: install a JDK {java.version} (Debian: apt-get install "
                f"openjdk-{java.version}-jdk-headless) and set JAVA_HOME to it"
            )
        directory.mkdir(parents=True, exist_ok=True)
        with as_file(files("auditor.bench").joinpath("java")) as sources:
            command = [compiler, "-cp", f"{lib}/*", "-d", str(directory), *map(str, sorted(sources.glob("*.java")))]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_DEADLINE_S)
        if done.returncode != 0:
            raise ContestantError(f"the benchmark's Java does not compile against {lib}:\n{done.stderr}")
        return cls(java, lib, directory)

    def command(
        self, main_class: str, settings: Mapping[str, str], directory: Path, jvm_options: Sequence[str]
    ) -> list[str]:
        """Return the command line of one program. Its settings, by Apache's names, are written to ``directory``."""
        write_settings(directory / "settings.conf", settings)
        log_settings = directory / "log4j2.properties"
        write_log_settings(log_settings, is_shell=False)
        # Standard output is for events, so the log goes to standard error.
        log_settings.write_text(log_settings.read_text().replace("SYSTEM_OUT", "SYSTEM_ERR"))
        properties = java_properties(log_settings, None)
        return [
            str(self.java.executable),
            *jvm_options,
            "-XX:-UsePerfData",
            *("--add-opens", "java.base/java.io=ALL-UNNAMED", "--add-opens", "java.base/java.util.zip=ALL-UNNAMED"),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", f"{self.classes}{os.pathsep}{self.lib}/*", main_class, str(directory / "settings.conf")),
        ]


class ContestantProcess:
    """A running contestant."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path, started_s: float) -> None:
        self.name = name
        self._process = process
        self._log_path = log_path
        self.started_s = started_s
        """``time.perf_counter`` just before it was started."""

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], directory: Path, *, java: Java | None = None
    ) -> ContestantProcess:
        """Start a program, and wait for its event ``ready``; its log goes to ``directory``.

        Raises:
            ContestantError: it was not ready in time.
        """
        directory.mkdir(parents=True, exist_ok=True)
        log_path = directory / "log.txt"
        started_s = time.perf_counter()
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LINE_BYTES_MAX,
                env=os.environ | (java_environment(java) if java else {}),
                start_new_session=True,
            )
        contestant = cls(name, process, log_path, started_s)
        try:
            await contestant.wait_for("ready", READY_DEADLINE_S)
        except BaseException:
            await contestant.stop()
            raise
        return contestant

    async def ask(self, order: str, event: str, deadline_s: float) -> Mapping[str, Any]:
        """Send a line, and return the event that answers it.

        Raises:
            ContestantError: it ended or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order.encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            raise self._failure(f"ended before {order!r}") from None
        return await self.wait_for(event, deadline_s)

    async def wait_for(self, event: str, deadline_s: float) -> Mapping[str, Any]:
        """Return the next event of this name; other lines are skipped.

        Raises:
            ContestantError: it ended or took too long.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(deadline_s):
                async for line in self._process.stdout:
                    found = parsed(line)
                    if found is not None and found.get("event") == event:
                        return found
        except TimeoutError:
            raise self._failure(f"did not print {event!r} within {deadline_s:g} s") from None
        raise self._failure(f"ended before it printed {event!r}")

    async def stop(self) -> None:
        """End its input, and kill it if it does not end by itself. Idempotent."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_END_DEADLINE_S):
                await asyncio.gather(self._process.wait(), self._drain())
        except TimeoutError:
            pass
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    def terminate(self) -> None:
        """Terminate the process, for programs that do not read their input."""
        if self._process.returncode is None:
            self._process.terminate()

    async def __aenter__(self) -> ContestantProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _drain(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(_LINE_BYTES_MAX):
            continue

    def _failure(self, what: str) -> ContestantError:
        tail = self._log_path.read_text(errors="replace")[-_TAIL_CHARACTERS:] or "(empty)"
        return ContestantError(f"{self.name} {what}. Its log {self._log_path} ends with:\n{tail}")


def parsed(line: bytes) -> Mapping[str, Any] | None:
    """Return the event in a line; None for any other line."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
