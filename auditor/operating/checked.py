"""The result of a check of ``bkheal doctor``: what was checked, its state, and what to do."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from auditor.operating.client import Document


class State(enum.StrEnum):
    """The result of one check, worst last."""

    OK = "ok"
    WARNING = "warning"
    """It works now; a person should look at it."""
    UNKNOWN = "unknown"
    """It could not be checked."""
    FAILED = "failed"
    """Something that bkheal does would fail."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check."""

    check: str
    """The kind of check, such as ``permission``."""
    target: str
    """The object of the check: a path, a bookie, an address."""
    state: State
    detail: str
    advice: str = ""
    """What to do; empty if nothing has to be done."""
    paths: Sequence[str] = ()
    """All nodes concerned, if the texts may name only some of them."""

    def row(self) -> Document:
        """The check as a document."""
        return {
            "check": self.check,
            "target": self.target,
            "state": self.state.value,
            "detail": self.detail,
            "advice": self.advice or None,
            "paths": list(self.paths),
        }


def worst(checks: Sequence[Checked]) -> State:
    """The worst state of all."""
    order = list(State)
    return max((each.state for each in checks), key=order.index, default=State.OK)
