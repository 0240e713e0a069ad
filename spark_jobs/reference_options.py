"""Options of the references check, the same for the service and for a one-shot audit."""

from __future__ import annotations

from typing import Annotated, Final

from bookie.model.option import Option

REFERENCES: Final = "References check"
REFERENCE_GRACE_S: Final = 72 * 3600.0
"""A compaction may take many hours, and refers to its ledger only at its end."""

PulsarRoots = Annotated[
    str,
    Option(
        "Paths of the brokers' metadata in the same ZooKeeper, separated by commas: of every Pulsar cluster that uses "
        "these bookies.",
        default_text="the parent of the ledgers' root",
        heading=REFERENCES,
    ),
]
ReferenceGrace = Annotated[
    float,
    Option(
        "Do not judge ledgers that are younger than this, in seconds.",
        minimum=0,
        maximum=365 * 86_400,
        heading=REFERENCES,
    ),
]
