"""Texts as literals of DuckDB's SQL, which has no escapes but a doubled quote. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def sql_text(text: str) -> str:
    """Return the literal of a text."""
    return "'" + text.replace("'", "''") + "'"


def sql_list(texts: Sequence[str]) -> str:
    """Return the literal of a list of texts."""
    return f"[{', '.join(map(sql_text, texts))}]"
