"""Operations that are split into parts, each of which fits into one multi."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bookie.metadata.access import ZooKeeperAccess, set_current_access
from bookie.metadata.nodes import batches, group_batches
from bookie.metadata.port import MULTI_OPS_MAX, NODE_DATA_MAX, Create, Delete, NodeTooLargeError, Operation
from bookie.metadata.request_limits import check_multi, operation_size
from bookie.metadata.store.jute import encode_acl, multi_request


def test_batches_contain_everything_in_order_and_fit_into_a_multi() -> None:
    operations: list[Operation] = [Create(f"/n{number}", bytes(number * 7)) for number in range(1_200)]
    parts = list(batches(operations))
    assert [operation for part in parts for operation in part] == operations
    assert len(parts) > 1_200 // MULTI_OPS_MAX
    for part in parts:
        check_multi(part)


def test_many_bytes_start_a_new_batch() -> None:
    large = Create("/large", bytes(NODE_DATA_MAX // 2 - 100))
    assert [len(part) for part in batches([large] * 5)] == [2, 2, 1]


def test_a_group_stays_in_one_batch() -> None:
    groups = [(Create(f"/d{number}"), Create(f"/d{number}/a"), Create(f"/d{number}/b")) for number in range(400)]
    parts = list(group_batches(groups))
    assert [len(part) for part in parts] == [498, 498, 204]


def test_no_operations_make_no_batch() -> None:
    assert list(batches([])) == []


def test_a_batch_is_yielded_before_the_later_ones_are_made() -> None:
    made = 0

    def operations() -> Iterator[Operation]:
        nonlocal made
        for number in range(10 * MULTI_OPS_MAX):
            made += 1
            yield Delete(f"/n{number}")

    assert len(next(batches(operations()))) == MULTI_OPS_MAX
    assert made == MULTI_OPS_MAX + 1


def test_names_count_in_bytes() -> None:
    assert operation_size(Create("/é", b"xy")) - operation_size(Delete("/a")) == 3


def test_the_acl_of_each_create_counts_toward_the_size() -> None:
    access = ZooKeeperAccess(acl="world:anyone:cdrwa;" + ";".join(f"digest:{'user' * 10}é{i:03d}:r" for i in range(50)))
    acl = encode_acl(access.acl_entries)
    assert access.acl_bytes == len(acl)
    operations: list[Operation] = [Create(f"/n{number}") for number in range(1_200)]
    set_current_access(access)
    parts = list(batches(operations))
    assert [operation for part in parts for operation in part] == operations
    for part in parts:
        check_multi(part)
        assert len(multi_request(part, acl)) <= NODE_DATA_MAX
    with pytest.raises(NodeTooLargeError):
        check_multi(operations[:MULTI_OPS_MAX])
    assert [len(part) for part in batches([Delete(f"/n{number}") for number in range(1_000)])] == [MULTI_OPS_MAX] * 2
