"""The state that the steps of the tour share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from auditor.quickstart.proof import LackingCopies
from auditor.quickstart.workload import WrittenLedger
from bookie.client.connect import ConnectedBookKeeper
from bookie.embedded.cluster import EmbeddedBookie, EmbeddedCluster
from bookie.model.ids import LedgerId


@dataclass(slots=True)
class Tour:
    """State that the steps of the tour share."""

    directory: Path
    cluster: EmbeddedCluster
    client: ConnectedBookKeeper
    rng: random.Random
    is_kept: bool
    """Whether the directory is kept, so that paths in it are worth printing."""
    written: list[WrittenLedger] = field(default_factory=list)
    left_open: WrittenLedger | None = None
    victim: EmbeddedBookie | None = None
    loss: LackingCopies = field(default_factory=lambda: LackingCopies(frozenset(), {}))
    parked: dict[LedgerId, str] = field(default_factory=dict)
    repaired: list[WrittenLedger] = field(default_factory=list)
    repaired_fragments: int = 0
    repaired_bytes: int = 0
