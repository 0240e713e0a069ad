"""Values as SQL text. Bookie ids may hold backslashes; no name is trusted to be harmless.

Source: docs/formats.md#registration.
"""

from __future__ import annotations

from collections.abc import Iterable


def literal(text: str) -> str:
    """A string literal of Spark SQL."""
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def in_list(name: str, texts: Iterable[str]) -> str:
    """Whether the expression ``name`` is one of ``texts``; Spark makes a hash set of the literals, once."""
    quoted = ", ".join(map(literal, texts))
    return f"{name} IN ({quoted})" if quoted else "false"
