"""Findings of all runs since a point in time, in pages, from the tables. Needs neither Spark nor Arrow."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bookie.model.errors import PermanentError
from spark_jobs.report.findings.filters import ANY, COLUMNS, CURSOR_PATTERN, FindingFilter, cursor_of, parse_cursor
from spark_jobs.report.tables.sql import ask

_CURSOR: Final = re.compile(rf"([A-Za-z0-9][A-Za-z0-9_-]{{0,127}})/({CURSOR_PATTERN.strip('^$')})")
_TIMEOUT_S: Final = 60.0


class InvalidCursorError(PermanentError):
    """The text is not the cursor of a page."""


def findings_since(
    report_dir: Path, since_ms: int, limit: int, wanted: FindingFilter = ANY, after: str | None = None
) -> dict[str, Any]:
    """Return findings of the runs that finished since a time: the newest run first, then by ledger, fragment and kind.

    Args:
        report_dir: the report directory of all runs.
        since_ms: the time, epoch milliseconds.
        limit: maximum number of findings.
        wanted: selects the findings.
        after: ``next_after`` of the previous page; None: from the beginning.

    Returns:
        ``items`` as in ``one_run.read_findings``, with the run; ``next_after``, which is None at the end; and
        ``left_out``, the unreadable files.

    Raises:
        InvalidCursorError: ``after`` is not a cursor.
        QueryTooLargeError, NewerTablesError, ReportDirError: see ``sql.ask``.
    """
    values: dict[str, object] = {"since": datetime.fromtimestamp(since_ms / 1000, UTC).replace(tzinfo=None)}
    values["day"] = datetime.fromtimestamp(since_ms / 1000, UTC).date()
    conditions = ["run_id IN (SELECT run_id FROM runs WHERE day >= $day AND finished >= $since)", _DAYS]
    if wanted.severity is not None:
        conditions.append("severity_rank = $severity")
        values["severity"] = wanted.severity.value
    if wanted.bookie is not None:
        conditions.append("list_contains(missing, $bookie)")
        values["bookie"] = wanted.bookie
    if wanted.ledger_id is not None:
        conditions.append("ledger_id = $ledger")
        values["ledger"] = wanted.ledger_id
    if wanted.kind is not None:
        conditions.append("kind = $kind")
        values["kind"] = wanted.kind.value.lower()
    if after is not None:
        conditions.append(_AFTER)
        values |= _cursor(after)
    names = ("run_id", *COLUMNS)
    columns = ", ".join(f'"{name}"' for name in names)
    question = (
        f"SELECT {columns} FROM findings WHERE {' AND '.join(conditions)} "  # noqa: S608 - own names, bound values
        f"ORDER BY run_id DESC, {_ORDER}"
    )
    answer = ask(report_dir, question, limit=limit, timeout_s=_TIMEOUT_S, values=values)
    rows = [dict(zip(names, row, strict=True)) for row in answer.rows]
    for row in rows:
        row["missing"] = list(row["missing"] or ())
    return {"items": rows, "next_after": _end(rows[-1]) if answer.is_cut else None, "left_out": list(answer.left_out)}


_DAYS: Final = "(day IS NULL OR day >= $day - 2)"
"""Only the files of these days are opened. Earlier releases store a finding under the day on which its run started;
such a run took at most two days."""
_ORDER: Final = (
    "coalesce(ledger_id, -1), coalesce(fragment_index, -1), kind, "
    "CASE WHEN ledger_id IS NULL THEN coalesce(missing[1], '') ELSE '' END"
)
"""The order of ``PageCursor``."""
_AFTER: Final = f"""(run_id < $run OR (run_id = $run AND
    ({_ORDER}) > ($after_ledger, $after_fragment, $after_kind, $after_bookie)))"""


def _end(row: dict[str, Any]) -> str:
    return f"{row['run_id']}/{cursor_of(row)}"


def _cursor(text: str) -> dict[str, object]:
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidCursorError(f"{text[:200]!r} is not the last value of a page")
    after = parse_cursor(found[2])
    return {
        "run": found[1],
        "after_ledger": after.ledger_id,
        "after_fragment": after.fragment_index,
        "after_kind": after.kind.lower(),
        "after_bookie": after.bookie,
    }
