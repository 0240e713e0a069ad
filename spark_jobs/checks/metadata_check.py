"""The metadata lint: problems of the metadata itself, independent of the registrations.

A pure function of the ledgers, in Spark SQL, so no row passes through Python. It equals
``bookie.model.metadata_faults``, and a property test keeps the two equal. The lint only reports and marks nothing: a
fault shows that something is wrong, but not the correct value, and a ledger with unreadable metadata cannot be judged
at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the name that every Spark user knows)

from bookie.model.ids import NO_ENTRY, BookieId
from bookie.model.metadata_faults import REASONS, MetadataFault
from bookie.model.ownership import OWNER_COLUMNS
from bookie.model.times import rfc3339
from spark_jobs.checks.findings import FINDING_DDL, FindingKind
from spark_jobs.checks.sql_text import literal

_VALUES: Final = {"kind": repr(FindingKind.UNREADABLE_METADATA.value), "ledger_id": "ledger_id", "detail": "error"}
_COLUMNS: Final = [column.split() for column in FINDING_DDL.split(",")]
_FINDING: Final = [f"CAST({_VALUES.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS]


def unreadable_metadata(ledgers: DataFrame) -> DataFrame:
    """Return one finding per ledger with unreadable metadata. Nothing is known about its copies."""
    return ledgers.where("error IS NOT NULL").selectExpr(*_FINDING)


def metadata_faults(ledgers: DataFrame) -> DataFrame:
    """Return one finding per fault except ``STUCK_RECOVERY``, from rows of ``bk_ledgers``."""
    found = ledgers.selectExpr("*", f"{_FAULTS} AS faults").where("size(faults) > 0")
    return found.selectExpr("*", "explode(faults) AS fault").selectExpr(*_FAULT_FINDING)


def stuck_recoveries(ledgers: DataFrame, changed_ms: Mapping[int, int]) -> DataFrame:
    """Return one finding per ledger in recovery for too long.

    Args:
        ledgers: rows of ``bk_ledgers``.
        changed_ms: ids of the ledgers in recovery for too long, with the time of their last change, epoch milliseconds.
            They become part of the query, so their number must be bounded.
    """
    texts = [literal(f"its metadata has not changed since {rfc3339(at)}") for at in changed_ms.values()]
    times = ", ".join(f"{ledger_id}L, {text}" for ledger_id, text in zip(changed_ms, texts, strict=True))
    stuck = ledgers.where(F.col("ledger_id").isin(*changed_ms)) if changed_ms else ledgers.where("false")
    detail = f"element_at(map({times}), ledger_id)" if changed_ms else "NULL"
    return stuck.selectExpr("*", f"{_fault(MetadataFault.STUCK_RECOVERY, detail)} AS fault").selectExpr(*_FAULT_FINDING)


def dangling_cookie_findings(spark: SparkSession, bookies: Sequence[BookieId]) -> DataFrame:
    """Return one finding per bookie with a dangling cookie.

    The bookies become part of the query, so their number must be bounded.
    """
    names = spark.range(1).selectExpr(f"explode(array({', '.join(map(literal, bookies))})) AS bookie")
    return names.selectExpr(*(f"CAST({_COOKIE.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS))


_COOKIE: Final = {
    "kind": literal(FindingKind.DANGLING_COOKIE.value),
    "missing": "array(bookie)",
    "detail": literal("it has a cookie, is not registered, and no ledger names it"),
}


def _fault(fault: MetadataFault, detail: str, index: str = "NULL") -> str:
    return (
        f"named_struct('kind', {literal(fault.label)}, 'number', CAST({index} AS int), "
        f"'detail', CAST({detail} AS string))"
    )


def _fault_if(condition: str, fault: MetadataFault, detail: str, index: str = "NULL") -> str:
    return f"IF({condition}, {_fault(fault, detail, index)}, NULL)"


_DECODING_FAULT_CASES: Final = " ".join(
    f"WHEN error RLIKE {literal(pattern)} THEN {literal(fault.label)}" for fault, pattern in REASONS
)
_OF_LEDGER: Final = ", ".join(
    (
        _fault_if(
            "fragments[0].first_entry_id > 0",
            MetadataFault.FRAGMENT_GAP,
            "concat('the first fragment begins at entry ', fragments[0].first_entry_id)",
            "0",
        ),
        _fault_if("ack_quorum = 0", MetadataFault.NO_ACK_QUORUM, "concat('E=', ensemble_size, ' Qw=', write_quorum)"),
        _fault_if(
            "last_entry_id < element_at(fragments, -1).first_entry_id - 1",
            MetadataFault.LAST_ENTRY_TOO_LOW,
            "concat('the last entry is ', last_entry_id, ', and the last fragment begins at ', "
            "element_at(fragments, -1).first_entry_id)",
        ),
        _fault_if(
            f"length < 0 OR (length = 0) != (last_entry_id <= {NO_ENTRY})",
            MetadataFault.LENGTH_MISMATCH,
            "concat('the length is ', length, ', and the last entry is ', last_entry_id)",
        ),
    )
)
_DUPLICATE_MEMBER_FAULTS: Final = f"""
    transform(
        filter(transform(fragments, (fragment, number) -> named_struct('number', number, 'members', fragment.members)),
               each -> size(array_distinct(each.members)) < size(each.members)),
        each -> {
    _fault(
        MetadataFault.DUPLICATE_MEMBER,
        "concat('named twice: ', array_join(array_sort(array_distinct(filter(each.members, member -> "
        "size(filter(each.members, other -> other = member)) > 1))), ', '))",
        "each.number",
    )
})
"""
_FAULTS: Final = f"""
    CASE WHEN error IS NULL THEN array_compact(concat({_DUPLICATE_MEMBER_FAULTS}, array({_OF_LEDGER})))
         ELSE filter(array(named_struct('kind', CASE {_DECODING_FAULT_CASES} END,
                                        'number', CAST(NULL AS int), 'detail', error)),
                     each -> each.kind IS NOT NULL) END
"""
_FAULT_VALUES: Final = {
    "kind": "fault.kind",
    "ledger_id": "ledger_id",
    "state": "state",
    "fragment_index": "fault.number",
    "fragment_first_entry_id": "fragments[fault.number].first_entry_id",
    "fragment_last_entry_id": "fragments[fault.number].last_entry_id",
    "is_last_fragment": "fault.number = size(fragments) - 1",
    "missing": "array()",
    "detail": "fault.detail",
    "write_quorum": "write_quorum",
    "ack_quorum": "ack_quorum",
    **{name: name for name in OWNER_COLUMNS},
}
_FAULT_FINDING: Final = [f"CAST({_FAULT_VALUES.get(name, 'NULL')} AS {kind}) AS {name}" for name, kind in _COLUMNS]
