"""The topic that a ledger belongs to, in the form in which commands of Pulsar take it."""

from __future__ import annotations

import pytest

from auditor.safety.open_topics import topic_of


@pytest.mark.parametrize(
    ("custom", "topic"),
    [
        ({"pulsar/managed-ledger": b"public/default/persistent/t"}, "persistent://public/default/t"),
        (
            {"pulsar/managed-ledger": b"a/b/persistent/x%2Fy+z-partition-3", "pulsar/cursor": b"sub"},
            "persistent://a/b/x/y z-partition-3",
        ),
        ({"pulsar/managed-ledger": b"a/cluster/b/persistent/t"}, "persistent://a/cluster/b/t"),
        ({"pulsar/compactedTopic": b"persistent://a/b/t"}, "persistent://a/b/t"),
        ({"pulsar/schemaId": b"a/b/t"}, ""),
        ({"pulsar/managed-ledger": b"a/b/segment/t"}, ""),
        ({"pulsar/managed-ledger": b"t"}, ""),
        ({"pulsar/managed-ledger": b"\xff/persistent/"}, ""),
        ({}, ""),
    ],
)
def test_the_topic_of_a_ledger(custom: dict[str, bytes], topic: str) -> None:
    assert topic_of(custom) == topic
