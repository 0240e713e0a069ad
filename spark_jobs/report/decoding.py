"""Decode ``summary.json`` to a value. Pure.

A report may be read by another version than the one that wrote it. A missing field gets the value that describes
reports from before the field existed. Fields that a newer version added are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from datetime import datetime
from typing import Any, ClassVar, Protocol, TypeVar

from bookie.metadata.bookies.marking_times import HoldReason
from bookie.metadata.bookies.registration import BookieState
from bookie.model.errors import PermanentError
from bookie.model.run import RunKind
from bookie.model.severity import Severity
from spark_jobs.report.counts import (
    AcceptedCounts,
    BookieCount,
    CheckPart,
    DriverMarksCounts,
    ImageCounts,
    InventoryBookie,
    InventoryCounts,
    LedgerCounts,
    LintCounts,
    NamespaceCount,
    PlacementCounts,
    PublishOutcome,
    PublishResult,
    RackNumber,
    RackPair,
    ReferenceCounts,
    ReplicaCounts,
    SampledBookie,
    SeverityCount,
    SnapshotCounts,
    UndecodableNode,
    UnknownAnswers,
    WaitingBookie,
    WorstLedger,
)
from spark_jobs.report.impact import Impact, impact_from_json
from spark_jobs.report.summary import API_VERSION, KIND, ClusterName, RunSummary

T = TypeVar("T", bound="_Dataclass")


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class DamagedReportError(PermanentError):
    """The document is not the summary of an audit."""


def is_report(document: object) -> bool:
    """Return whether a JSON document is the summary of an audit."""
    return isinstance(document, dict) and (document.get("apiVersion"), document.get("kind")) == (API_VERSION, KIND)


def decode_summary(document: Mapping[str, Any]) -> RunSummary:
    """Return the summary of which ``document`` is the ``to_json``.

    Raises:
        DamagedReportError: the document is not a summary.
    """
    if not is_report(document):
        raise DamagedReportError(f"not a document of kind {KIND} in version {API_VERSION}")
    try:
        return _summary(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedReportError(f"a report summary cannot be read: {error!r}") from error


def _summary(document: Mapping[str, Any]) -> RunSummary:
    published = _decode_publish_result(document["published"])
    return RunSummary(
        run_id=_text(document["run_id"]),
        cluster=_made(ClusterName, document["cluster"]),
        started_ms=_epoch_ms(document["started"]),
        finished_ms=_epoch_ms(document["finished"]),
        counts=_made(LedgerCounts, document["counts"]),
        severities=tuple(
            _made(SeverityCount, item, severity=Severity.of_label(item["severity"])) for item in document["findings"]
        ),
        bookies=tuple(
            _made(BookieCount, item, state=BookieState.of_label(item["state"])) for item in document["bookies"]
        ),
        worst_ledgers=tuple(
            _made(WorstLedger, item, severity=Severity.of_label(item["severity"]), missing=_texts(item["missing"]))
            for item in document["worst_ledgers"]
        ),
        published=published,
        problems=_texts(document["problems"]),
        held_because=None if document["held_because"] is None else _text(document["held_because"]),
        kind=RunKind(document.get("run_kind", RunKind.BOOKIES.value)),
        is_dry_run=bool(document.get("dry_run", published.outcome is PublishOutcome.DRY_RUN)),
        waiting=tuple(map(_waiting, document.get("waiting", ()))),
        placement=_placement(document.get("placement")),
        replicas=_replicas(document.get("replicas")),
        references=_references(document.get("references")),
        accepted=_accepted(document["accepted"]) if "accepted" in document else AcceptedCounts(),
        impact=impact_from_json(document["impact"]) if "impact" in document else Impact(),
        image=_image(document["image"]) if "image" in document else ImageCounts(),
        driver_marks=_driver_marks(document["driver_marks"]) if "driver_marks" in document else DriverMarksCounts(),
        parts=tuple(_made(CheckPart, item) for item in document.get("parts", ())),
        lint=_lint(document.get("lint")),
        inventory=_inventory(document.get("inventory")),
        snapshot=None if document.get("snapshot") is None else _made(SnapshotCounts, document["snapshot"]),
    )


def _image(item: Mapping[str, Any]) -> ImageCounts:
    return _made(
        ImageCounts,
        item,
        read_from_ms=_epoch_ms_or_zero(item["read_from"]),
        first_mark_ms=_epoch_ms_or_zero(item["first_mark"]),
        last_mark_ms=_epoch_ms_or_zero(item["last_mark"]),
        written_from_ms=_epoch_ms_or_zero(item["written_from"]),
        problem=_text(item["problem"] or ""),
        write_problem=_text(item["write_problem"] or ""),
        carried_from_ms=_epoch_ms_or_zero(item.get("carried_from")),
        carried_problem=_text(item.get("carried_problem") or ""),
    )


def _driver_marks(item: Mapping[str, Any]) -> DriverMarksCounts:
    return _made(
        DriverMarksCounts,
        item,
        first_mark_ms=_epoch_ms_or_zero(item["first_mark"]),
        last_mark_ms=_epoch_ms_or_zero(item["last_mark"]),
        problem=_text(item["problem"] or ""),
    )


def _epoch_ms_or_zero(text: str | None) -> int:
    return 0 if text is None else _epoch_ms(text)


def _waiting(item: Mapping[str, Any]) -> WaitingBookie:
    critical = item.get("critical_until")
    return _made(
        WaitingBookie,
        item,
        first_seen_down_ms=_epoch_ms(item["first_seen_down"]),
        until_ms=_epoch_ms(item["until"]),
        critical_until_ms=_epoch_ms(critical) if critical else 0,
        detail=_text(item.get("detail") or ""),
    )


def _decode_publish_result(item: Mapping[str, Any]) -> PublishResult:
    """Decode a result of publishing. Older reports have no reasons, only the number of waiting ledgers."""
    held = item.get("held_back")
    if held is None:
        waiting = _count(item.get("ledgers_waiting", 0))
        held = {HoldReason.DELAY.value: waiting} if waiting else {}
    return _made(
        PublishResult,
        item,
        outcome=PublishOutcome(item["outcome"]),
        held_back=_counts(held),
        withdrawn=_counts(item.get("withdrawn", {})),
    )


def _counts(item: Mapping[str, Any]) -> Mapping[str, int]:
    return {_text(reason): _count(count) for reason, count in item.items()}


def _count(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a number of ledgers")
    return value


def _placement(item: Mapping[str, Any] | None) -> PlacementCounts | None:
    if item is None:
        return None
    return _made(
        PlacementCounts,
        item,
        unknown_bookies=_texts(item.get("unknown_bookies", [])),
        rack_numbers=tuple(_made(RackNumber, each) for each in item.get("rack_numbers", ())),
        racks=tuple(_made(RackPair, each) for each in item.get("racks", ())),
    )


def _lint(item: Mapping[str, Any] | None) -> LintCounts | None:
    if item is None:
        return None
    return _made(LintCounts, item, faults=_counts(item["faults"]), dangling_cookies=_texts(item["dangling_cookies"]))


def _inventory(item: Mapping[str, Any] | None) -> InventoryCounts | None:
    if item is None:
        return None
    return _made(
        InventoryCounts,
        item,
        bookies=tuple(_made(InventoryBookie, each) for each in item["bookies"]),
        not_judged=_counts(item["not_judged"]),
    )


def _replicas(item: Mapping[str, Any] | None) -> ReplicaCounts | None:
    if item is None:
        return None
    return _made(
        ReplicaCounts,
        item,
        unknown=tuple(_made(UnknownAnswers, each) for each in item["unknown"]),
        sampled=tuple(_made(SampledBookie, each) for each in item.get("sampled", ())),
    )


def _references(item: Mapping[str, Any] | None) -> ReferenceCounts | None:
    if item is None:
        return None
    return _made(
        ReferenceCounts,
        item,
        roots=_texts(item["roots"]),
        namespaces=tuple(_made(NamespaceCount, each) for each in item["namespaces"]),
        not_judged={_text(reason): _count(number) for reason, number in item["not_judged"].items()},
        undecodable_nodes=tuple(_made(UndecodableNode, each) for each in item["undecodable_nodes"]),
    )


def _accepted(item: Mapping[str, Any]) -> AcceptedCounts:
    return _made(AcceptedCounts, {name: item[name] for name in ("ledgers", "fragments", "ledgers_returned")})


def _made(cls: type[T], item: Mapping[str, Any], **converted: object) -> T:
    """Return a flat value of texts and numbers from its JSON object; ``converted`` has the fields of other types."""
    known: dict[str, Any] = {
        field.name: _typed(str(field.type), item[field.name])
        for field in fields(cls)
        if field.name in item and field.name not in converted
    }
    return cls(**known, **converted)


def _typed(declared: str, value: object) -> object:
    """Check the type of a value against the declaration of the field, and return the value."""
    wanted = {"int": (int,), "str": (str,), "bool": (bool,), "float": (float, int)}.get(declared)
    if wanted is not None and type(value) not in wanted:
        raise ValueError(f"{value!r} is not of type {declared}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(map(_text, value))


def _epoch_ms(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return round(moment.timestamp() * 1000)
