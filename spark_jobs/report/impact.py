"""The namespaces and topics of Pulsar that the findings of a run affect. Pure; importable without Spark.

A run may find a million ledgers, so a summary names the worst namespaces and topics, and counts the others. Rows are
sorted by importance for an operator: by severity, system topics first, then by effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookie.model.impact import Effect, Standing
from bookie.model.ownership import system_role
from bookie.model.severity import Severity
from spark_jobs.options.namespaces import NAMESPACES_MAX

TOPICS_MAX: Final = 100
"""Largest number of topics in a summary."""
OTHER: Final = "other"
"""Stands for all other namespaces. It differs from every namespace, because a namespace has a slash after the
tenant."""


@dataclass(frozen=True, slots=True)
class ImpactRow:
    """The ledgers of one use of one topic with findings of one severity and one effect."""

    severity: Severity
    standing: Standing
    effect: Effect
    tenant: str
    namespace: str
    topic: str
    component: str
    subscription: str | None
    ledgers: int
    bytes_estimate: int
    """Known bytes to copy."""
    first_ledger: int
    """The lowest ledger id."""

    @property
    def system(self) -> str | None:
        """The purpose of the topic, if it is a system topic of Pulsar."""
        role = system_role(self.namespace, self.topic)
        return None if role is None else role.value

    @property
    def meaning(self) -> str:
        """The meaning for clients, as a clause."""
        return meaning(self.standing, self.effect)

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key, worst first."""
        return (
            self.severity,
            _STANDINGS[self.standing],
            self.system is None,
            self.effect.rank,
            -self.ledgers,
            self.topic,
            self.component,
            self.subscription or "",
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "severity": self.severity.label,
            "standing": self.standing.value,
            "effect": self.effect.name,
            "meaning": self.meaning,
            "system": self.system,
            "tenant": self.tenant,
            "namespace": self.namespace,
            "topic": self.topic,
            "component": self.component,
            "subscription": self.subscription,
            "ledgers": self.ledgers,
            "bytes_estimate": self.bytes_estimate,
            "first_ledger": self.first_ledger,
        }


@dataclass(frozen=True, slots=True)
class NamespaceImpact:
    """One namespace with findings of one severity."""

    severity: Severity
    standing: Standing
    """The worst standing of its ledgers."""
    effect: Effect
    """The worst effect with this standing."""
    namespace: str
    topics: int
    ledgers: int
    has_system_topic: bool

    @property
    def meaning(self) -> str:
        """The meaning for clients, as a clause."""
        return meaning(self.standing, self.effect)

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key, worst first."""
        return (
            self.severity,
            _STANDINGS[self.standing],
            not self.has_system_topic,
            self.effect.rank,
            -self.topics,
            self.namespace,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "severity": self.severity.label,
            "standing": self.standing.value,
            "effect": self.effect.name,
            "meaning": self.meaning,
            "namespace": self.namespace,
            "topics": self.topics,
            "ledgers": self.ledgers,
            "has_system_topic": self.has_system_topic,
        }


@dataclass(frozen=True, slots=True)
class SeverityImpact:
    """The numbers of namespaces and topics with findings of one severity."""

    severity: Severity
    namespaces: int
    topics: int
    ledgers: int
    """Number of ledgers with a topic."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "severity": self.severity.label,
            "namespaces": self.namespaces,
            "topics": self.topics,
            "ledgers": self.ledgers,
        }


