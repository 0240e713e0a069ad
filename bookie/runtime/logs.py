"""Logs of every process: one line per event on standard error, as plain text or as JSON.

An event is a constant text with fields (``log.info("ledger repaired", extra={"ledger_id": 7})``). Fields have the same
names in both forms, so one search works on either. Fields are not filtered: callers must not log passwords, keys or
contents of znodes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from bookie.model.times import rfc3339

_STANDARD_FIELDS: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

_LOG_LEVELS_MIN: Final = {
    "httpcore": logging.WARNING,  # each step of each request, with the headers of the answer
    "httpx": logging.WARNING,  # one line for each request: every second while a command waits for a run
    "kazoo": logging.WARNING,  # prints requests and replies, including the contents of znodes
    "py4j": logging.WARNING,  # one line for each call into the JVM
}


def setup_logging(
    level: int | str = logging.INFO,
    is_json: bool | None = None,
    *,
    stream: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Send all logs of this process to standard error. May be called again; the last call applies.

    Args:
        level: the lowest level shown, a number or a name such as ``"DEBUG"``.
        is_json: whether to write one JSON object per line; default: if ``LOG_FORMAT`` is ``json`` (case-insensitive).
        stream: the output; default: standard error, because standard output is for results only.
        environment: the source of ``LOG_FORMAT``; default: this process's.

    Raises:
        ValueError: the level name is unknown.
    """
    env = os.environ if environment is None else environment
    if is_json is None:
        is_json = env.get("LOG_FORMAT", "").lower() == "json"
    handler = _BkhealHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if is_json else PlainFormatter())
    root = logging.getLogger()
    root.setLevel(level.upper() if isinstance(level, str) else level)
    for old in [old for old in root.handlers if isinstance(old, _BkhealHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    for name, lowest in _LOG_LEVELS_MIN.items():
        logging.getLogger(name).setLevel(max(lowest, root.level))


class PlainFormatter(logging.Formatter):
    """Formatter of ``time level event key=value ...``; a traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line of text."""
        words = [_time(record), record.levelname, _one_line(record.getMessage())]
        words += [f"{name}={_plain(value)}" for name, value in _fields(record).items()]
        line = " ".join(words)
        trace = _traceback(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """Formatter of one object per line: ``time``, ``level``, ``logger``, ``event``, the fields, maybe ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one JSON object."""
        entry: dict[str, Any] = {
            **_fields(record),
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        if trace := _traceback(self, record):
            entry["exception"] = trace
        return json.dumps(entry, default=str)


class _BkhealHandler(logging.StreamHandler[TextIO]):
    """A handler installed by this module: only these are replaced, not those of test runners and hosts."""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}


def _time(record: logging.LogRecord) -> str:
    return rfc3339(record.created * 1000)


def _plain(value: object) -> str:
    text = str(value)
    is_bare = text.isprintable() and " " not in text and '"' not in text and "=" not in text
    return text if is_bare and text else json.dumps(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else json.dumps(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
