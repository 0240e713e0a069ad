"""Options of the metadata lint, the same for the service and for a one-shot audit."""

from __future__ import annotations

from typing import Annotated, Final

from bookie.model.option import Option

RECOVERY_AGE_MAX_S: Final = 3600.0
"""A recovery reads and writes the end of one ledger, which takes seconds, or minutes if bookies are slow."""

RecoveryAgeMax = Annotated[
    float,
    Option(
        "The metadata lint reports a ledger that is in recovery for longer than this, in seconds.",
        minimum=1,
        maximum=365 * 86_400,
        heading="Metadata lint",
    ),
]
