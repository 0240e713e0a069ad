"""The repair of a cluster after the loss of two bookies, in the order of the copies left, while a writer continues."""

from __future__ import annotations

import pytest

from auditor.bench.repairs.cluster import ClusterSettings, run
from replicator.settings import ReplicatorSettings

pytestmark = [pytest.mark.long]


async def test_after_a_loss_of_two_of_twenty_bookies_the_most_endangered_ledgers_are_repaired_first() -> None:
    settings = ClusterSettings(ledgers=4_000, idle_s=5.0)

    figures = await run(settings, lambda _: None)

    assert figures["repaired_ledgers"] > 0
    assert next(iter(figures["order"])) == "1 copy left"
    in_flight = settings.replicators * ReplicatorSettings(metadata_uri="zk://host/ledgers").ledgers_in_flight
    for each in figures["order"].values():
        assert each["less_urgent_began_sooner"] <= in_flight, figures["order"]
