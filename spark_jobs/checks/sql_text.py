"""Values as text of Spark SQL. Bookie ids may contain backslashes; no name is trusted to be harmless.

Source: docs/formats.md#registration.
"""

from __future__ import annotations

from collections.abc import Iterable


def literal(text: str) -> str:
    """Return a string literal of Spark SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def in_list(name: str, texts: Iterable[str]) -> str:
    """Return the SQL test for an expression ``name`` in ``texts``; Spark makes one hash set of the literals."""
    quoted = ", ".join(map(literal, texts))
    return f"{name} IN ({quoted})" if quoted else "false"
