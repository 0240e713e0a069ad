"""The placement matrix: the amounts of data in each pair of racks, and the numbers of racks of ensembles.

A ledger counts once for a pair of racks, even if several of its fragments are in both. A cluster has far fewer
different ensembles than fragments, so racks are looked up once for each ensemble. Fragments without entries are
skipped, and so are those with a member outside the topology: a guessed rack would falsify the numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.model.ids import BookieId
from bookie.model.topology import Topology

_CELL_DDL: Final = "racks int, first string, second string, ledgers bigint, fragments bigint, payload_bytes double"
_CELL_SCHEMA: Final = pa.schema(
    [
        ("racks", pa.int32()),
        ("first", pa.string()),
        ("second", pa.string()),
        *[(name, pa.int64()) for name in ("ledgers", "fragments")],
        ("payload_bytes", pa.float64()),
    ]
)
_END: Final = "least(fragment.last_entry_id, last_entry_id)"
_HELD: Final = f"""
    transform(
        filter(fragments, fragment -> fragment.last_entry_id IS NULL OR {_END} >= fragment.first_entry_id),
        fragment -> fragment.members)
"""

Cell = tuple[int | None, str | None, str | None]
"""A number of racks, or a pair of racks; the other fields are None."""


def cells_of(ensembles: Iterable[Sequence[BookieId]], topology: Topology) -> set[Cell]:
    """Return the cells of some ensembles: the smallest number of racks of one, and all pairs of racks.

    An ensemble with a member at an unknown place is left out.
    """
    numbers: set[int] = set()
    found: set[Cell] = set()
    for members in ensembles:
        places = [topology.known(member) for member in members]
        counts = Counter(place for place in places if place is not None)
        if counts.total() < len(places):
            continue
        racks = sorted(counts)
        numbers.add(len(racks))
        for number, first in enumerate(racks):
            found.update((None, first, second) for second in racks[number + 1 :])
            if counts[first] > 1:
                found.add((None, first, first))
    return found | ({(min(numbers), None, None)} if numbers else set())


def rack_cells(ledgers: DataFrame, verdicts: DataFrame, topology: Topology) -> DataFrame:
    """Return the sums for each cell: few rows, however many ledgers there are.

    Args:
        ledgers: rows of ``bk_ledgers``.
        verdicts: ``ensemble_verdicts`` of their fragments. They already count the ledgers with one fragment; the few
            other ledgers are counted here.
        topology: the locations of bookies.
    """
    of_fragments = verdicts.selectExpr(
        "inline(transform(cells, cell -> named_struct('racks', cell.racks, 'first', cell.first, 'second', cell.second,"
        " 'ledgers', ledgers_alone, 'fragments', fragments, 'payload_bytes', payload_bytes)))"
    )
    held = ledgers.where("error IS NULL AND size(fragments) > 1").selectExpr(f"array_distinct({_HELD}) AS ensembles")
    several = held.where("size(ensembles) > 0").groupBy("ensembles").agg(F.count("*").alias("ledgers"))
    of_ledgers = several.mapInArrow(_batch_location_lookup(topology), _CELL_DDL)
    cells = of_fragments.unionByName(of_ledgers).groupBy("racks", "first", "second")
    return cells.agg(*[F.sum(name).alias(name) for name in ("ledgers", "fragments", "payload_bytes")])


def _batch_location_lookup(topology: Topology) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    sendable = Topology(dict(topology.locations))  # a read-only view of a mapping cannot be sent to executors

    def look_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            for row in batch.to_pylist():
                sums = {"ledgers": row["ledgers"], "fragments": 0, "payload_bytes": 0.0}
                for racks, first, second in cells_of(row["ensembles"], sendable):
                    rows.append({"racks": racks, "first": first, "second": second, **sums})
            yield pa.RecordBatch.from_pylist(rows, schema=_CELL_SCHEMA)

    return look_up
