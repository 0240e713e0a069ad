"""The watch on a running process's configuration file: reads it periodically and at SIGHUP, and applies changes.

Contents are compared, not times: a ConfigMap volume swaps the directory of a symbolic link, with arbitrary times. New
content is used after two consecutive reads have returned it, because the first one may have read a half-written file.
After SIGHUP, the file counts as complete. An unreadable or rejected file changes nothing. It is tried again, because it
may name files that do not exist yet. ``reload`` makes the decisions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from bookie.model.errors import InvariantError
from bookie.runtime.clock import Clock
from bookie.runtime.configuration.reload import ConfigSource, ReloadDecision, decide
from bookie.runtime.configuration.settings import ConfigurationError
from bookie.runtime.tasks import cancel, guarded

_log = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 2.0
"""Interval between two reads; a change takes effect after two reads."""
BYTES_MAX: Final = 1 << 20
"""Size limit of the file, in bytes, the same as Kubernetes' limit for a ConfigMap."""
_STREAMS: Final = (0, 1, 2)

Apply: TypeAlias = Mapping[str, Callable[[Any], None]]
"""For each live option, the function that applies a new value."""


@dataclass(frozen=True, slots=True)
class _UnusableContent:
    """The result of a read without usable content."""

    reason: str


class ConfigWatch:
    """The watch of one process on its configuration file."""

    def __init__(self, source: ConfigSource, apply: Apply, clock: Clock) -> None:
        """Only store the arguments.

        Raises:
            InvariantError: ``apply`` does not have exactly the live options of ``source``.
        """
        if apply.keys() != source.live:
            raise InvariantError(f"live options are {sorted(source.live)}, and {sorted(apply)} can be applied")
        self._source = source
        self._apply = apply
        self._clock = clock
        self._seen = source.values
        self._candidate: bytes | _UnusableContent | None = None
        self._settled: bytes | _UnusableContent | None = None
        self._refusal = ""
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Read periodically until cancelled, even after failures."""
        while True:
            try:
                await self.check()
            except Exception:  # noqa: BLE001 (task boundary: no content may end the watch)
                _log.exception("reading the configuration failed", extra={"path": str(self._source.path)})
            await self._clock.sleep(CHECK_INTERVAL_S)

    async def check(self, *, is_asked: bool = False) -> None:
        """Read the file and apply the changes.

        Args:
            is_asked: whether an operator requested it. If so, the present content counts as complete, and the result
                is logged even if nothing has changed.
        """
        async with self._turn:
            content = await asyncio.to_thread(_read, self._source.path)
            is_candidate, self._candidate = content == self._candidate, content
            if is_asked or (is_candidate and content != self._settled):
                self._settled = content
                self._take(content, is_asked=is_asked)

    def _take(self, content: bytes | _UnusableContent, *, is_asked: bool) -> None:
        fields: dict[str, object] = {"path": str(self._source.path)}
        try:
            new = self._source.parse(_text(content))
        except ConfigurationError as error:
            if is_asked or str(error) != self._refusal:
                _log.error("configuration file is refused, the old values stay", extra=fields | {"error": str(error)})
            self._refusal = str(error)
            self._settled = None  # the reason may be another file, so the next read tries this content again
            return
        self._refusal = ""
        decision = decide(self._source, self._seen, new)
        self._seen = new
        for change in decision.taken:
            self._apply[change.option](change.new)
        self._log_decision(decision, fields)
        if is_asked and decision == ReloadDecision():
            _log.warning("configuration reloaded, no changes", extra=fields)

    def _log_decision(self, decision: ReloadDecision, fields: dict[str, object]) -> None:
        """Log each change as a warning, because commands log only warnings by default."""
        for change in decision.taken:
            _log.warning("option changed", extra=_values(change.option, change.old, change.new) | fields)
        for change in decision.overridden:
            more: dict[str, object] = {"stays_with": self._source.given[change.option]} | fields
            _log.warning("option does not follow the file", extra=_values(change.option, change.old, change.new) | more)
        for change in decision.waiting:
            _log.warning("option needs a restart", extra=_values(change.option, change.old, change.new) | fields)


@asynccontextmanager
async def following(
    source: ConfigSource | None, apply: Apply, clock: Clock, on_hangup: Callable[[], None]
) -> AsyncIterator[None]:
    """Watch the file inside the context; without a file do nothing, and leave SIGHUP unchanged.

    If the process ignores SIGHUP, as under ``nohup``, it does not react to a closed terminal.

    Args:
        source: the file.
        apply: for each live option, the function that applies a new value.
        clock: the clock of the pauses between reads.
        on_hangup: called after a SIGHUP because the terminal of the process was closed.
    """
    if source is None:
        yield
        return
    before = signal.getsignal(signal.SIGHUP)
    terminals = frozenset[int]() if before is signal.SIG_IGN else _terminals()
    watch, loop = ConfigWatch(source, apply, clock), asyncio.get_running_loop()
    asked: list[asyncio.Task[None]] = []

    def signalled() -> None:
        if terminals and not _terminals():
            on_hangup()
        elif not asked or asked[0].done():
            asked[:] = [guarded("configuration check", watch.check(is_asked=True))]

    loop.add_signal_handler(signal.SIGHUP, signalled)
    watching = guarded("configuration watch", watch.run())
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGHUP, before)
        for task in (watching, *asked):
            await cancel(task)


def _terminals() -> frozenset[int]:
    """Return the standard streams that are connected to an open terminal."""
    return frozenset(number for number in _STREAMS if os.isatty(number))


def _read(path: Path) -> bytes | _UnusableContent:
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        return _UnusableContent(f"cannot read {path}: {error.strerror or error}")
    return content if len(content) <= BYTES_MAX else _UnusableContent(f"{path} has more than {BYTES_MAX} bytes")


def _text(content: bytes | _UnusableContent) -> str:
    if isinstance(content, _UnusableContent):
        raise ConfigurationError([content.reason])
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"the file is not UTF-8 text: {error}"]) from error


def _values(option: str, old: object, new: object) -> dict[str, object]:
    return {"option": option, "old": old, "new": new}
