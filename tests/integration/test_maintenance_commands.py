"""The commands for maintenance windows, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie.embedded.cluster import EmbeddedCluster
from tests.integration.commands import document, started, typed

pytestmark = pytest.mark.integration


def test_a_maintenance_window_of_a_rack_is_opened_shown_and_ended(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    uri = shared_cluster.metadata_uri
    names = sorted(bookie.bookie_id for bookie in shared_cluster.bookies)[:2]
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps(dict.fromkeys(names, "/r1")))
    racks = ("--topology-file", str(topology))
    opened = document(started(uri, "maintenance", "start", "rack:/r1", "--for", "30m", *racks, "-o", "json"))
    try:
        assert (opened["bookies"], opened["hold_critical"]) == (names, False)
        (listed,) = document(typed(uri, "maintenance", "list", "-o", "json"))["items"]
        (shown,) = document(typed(uri, "status", "-o", "json"))["maintenance"]
        assert listed == shown == {name: opened[name] for name in listed}
        assert b"maintenance rack:/r1 until " in typed(uri, "status").stdout
        assert typed(uri, "maintenance", "start", "nobody:1").returncode == 1
    finally:
        ended = document(typed(uri, "maintenance", "end", "rack:/r1", "-o", "json"))
    assert ended["was_open"]
    assert document(typed(uri, "status", "-o", "json"))["maintenance"] == []
