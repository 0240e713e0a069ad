"""One row of the table of parsers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bookie.model.errors import BkhealError

HOSTILE: Final = (b"", b"\0" * 100, b"\xff" * 100, b"[" * 50_000, b'{"":' * 10_000, b"\x0b" * 1000)
"""Inputs for every parser. Some are nested deeper than parsers permit."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser.

    Attributes:
        parse: takes an input.
        corpus: intact inputs, which it accepts.
        errors: the errors that its callers expect; any other is a crash.
        hostile: more inputs, which it may refuse.
        gate_inputs: number of damaged inputs tried by the gate.
    """

    parse: Callable[[bytes], object]
    corpus: Sequence[bytes]
    errors: tuple[type[Exception], ...] = (BkhealError,)
    hostile: Sequence[bytes] = ()
    gate_inputs: int = 300
