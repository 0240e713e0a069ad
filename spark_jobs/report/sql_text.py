"""Texts as literals of SQL. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def sql_text(text: str) -> str:
    """The literal of a text."""
    return "'" + text.replace("'", "''") + "'"


def sql_list(texts: Sequence[str]) -> str:
    """The literal of a list of texts."""
    return f"[{', '.join(map(sql_text, texts))}]"
