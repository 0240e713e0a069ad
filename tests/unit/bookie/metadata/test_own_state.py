"""The kinds of bkheal's own state: each is in the list that decides whether a root is in use."""

from __future__ import annotations

import re
from pathlib import Path

from bookie.metadata.own_state import PRIVATE_KINDS, SHARED_KINDS, state_path

SOURCES = Path(__file__).parents[4]
_USE = re.compile(r"own_path\(['\"]([a-z-]+)['\"]")


def test_every_kind_of_node_is_listed() -> None:
    folders = ("auditor", "bookie", "replicator", "spark_jobs")
    texts = [path.read_text() for folder in folders for path in (SOURCES / folder).rglob("*.py")]
    used = {kind for text in texts for kind in _USE.findall(text)}
    assert used == {*SHARED_KINDS, *PRIVATE_KINDS}


def test_each_cluster_has_its_own_nodes_under_one_root() -> None:
    assert state_path("/bkheal", "drains", "/ledgers") == "/bkheal/drains/ledgers"
    assert state_path("/a/b", "drains", "/pulsar/ledgers") == "/a/b/drains/pulsar%2Fledgers"
