"""From a ledger of Pulsar to the nodes that may refer to it, and back."""

from __future__ import annotations

import pytest

from bookie.metadata.pulsar.decoding import UndecodableNodeError
from bookie.metadata.pulsar.referrers import (
    Referrer,
    ledger_with_reference,
    references_of,
    referrers_of,
    refers,
    requires,
)
from bookie.metadata.pulsar.tree import DENIED, NodeKind
from bookie.model.ownership import Component, Owner, Topic, owner_of
from tests.worlds.pulsar_nodes import COMPACTED, CURSOR, DELAYED, MESSAGES, ML, SCHEMA, Custom, cursor, managed, schema

TOPIC = Topic("t", "t/n", "persistent://t/n/orders")


@pytest.mark.parametrize(
    ("custom", "path"),
    [
        (MESSAGES, f"/p/managed-ledgers/{ML}"),
        (CURSOR, f"/p/managed-ledgers/{ML}/s%2F1"),
        (DELAYED, f"/p/managed-ledgers/{ML}/s%2F1"),
        (COMPACTED, f"/p/managed-ledgers/{ML}/__compaction"),
        (SCHEMA, "/p/schemas/t/n/orders"),
    ],
)
def test_the_custom_metadata_of_a_ledger_names_its_node(custom: Custom, path: str) -> None:
    owner = owner_of(custom)
    assert owner is not None
    (referrer,) = referrers_of("/p", owner)
    assert (referrer.path, referrer.topic) == (path, TOPIC)


@pytest.mark.parametrize(
    "owner",
    [
        Owner(Component.MANAGED_LEDGER),
        Owner(Component.UNKNOWN, TOPIC),
        Owner(Component.CURSOR, TOPIC),
        Owner(Component.DELAYED_INDEX, TOPIC),
    ],
)
def test_an_owner_that_names_no_node_has_no_referrer(owner: Owner) -> None:
    assert referrers_of("/p", owner) == ()


def test_a_node_refers_to_its_ledgers_or_is_refused() -> None:
    topic = Referrer("", NodeKind.MANAGED_LEDGER, ML)
    assert refers(topic, managed(1, 2), 2)
    assert not refers(topic, managed(1), 2)
    assert not refers(topic, None, 2)
    assert [each.ledger_id for each in references_of(NodeKind.CURSOR, cursor(3, compacted=4, bucket=5))] == [3, 4, 5]
    assert [each.ledger_id for each in references_of(NodeKind.SCHEMA, schema(6, 7))] == [7, 6]
    for unknown in (b"\xff", DENIED):
        for ask in (refers, requires):
            with pytest.raises(UndecodableNodeError):
                ask(topic, unknown, 2)


def test_a_shadow_topic_requires_none_of_its_ledgers() -> None:
    topic, data = (
        Referrer("", NodeKind.MANAGED_LEDGER, ML),
        managed(1, 2, offloaded=[2], shadow_of="persistent://t/n/a"),
    )
    assert references_of(NodeKind.MANAGED_LEDGER, data) == ()
    assert (refers(topic, data, 1), requires(topic, data, 1), requires(topic, managed(1), 1)) == (True, False, True)


def test_a_topic_requires_only_ledgers_whose_entries_are_only_in_bookkeeper() -> None:
    topic, data = Referrer("", NodeKind.MANAGED_LEDGER, ML), managed(1, 2, 3, 4, offloaded=[2], copied=[3], empty=[4])
    assert [number for number in range(1, 6) if refers(topic, data, number)] == [1, 2, 3, 4]
    assert [number for number in range(1, 6) if requires(topic, data, number)] == [1]


def test_the_compacted_ledger_of_a_cursor_stored_in_a_ledger_is_unknown() -> None:
    assert ledger_with_reference("__compaction", cursor(3)) == 3
    assert ledger_with_reference("__compaction", cursor(compacted=3)) is None
    assert ledger_with_reference("s", cursor(3)) is None
    assert Referrer("", NodeKind.MANAGED_LEDGER, "t/n/persistent/%zz").topic is None
