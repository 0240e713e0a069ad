"""The ledgers of a scan as the two tables of an image. Pure; the inner loop of every scan that writes an image.

``ledgers`` has a row for each readable ledger, and ``index`` one for each ledger and bookie, in the order of bookies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bookie.model.metadata import LedgerState
from bookie.model.schedule import Stripe

LEDGERS_SCHEMA: Final = pa.schema(
    [
        ("ledger_id", pa.int64()),
        ("state", pa.string()),
        ("ensemble_size", pa.int32()),
        ("write_quorum", pa.int32()),
        ("ack_quorum", pa.int32()),
        ("bookies", pa.list_(pa.string())),
        ("settled", pa.bool_()),
    ]
)
"""``bookies``: the members of all fragments, one fragment after the other, ``ensemble_size`` of each. ``settled``: the
ledger was closed and not marked, all of its bookies were live, and no fragment named a bookie twice.
"""
INDEX_SCHEMA: Final = pa.schema([("bookie_id", pa.string()), ("ledger_id", pa.int64()), ("write_quorum", pa.int32())])
"""``write_quorum``: the smallest number of different bookies that hold an entry. It is lower than the write quorum only
if a fragment names a bookie twice.
"""
_STATES: Final = {state.value: state.name for state in LedgerState}

_CLOSED: Final = LedgerState.CLOSED.value

_Shape = tuple[int, int, int, int, tuple[str, ...], bool]
"""All values of a ledger except its id. Many ledgers have the same values."""


class ImageTables(NamedTuple):
    """The rows of some ledgers."""

    ledgers: pa.Table
    index: pa.Table


class ImageColumns:
    """Collects ledgers. Not shared between threads."""

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        return len(self._ids)

    def add(
        self,
        ledger_id: int,
        state: int,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        members: Sequence[str],
        *,
        is_live: bool = False,
    ) -> None:
        """Add one ledger.

        Args:
            ledger_id: its id.
            state: wire value of its state.
            ensemble_size: E.
            write_quorum: Qw.
            ack_quorum: Qa.
            members: the bookies of all of its fragments, one fragment after the other.
            is_live: whether all of these bookies are known to be live.
        """
        names = tuple(map(self._names.setdefault, members, members))  # one text for each bookie, not for each ledger
        shape = (state, ensemble_size, write_quorum, ack_quorum, names, is_live)
        self._ids.append(ledger_id)
        self._codes.append(self._known.setdefault(shape, len(self._known)))
        self.members += len(names)

    def take(self) -> ImageTables:
        """Return the ledgers added since the last call."""
        shapes = list(self._known)
        ids, codes = pa.array(self._ids, pa.int64()), pa.array(self._codes, pa.int32())
        columns = list(zip(*shapes, strict=True)) or [()] * 6
        of_shapes = [
            pa.array([_STATES[state] for state in columns[0]], pa.string()),
            *(pa.array(column, pa.int32()) for column in columns[1:4]),
            pa.array(columns[4], pa.list_(pa.string())),
            pa.array(map(_is_settled, shapes), pa.bool_()),
        ]
        distinct = of_shapes[4]
        if any(len(set(members)) < len(members) for members in columns[4]):
            distinct = pa.array([tuple(dict.fromkeys(members)) for members in columns[4]], pa.list_(pa.string()))
        of_ledgers = [column.take(codes) for column in of_shapes]
        holders = pa.array(map(_holders_min, shapes, of_shapes[-1].to_pylist()), pa.int32()).take(codes)
        self._clear()
        return ImageTables(pa.table([ids, *of_ledgers], schema=LEDGERS_SCHEMA), _index(ids, holders, distinct, codes))

    def _clear(self) -> None:
        self._ids: list[int] = []
        self._codes: list[int] = []
        self._known: dict[_Shape, int] = {}
        self._names: dict[str, str] = {}
        self.members = 0
        """Number of members of all fragments of these ledgers."""


def tables_of(ledgers: pa.Table) -> ImageTables:
    """Return the tables of settled rows from another image."""
    ledgers = ledgers.combine_chunks()
    lists = pc.list_flatten(ledgers["bookies"]).combine_chunks()
    names = lists.unique().sort()
    # One number encodes each pair of bookie and row. Sorting them yields the order of bookies, with each pair once.
    count = max(1, len(ledgers))
    parents = pc.list_parent_indices(ledgers["bookies"]).combine_chunks().cast(pa.int64())
    keys = pc.add(pc.multiply(pc.index_in(lists, names).cast(pa.int64()), count), parents).unique().sort()
    bookies = pc.divide(keys, count)
    rows = pc.subtract(keys, pc.multiply(bookies, count))
    columns = [names.take(bookies), ledgers["ledger_id"].take(rows), ledgers["write_quorum"].take(rows)]
    return ImageTables(ledgers, pa.table(columns, schema=INDEX_SCHEMA))


def without_settled(ledgers: pa.Table, ids: pa.Array | None) -> pa.Table:
    """Return the same rows, but none of these ledgers is settled; None: no ledger is."""
    if ids is not None and not len(ids):
        return ledgers
    settled = ledgers["settled"]
    stay = pa.array([False] * len(ledgers)) if ids is None else pc.invert(pc.is_in(ledgers["ledger_id"], ids))
    number = ledgers.schema.get_field_index("settled")
    return ledgers.set_column(number, ledgers.schema.field(number), pc.and_(settled, stay))


def _is_settled(shape: _Shape) -> bool:
    state, size, _, _, members, is_live = shape
    if not (is_live and state == _CLOSED and size > 0):
        return False
    fragments = (members[start : start + size] for start in range(0, len(members), size))
    return all(len(set(fragment)) == size for fragment in fragments)


def _holders_min(shape: _Shape, is_settled: bool) -> int:
    """Return the smallest number of different bookies in any write set."""
    _, size, quorum, _, members, _ = shape
    if is_settled or size <= 0:  # a settled ledger names no bookie twice
        return quorum
    fragments = {members[start : start + size] for start in range(0, len(members), size)}
    twice = [fragment for fragment in fragments if len(set(fragment)) < len(fragment)]
    write_sets = ((each, where) for each in twice for where in Stripe(len(each), quorum).write_sets())
    return min((len({each[position] for position in where}) for each, where in write_sets), default=quorum)


def _index(ids: pa.Array, write_quorums: pa.Array, members: pa.Array, codes: pa.Array) -> pa.Table:
    """Return one row for each ledger and bookie, sorted by bookie, and then in the order of ``ids``."""
    names = members.flatten().unique().sort()
    numbers = pa.ListArray.from_arrays(members.offsets, pc.index_in(members.flatten(), names)).take(codes)
    bookies, rows = numbers.flatten(), pc.list_parent_indices(numbers)
    order = pc.array_sort_indices(bookies)  # a stable sort, which keeps the order of ``ids``
    rows = rows.take(order)
    return pa.table([names.take(bookies.take(order)), ids.take(rows), write_quorums.take(rows)], schema=INDEX_SCHEMA)
