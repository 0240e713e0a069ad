"""The bookie check: fragments on bookies that are not registered or are draining, and the severity of each.

A pure function of two tables. Spark SQL expressions compute the severity, so no row passes through Python. It equals
``bookie.model.severity.fragment_health``, and a property test compares the two. A healthy ledger costs one lookup per
named bookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from pyspark.sql import DataFrame

from bookie.model.severity import Severity
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.sql_text import in_list

# A ledger's fragments are judged within its row, so no grouping and no shuffle is needed afterwards. Each step passes
# its results for a fragment to the next step in a struct.
_POSITIONS: Final = "sequence(0, ensemble_size - 1)"
_IS_ONLY_DRAINING: Final = "judged.dead = 0"
_VALUES: Final = {
    "kind": f"IF({_IS_ONLY_DRAINING}, {FindingKind.DRAINED_BOOKIE.value!r}, {FindingKind.MISSING_BOOKIE.value!r})",
    "fragment_index": "judged.number",
    "fragment_first_entry_id": "judged.first",
    "fragment_last_entry_id": "judged.last",
    "is_last_fragment": "judged.number = size(fragments) - 1",
    "missing_positions": "judged.missing_positions",
    "missing": "judged.missing",
    "copies_min": "judged.copies_min",
    "severity": "element_at(array({levels}), {rank} + 1)",
    "severity_rank": "{rank}",
    "entries": "judged.entries",
    # The same formula as ``bookie.model.severity.bytes_to_copy``.
    "bytes_estimate": f"""
        CASE WHEN {{rank}} = {Severity.METADATA_ONLY.value} THEN 0L
             WHEN last_entry_id >= 0 THEN try_cast(rint(
                 length / (CAST(last_entry_id AS double) + 1) * judged.entries * size(judged.missing_positions)
                 * write_quorum / ensemble_size) AS bigint)
             WHEN last_entry_id IS NOT NULL THEN 0L END
    """,
    "detail": "CAST(NULL AS string)",
}
_RANK: Final = f"""
    CASE WHEN {_IS_ONLY_DRAINING} THEN {Severity.DRAIN.value}
         WHEN judged.copies_min >= write_quorum THEN {Severity.METADATA_ONLY.value}
         WHEN judged.copies_min = 0 THEN {Severity.NO_LIVE_COPY.value}
         WHEN judged.copies_min = 1 THEN {Severity.CRITICAL.value}
         WHEN judged.copies_min < ack_quorum THEN {Severity.BELOW_ACK_QUORUM.value}
         ELSE {Severity.BELOW_WRITE_QUORUM.value} END
