"""The part of Pulsar that owns a ledger, from its custom metadata."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.model.coverage import is_covered
from bookie.model.impact import Effect, Standing, effect_of, is_unrecoverable, standing_of
from bookie.model.ownership import (
    NAME_BYTES_MAX,
    NO_OWNER,
    UNKNOWN_OWNER,
    Component,
    Owner,
    SystemRole,
    Topic,
    owner_names,
    owner_of,
    partitioned_name,
    system_role,
    topic_of_managed_ledger,
)
from bookie.model.schedule import Stripe
from bookie.model.severity import Severity, fragment_health

ORDERS = Topic("shop", "shop/eu", "persistent://shop/eu/orders")


def pulsar(component: bytes, **values: bytes) -> list[tuple[str, bytes]]:
    """Return custom metadata as Pulsar writes it."""
    named = [(f"pulsar/{key.replace('__', '-')}", value) for key, value in values.items()]
    return [("application", b"pulsar"), ("component", component), *named]


@pytest.mark.parametrize(
    ("custom", "owner"),
    [
        (
            pulsar(b"managed-ledger", managed__ledger=b"shop/eu/persistent/orders"),
            Owner(Component.MANAGED_LEDGER, ORDERS),
        ),
        (
            pulsar(b"managed-ledger", managed__ledger=b"shop/eu/persistent/orders", cursor=b"bill%2Fing+1"),
            Owner(Component.CURSOR, ORDERS, "bill/ing 1"),
        ),
        (pulsar(b"schema", schemaId=b"shop/eu/orders"), Owner(Component.SCHEMA, ORDERS)),
        (
            pulsar(b"compacted-ledger", compactedTopic=b"persistent://shop/eu/orders", compactedTo=b"\x08\xff"),
            Owner(Component.COMPACTED, ORDERS),
        ),
        (
            pulsar(
                b"delayed-index-bucket",
                delayedIndexBucketKey=b"k",
                delayedIndexTopic=b"persistent://shop/eu/orders",
                delayedIndexCursor=b"s",
            ),
            Owner(Component.DELAYED_INDEX, ORDERS, "s"),
        ),
        (pulsar(b"delayed-index-bucket", delayedIndexBucketKey=b"k"), Owner(Component.DELAYED_INDEX)),
    ],
)
def test_each_component_names_its_topic(custom: list[tuple[str, bytes]], owner: Owner) -> None:
    assert owner_of(custom) == owner


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("t/n/persistent/a-partition-3", Topic("t", "t/n", "persistent://t/n/a-partition-3")),
        ("t/n/persistent/%C3%A4%2Fb+%25", Topic("t", "t/n", "persistent://t/n/ä/b %")),
        ("t/cluster/n/persistent/a", Topic("t", "t/cluster/n", "persistent://t/cluster/n/a")),
        ("t/n/segment/a/0000-7fff-1", Topic("t", "t/n", "segment://t/n/a/0000-7fff-1")),
    ],
)
def test_managed_ledgers_of_every_form(name: str, topic: Topic) -> None:
    assert topic_of_managed_ledger(name) == topic


@pytest.mark.parametrize("custom", [[], [("application", b"distributedlog")], [("pulsar/managed-ledger", b"t/n/p/a")]])
def test_a_ledger_not_written_by_pulsar_has_no_owner(custom: list[tuple[str, bytes]]) -> None:
    assert owner_of(custom) is None
    assert owner_names(owner_of(custom)) == NO_OWNER


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"t/n/persistent",
        b"t/n/persistent/",
        b"t//persistent/a",
        b"t/n/other/a",
        b"a/b/c/d/e/persistent/x",
        b"t/n/persistent/%",
        b"t/n/persistent/%zz",
        b"t/n/persistent/a b",
        b"t/n/persistent/%ff",
        b"t/n/persistent/\xff",
        b"t/n/persistent/" + b"a" * NAME_BYTES_MAX,
    ],
)
def test_a_damaged_name_is_not_partly_decoded(name: bytes) -> None:
    assert owner_of(pulsar(b"managed-ledger", managed__ledger=name)) == UNKNOWN_OWNER


@pytest.mark.parametrize(
    "custom",
    [
        [("application", b"pulsar")],
        pulsar(b"a component of a later release"),
        pulsar(b"managed-ledger"),
        pulsar(b"managed-ledger", managed__ledger=b"shop/eu/persistent/orders", cursor=b"\xff"),
        pulsar(b"schema", schemaId=b"shop/orders"),
        pulsar(b"compacted-ledger", compactedTopic=b"shop/eu/orders"),
        pulsar(b"compacted-ledger", compactedTopic=b"http://shop/eu/orders"),
        pulsar(b"delayed-index-bucket", delayedIndexTopic=b"\xc3"),
    ],
)
def test_undecodable_metadata_of_pulsar_has_an_unknown_owner(custom: list[tuple[str, bytes]]) -> None:
    assert owner_of(custom) == UNKNOWN_OWNER
    assert owner_names(UNKNOWN_OWNER) == (None, None, None, "unknown", None)


@given(st.dictionaries(st.text(max_size=30), st.binary(max_size=40), max_size=6), st.booleans())
def test_custom_metadata_never_raises_an_error(values: dict[str, bytes], is_pulsar: bool) -> None:
    given_values = {**values, "application": b"pulsar"} if is_pulsar else values
    assert (owner_of(given_values.items()) is not None) == (given_values.get("application") == b"pulsar")


@given(st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()), st.text(max_size=20))
def test_every_name_that_java_encodes_is_decoded(local: str, subscription: str) -> None:
    encoded = quote_plus(local, safe="*").replace("~", "%7E")
    custom = pulsar(b"managed-ledger", managed__ledger=f"t/n/persistent/{encoded}".encode())
    owner = owner_of(custom)
    assert owner is not None
    assert owner.topic == Topic("t", "t/n", f"persistent://t/n/{local}")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("a-partition-0", "a"),
        ("a-partition-12", "a"),
        ("a-partition-01", "a-partition-01"),
        ("a-partition--1", "a-partition--1"),
        ("a-partition-2147483648", "a-partition-2147483648"),
        ("a-partition-1-partition-2", "a-partition-1"),
        ("-partition-1", "-partition-1"),
    ],
)
def test_partitions_are_recognized_as_pulsar_does(name: str, whole: str) -> None:
    assert partitioned_name(name) == whole


@pytest.mark.parametrize(
    ("topic", "role"),
    [
        (Topic("t", "t/n", "persistent://t/n/__change_events"), SystemRole.TOPIC_POLICIES),
        (Topic("t", "t/n", "persistent://t/n/__change_events-partition-0"), SystemRole.TOPIC_POLICIES),
        (Topic("t", "t/c/n", "persistent://t/c/n/__change_events"), SystemRole.TOPIC_POLICIES),
        (Topic("t", "t/n", "persistent://t/n/__transaction_buffer_snapshot"), SystemRole.TRANSACTIONS),
        (Topic("t", "t/n", "persistent://t/n/a-s__transaction_pending_ack"), SystemRole.TRANSACTIONS),
        (Topic("pulsar", "pulsar/system", "persistent://pulsar/system/loadbalancer-x"), SystemRole.LOAD_BALANCER),
        (
            Topic("pulsar", "pulsar/system", "persistent://pulsar/system/transaction_coordinator_assign-partition-4"),
            SystemRole.TRANSACTIONS,
        ),
        (Topic("public", "public/functions", "persistent://public/functions/assignments"), SystemRole.FUNCTIONS),
        (Topic("t", "t/n", "persistent://t/n/a/__change_events"), None),
        (Topic("t", "t/n", "persistent://t/n/orders"), None),
    ],
)
def test_system_topics_of_pulsar_are_recognized(topic: Topic, role: SystemRole | None) -> None:
    assert topic.role is role
    assert system_role(topic.namespace, topic.name) is role


def test_the_effect_of_a_ledger_follows_from_its_use() -> None:
    assert effect_of(Component.MANAGED_LEDGER, SystemRole.TOPIC_POLICIES, is_closed=True) is Effect.NAMESPACE_DOWN
    assert effect_of(Component.MANAGED_LEDGER, SystemRole.TRANSACTIONS, is_closed=True) is Effect.SYSTEM_DOWN
    assert effect_of(Component.CURSOR, SystemRole.TOPIC_POLICIES, is_closed=True) is Effect.REWINDS
    assert effect_of(Component.MANAGED_LEDGER, None, is_closed=False) is Effect.TOPIC_DOWN
    assert effect_of(Component.MANAGED_LEDGER, None, is_closed=True) is Effect.READS_STOP
    assert effect_of(Component.SCHEMA, None, is_closed=True) is Effect.NO_CONNECT


@pytest.mark.parametrize(
    ("copies", "missing", "write_quorum", "ack_quorum", "expected"),
    [
        (1, 1, 2, 2, False),
        (0, 2, 2, 2, True),
        (1, 2, 3, 2, True),
        (2, 1, 3, 2, False),
        (1, 1, 2, 1, True),
        (1, 1, 3, 2, False),  # the bookie with the copy has two positions
        (2, 3, 3, 2, False),  # each write set lacks one position
    ],
)
def test_an_open_ledger_needs_a_quorum_of_each_write_set(
    copies: int, missing: int, write_quorum: int, ack_quorum: int, expected: bool
) -> None:
    def is_unknown(*, is_open_end: bool) -> bool:
        return is_unrecoverable(
            is_open_end=is_open_end,
            copies_min=copies,
            missing_positions=missing,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
        )

    assert is_unknown(is_open_end=True) is expected
    assert not is_unknown(is_open_end=False)


@given(st.data())
def test_the_end_of_an_open_ledger_is_unknown_if_it_cannot_be_recovered(data: st.DataObject) -> None:
    members = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6))
    lost = data.draw(st.sets(st.sampled_from("abcdef"), max_size=3))
    write_quorum = data.draw(st.integers(1, len(members)))
    ack_quorum = data.draw(st.integers(1, write_quorum))
    is_live = [member not in lost for member in members]
    health = fragment_health(is_live, write_quorum, ack_quorum, 0, None, members=members)
    is_unknown = is_unrecoverable(
        is_open_end=True,
        copies_min=health.copies_min,
        missing_positions=len(health.missing_positions),
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
    )
    known = [position for position, live in enumerate(is_live) if live]
    if not is_covered(known, Stripe(len(members), write_quorum), ack_quorum):
        assert is_unknown
    elif write_quorum == len(members) or len(set(members)) == len(members):
        assert not is_unknown


def test_only_missing_copies_put_a_topic_at_risk() -> None:
    standings = {severity: standing_of(severity, is_end_unknown=False) for severity in Severity}
    now = {severity for severity, standing in standings.items() if standing is Standing.NOW}
    none = {severity for severity, standing in standings.items() if standing is Standing.NONE}
    assert now == {Severity.LOST, Severity.NO_LIVE_COPY}
    assert none == {Severity.METADATA_ONLY, Severity.MISPLACED, Severity.DRAIN}
    assert standing_of(Severity.CRITICAL, is_end_unknown=True) is Standing.NOW
    assert standing_of(Severity.DRAIN, is_end_unknown=True) is Standing.NONE, "a drained bookie answers requests"
