"""The options that decide what an audit marks, and when. A one-shot audit and the service have the same ones.

What they mean is in ``bookie.metadata.bookies.marking_times`` and ``spark_jobs.run_limits``. Importable without Spark.
"""

from __future__ import annotations

from typing import Annotated

from bookie.metadata.bookies.rack_outage import RACK_OUTAGE_DELAY_S_MAX
from bookie.metadata.bookies.returned import FLAPPING_DELAY_S_MAX
from bookie.model.option import Option

MissingShareMax = Annotated[
    float, Option("Mark nothing when a larger share of the known bookies is missing.", minimum=0, maximum=1)
]
"""The mass-loss brake holds everything above it."""
CriticalDelay = Annotated[
    float,
    Option(
        "Mark a ledger with one copy left when its lost bookie is missing for so long; it never waits longer than "
        "the lost-bookie delay.",
        minimum=0,
        maximum=7 * 86_400,
    ),
]
"""0 marks them at once."""
RackOutageDelay = Annotated[
    float,
    Option(
        "Mark nothing for so long after every bookie of a rack was lost at once, as in an outage of the rack; 0: "
        "they are lost like other bookies.",
        minimum=0,
        maximum=RACK_OUTAGE_DELAY_S_MAX,
    ),
]
FlappingDelay = Annotated[
    float,
    Option(
        "Mark a bookie that was marked and returned twice within six hours only when it is missing for so long; 0: "
        "like any other.",
        minimum=0,
        maximum=FLAPPING_DELAY_S_MAX,
    ),
]
MarksMax = Annotated[
    int | None,
    Option(
        "Mark at most so many more ledgers in one run, those with the fewest copies first; the next run continues.",
        minimum=1,
        default_text="no limit",
    ),
]
MarkBytesMax = Annotated[
    int | None,
    Option(
        "Mark no more ledgers in one run than their repair copies so many bytes, estimated; always at least one.",
        minimum=1,
        default_text="no limit",
    ),
]
