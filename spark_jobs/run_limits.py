"""How much one run may mark (R73, docs/failure-model.md). Importable without Spark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits of one run; None: no limit."""

    marks_max: int | None = None
    """Number of new or changed marks."""
    bytes_max: int | None = None
    """Estimated bytes that the repair of these ledgers has to copy."""