"""
_LEVELS: Final = ", ".join(repr(level.label) for level in sorted(Severity))
_NAMES: Final = [column.split()[0] for column in FINDING_DDL.split(",")]


def bookie_check(
    ledgers: DataFrame, live: Sequence[str] | DataFrame, draining: AbstractSet[str] = frozenset()
) -> DataFrame:
    """Return one finding per fragment that names a bookie outside of ``live``, or a draining one.

    Args:
        ledgers: rows of ``bk_ledgers``; rows with an error are skipped (the lint check reports them).
        live: ids of the registered bookies, writable and read-only (S8, R17), or a table with a column ``bookie_id``,
            which is collected: a cluster has hundreds. It must be read after ``ledgers`` (R2).
        draining: draining bookies. While such a bookie is live, its entries count as copies.
    """
    return bookie_check_by_ledger(ledgers, live, draining).selectExpr("inline(found)")


def bookie_check_by_ledger(
    ledgers: DataFrame, live: Sequence[str] | DataFrame, draining: AbstractSet[str] = frozenset()
) -> DataFrame:
    """Return the findings of ``bookie_check`` as one row per ledger with findings.

    The columns are ``ledger_id``, ``ctime_ms`` and ``found``.
    """
    ids = live_ids(live)
    return (
        ledgers.where(f"error IS NULL AND {_names_lost_bookie(ids, draining)}")
        .selectExpr("*", f"{_lacking(ids, draining)} AS lacking")
        .selectExpr("*", f"{_judged(ids, draining)} AS judgements")
        .selectExpr("ledger_id", "ctime_ms", f"transform(judgements, judged -> {_finding()}) AS found")
    )


def _names_lost_bookie(live: Sequence[str], draining: AbstractSet[str]) -> str:
    """Return the SQL condition that a fragment has a member that is draining or not live.

    A fragment has one member for each position, so this is equivalent to a result of ``_lacking`` that is not empty.
    Spark moves a filter below the computation of its columns, so with a filter on that result, it would compute it
    twice.
    """
    stays = in_list("member", _staying(live, draining))
    return f"exists(fragments, fragment -> exists(fragment.members, member -> NOT {stays}))"


def _staying(live: Sequence[str], draining: AbstractSet[str]) -> list[str]:
    return [bookie for bookie in live if bookie not in draining]


def _lacking(live: Sequence[str], draining: AbstractSet[str]) -> str:
    """Return the SQL for the fragments with positions on bookies that are draining or not live."""
    stays = in_list("fragment.members[position]", _staying(live, draining))
    return f"""
        filter(
            transform(fragments, (fragment, number) -> named_struct(
                'number', number, 'first', fragment.first_entry_id, 'last', fragment.last_entry_id,
                'members', fragment.members,
                'missing_positions', filter({_POSITIONS}, position -> NOT {stays}))),
            fragment -> size(fragment.missing_positions) > 0)
    """


def _judged(live: Sequence[str], draining: AbstractSet[str]) -> str:
    """Return the SQL that adds the number of dead positions, the fewest copies of an entry, and the missing bookies.

    Entry n is on the Qw positions from n mod E on, so the first position identifies a write set. The fragment has every
    write set if its end is unknown or it has at least E entries, and none if it is empty. The smallest count of copies
    over the write sets is the result, or Qw without a write set. If Qw equals E, there is only one write set. A bookie
    that the fragment names twice has one copy. The last entry is compared before any subtraction, so no difference
    overflows.
    """
    dead = "size(fragment.missing_positions)"
    if draining:
        is_live = in_list("fragment.members[position]", live)
        dead = f"size(filter(fragment.missing_positions, position -> NOT {is_live}))"
    # Most fragments lack only one bookie, which needs no comparison.
    missing = "transform(fragment.missing_positions, position -> fragment.members[position])"
    missing = f"IF(size(fragment.missing_positions) > 1, array_distinct({missing}), {missing})"
    is_copy = in_list("fragment.members[(start + offset) % ensemble_size]", live)
    copies = f"""aggregate(sequence(0, write_quorum - 1), 0,
                           (copies, offset) -> copies + CAST({is_copy} AS int))"""
    holders = f"""size(array_distinct(transform(
                      filter(sequence(0, write_quorum - 1), offset -> {is_copy}),
                      offset -> fragment.members[(start + offset) % ensemble_size])))"""
    # A member that also has an earlier position. With few members, this is faster than ``array_distinct``.
    is_repeated = "array_position(fragment.members, member) <= position"
    has_duplicates = f"size(filter(fragment.members, (member, position) -> {is_repeated})) > 0"
    return f"""
        transform(lacking, fragment -> named_struct(
            'number', fragment.number, 'first', fragment.first, 'last', fragment.last,
            'missing_positions', fragment.missing_positions,
            'missing', {missing},
            'dead', {dead},
            'entries', CASE WHEN fragment.last < fragment.first THEN 0L
                            ELSE try_add(fragment.last - fragment.first, 1L) END,
            'copies_min',
                CASE WHEN fragment.last < fragment.first THEN write_quorum
                     WHEN {has_duplicates} THEN {_fewest_copies_sql(holders)}
                     WHEN write_quorum = ensemble_size THEN ensemble_size - {dead}
                     ELSE {_fewest_copies_sql(copies)} END))
    """


def _fewest_copies_sql(copies: str) -> str:
    """Return the SQL for the smallest count over all write sets; ``copies`` is the SQL for one of them."""
    return f"""
        array_min(transform(
            CASE WHEN fragment.last IS NULL THEN {_POSITIONS}
                 ELSE transform(
                     sequence(0, CAST(least(fragment.last - fragment.first, ensemble_size - 1) AS int)),
                     offset -> CAST((fragment.first % ensemble_size + offset) % ensemble_size AS int)) END,
            start -> {copies}))
    """


def _finding() -> str:
    values = ", ".join(f"'{name}', {_VALUES.get(name, name)}" for name in _NAMES)
    return f"named_struct({values.format(rank=_RANK, levels=_LEVELS)})"


def live_ids(live: Sequence[str] | DataFrame) -> list[str]:
    """Return the distinct bookie ids of a table or a sequence, sorted."""
    if isinstance(live, DataFrame):
        return sorted({row["bookie_id"] for row in live.select("bookie_id").collect()})
    return sorted(set(live))
