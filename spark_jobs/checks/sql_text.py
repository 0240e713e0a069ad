"""Values as SQL text. Bookie ids may contain backslashes, so every name is escaped.

Source: docs/formats.md#registration.
"""

from __future__ import annotations

from collections.abc import Iterable


def literal(text: str) -> str:
    """Return a string literal of Spark SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def in_list(name: str, texts: Iterable[str]) -> str:
    """Return the SQL condition that ``name`` is one of ``texts``. Spark makes one hash set of the literals."""
    quoted = ", ".join(map(literal, texts))
    return f"{name} IN ({quoted})" if quoted else "false"