@dataclass(frozen=True, slots=True)
class Impact:
    """The impact of a run."""

    severities: tuple[SeverityImpact, ...] = ()
    """The occurring severities, worst first."""
    namespaces: tuple[NamespaceImpact, ...] = ()
    """The worst namespaces, at most ``NAMESPACES_MAX``."""
    topics: tuple[ImpactRow, ...] = ()
    """The worst topics, at most ``TOPICS_MAX``."""
    rows: int = 0
    """Number of all rows of topics, including those that are not in ``topics``."""
    unnamed_ledgers: int = 0
    """Number of ledgers with findings and without a topic."""
    is_cut: bool = False
    """Whether there are too many topics, so that some are not counted at all."""

    def by_namespace(self, count: int) -> dict[str, dict[str, int]]:
        """Return ledgers by severity label and namespace: the worst ``count`` rows, and all others as ``other``.

        ``count`` is at most ``NAMESPACES_MAX``. 0: the result is empty.
        """
        if not count:
            return {}
        found: dict[str, dict[str, int]] = {each.severity.label: {} for each in self.severities}
        for row in self.namespaces[:count]:
            found[row.severity.label][row.namespace] = row.ledgers
        for each in self.severities:
            if others := each.ledgers - sum(found[each.severity.label].values()):
                found[each.severity.label][OTHER] = others
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the impact as part of the document of a summary."""
        return {
            "severities": [each.to_json() for each in self.severities],
            "namespaces": [each.to_json() for each in self.namespaces],
            "topics": [each.to_json() for each in self.topics],
            "topic_rows": self.rows,
            "unnamed_ledgers": self.unnamed_ledgers,
            "cut": self.is_cut,
        }


_STANDINGS: Final = {standing: number for number, standing in enumerate(Standing)}


def meaning(standing: Standing, effect: Effect) -> str:
    """Return what an effect with this standing means for clients, as a clause."""
    if standing is Standing.NONE:
        return "nothing: no entry lacks a copy"
    return effect.value if standing is Standing.NOW else f"if the last copies are lost: {effect.value}"


def impact_of(rows: Iterable[ImpactRow], unnamed_ledgers: int, *, is_cut: bool = False) -> Impact:
    """Return the impact that rows add up to."""
    ordered = sorted(rows, key=lambda row: row.order)
    namespaces = sorted(_namespaces(ordered), key=lambda each: each.order)
    return Impact(
        tuple(_severities(ordered)),
        tuple(namespaces[:NAMESPACES_MAX]),
        tuple(ordered[:TOPICS_MAX]),
        len(ordered),
        unnamed_ledgers,
        is_cut,
    )


def _severities(ordered: Iterable[ImpactRow]) -> Iterable[SeverityImpact]:
    by_severity: defaultdict[Severity, list[ImpactRow]] = defaultdict(list)
    for row in ordered:
        by_severity[row.severity].append(row)
    for severity, rows in sorted(by_severity.items()):
        namespaces, topics = {row.namespace for row in rows}, {row.topic for row in rows}
        yield SeverityImpact(severity, len(namespaces), len(topics), sum(row.ledgers for row in rows))


def _namespaces(ordered: Iterable[ImpactRow]) -> Iterable[NamespaceImpact]:
    """Yield the namespaces. In ``ordered``, the worst row of each namespace comes first."""
    groups: defaultdict[tuple[Severity, str], list[ImpactRow]] = defaultdict(list)
    for row in ordered:
        groups[row.severity, row.namespace].append(row)
    for (severity, namespace), rows in groups.items():
        yield NamespaceImpact(
            severity,
            rows[0].standing,
            rows[0].effect,
            namespace,
            len({row.topic for row in rows}),
            sum(row.ledgers for row in rows),
            any(row.system is not None for row in rows),
        )


def impact_from_json(document: Mapping[str, Any]) -> Impact:
    """Decode the impact in the document of a summary.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the document has another form.
    """
    return Impact(
        tuple(
            SeverityImpact(
                Severity.of_label(item["severity"]),
                _count(item, "namespaces"),
                _count(item, "topics"),
                _count(item, "ledgers"),
            )
            for item in document["severities"]
        ),
        tuple(
            NamespaceImpact(
                Severity.of_label(item["severity"]),
                Standing(item["standing"]),
                Effect[item["effect"]],
                str(item["namespace"]),
                _count(item, "topics"),
                _count(item, "ledgers"),
                bool(item["has_system_topic"]),
            )
            for item in document["namespaces"]
        ),
        tuple(map(_row, document["topics"])),
        _count(document, "topic_rows"),
        _count(document, "unnamed_ledgers"),
        bool(document["cut"]),
    )


def _row(item: Mapping[str, Any]) -> ImpactRow:
    return ImpactRow(
        severity=Severity.of_label(item["severity"]),
        standing=Standing(item["standing"]),
        effect=Effect[item["effect"]],
        tenant=str(item["tenant"]),
        namespace=str(item["namespace"]),
        topic=str(item["topic"]),
        component=str(item["component"]),
        subscription=None if item["subscription"] is None else str(item["subscription"]),
        ledgers=_count(item, "ledgers"),
        bytes_estimate=_count(item, "bytes_estimate"),
        first_ledger=_count(item, "first_ledger"),
    )


def _count(item: Mapping[str, Any], name: str) -> int:
    value = item[name]
    if type(value) is not int:
        raise ValueError(f"{name} is not a count")
    return value
