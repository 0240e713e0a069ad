"""What an audit marks, and when.

``bookie.metadata.bookies.marking_times`` and ``spark_jobs.options.marking`` describe their meaning. Importable without
Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S_MAX
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S_MAX
from bookie.model.option import Option

MissingShareMax = Annotated[
    float, Option("Mark nothing if a larger share of the known bookies is missing.", minimum=0, maximum=1)
]
"""If more bookies are missing, the mass-loss brake holds all marks back."""
CriticalDelay = Annotated[
    float,
    Option(
        "Delay of ledgers with one copy left after the loss of a bookie; never longer than the lost-bookie delay.",
        minimum=0,
        maximum=7 * 86_400,
    ),
]
"""0: they are marked immediately."""
RackOutageDelay = Annotated[
    float,
    Option(
        "Mark nothing for this time after every bookie of a rack was lost at once, as in an outage of the rack; 0: "
        "no such rule.",
        minimum=0,
        maximum=RACK_OUTAGE_DELAY_S_MAX,
    ),
]
FlappingDelay = Annotated[
    float,
    Option(
        "Delay of a bookie that was marked and returned twice within six hours; 0: no such rule.",
        minimum=0,
        maximum=FLAPPING_DELAY_S_MAX,
    ),
]
MarksMax = Annotated[
    int | None,
    Option(
        "The most ledgers to mark in one run, those with the fewest copies first; the next run continues.",
        minimum=1,
        default_text="no limit",
    ),
]
MarkBytesMax = Annotated[
    int | None,
    Option(
        "The most bytes to copy for the ledgers marked in one run, estimated; at least one ledger is marked.",
        minimum=1,
        default_text="no limit",
    ),
]


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How much one run may mark (R73, docs/failure-model.md); None: no limit."""

    marks_max: int | None = None
    """Number of new or changed marks."""
    bytes_max: int | None = None
    """Estimated bytes that the repair of these ledgers has to copy."""
