"""The texts of a report: the headline of a run, and the meaning of each severity. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bookie.model.run import RunKind
from bookie.model.severity import Severity
from bookie.runtime.human import agreeing, size
from spark_jobs.report.counts import LintCounts, ReferenceCounts
from spark_jobs.report.summary import RunSummary, Verdict
from spark_jobs.report.text import number, numbered, scope_text

MEANINGS: Final[Mapping[Severity, str]] = {
    Severity.LOST: "Every holder answered that it has no such entry, or an operator accepted the loss.",
    Severity.NO_LIVE_COPY: "No registered bookie holds some entry. It can be read again when a holder returns.",
    Severity.CRITICAL: "Some entry has one copy left. One more loss may lose data.",
    Severity.BELOW_ACK_QUORUM: "Some entry has fewer copies than the ack quorum that its writer was promised.",
    Severity.BELOW_WRITE_QUORUM: "Some entry has fewer copies than the write quorum, and at least the ack quorum.",
    Severity.METADATA_ONLY: "A missing bookie is named, but holds no entry of the fragment. No copy is lacking.",
    Severity.MISPLACED: "All copies exist, but they are not spread over racks, zones or regions as the "
    "policy requires.",
    Severity.DRAIN: "All copies exist, some of them on a bookie that is being drained.",
}

SEVERITY_NAMES: Final[Mapping[Severity, str]] = {level: level.name.replace("_", " ").capitalize() for level in Severity}

KIND_NAMES: Final[Mapping[RunKind, str]] = {
    RunKind.BOOKIES: "Bookie check",
    RunKind.PLACEMENT: "Placement check",
    RunKind.REPLICAS: "Replica check",
    RunKind.REFERENCES: "References check",
    RunKind.EVERYTHING: "Check of everything",
}

KIND_MEANINGS: Final[Mapping[RunKind, str]] = {
    RunKind.BOOKIES: "all ledger metadata against the registered bookies",
    RunKind.PLACEMENT: "all ensembles against the placement policy",
    RunKind.REPLICAS: "every entry that a registered bookie should hold, asked of that bookie",
    RunKind.REFERENCES: "all ledgers against what topics, subscriptions and schemas of Pulsar refer to",
    RunKind.EVERYTHING: "all ledger metadata against the registered bookies, the placement policy and its own rules",
}

_NO_FINDING_TEXTS: Final[Mapping[RunKind, str]] = {
    RunKind.BOOKIES: "Every ledger has all of its copies.",
    RunKind.PLACEMENT: "Every ensemble keeps to the placement policy.",
    RunKind.REPLICAS: "Every bookie holds the entries it should hold.",
    RunKind.REFERENCES: "Every ledger that Pulsar refers to exists, and Pulsar refers to every ledger that was judged.",
    RunKind.EVERYTHING: "Every ledger has all copies, every ensemble keeps to the policy, all metadata is valid.",
}


class Tone(enum.StrEnum):
    """The style of a headline."""

    GOOD = "good"
    INFO = "info"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Headline:
    """A run in two sentences."""

    tone: Tone
    text: str
    meaning: str


def headline(summary: RunSummary) -> Headline:
    """Describe the findings of a run, and what they mean for the data."""
    found = _headline(summary)
    if not (scope := scope_text(summary.replicas)):
        return found
    share = f"{number(summary.ledgers_checked)} of {ledgers(summary.counts.ledgers)}"
    return replace(found, meaning=f"{found.meaning} Bookies were asked about {share} ({scope}); the rest is unknown.")


def _headline(summary: RunSummary) -> Headline:
    match summary.verdict:
        case Verdict.HELD:
            return Headline(
                Tone.BAD,
                "The brake held this run. Nothing was marked for repair.",
                "What the run saw is not plausible for a living cluster. A person has to look before anything is done.",
            )
        case Verdict.INCOMPLETE:
            return _incomplete(summary)
        case Verdict.UNREADABLE_METADATA:
            return Headline(
                Tone.WARN,
                f"The metadata of {ledgers(summary.counts.unreadable)} cannot be read.",
                "Nothing is known about their copies. All other ledgers were checked.",
            )
        case Verdict.FAULTY_METADATA if summary.lint is not None:
            return _faulty(summary.lint)
        case Verdict.UNREFERENCED if summary.references is not None:
            return _unreferenced(summary.references)
        case Verdict.DAMAGED if summary.inventory is not None:
            return Headline(
                Tone.WARN,
                f"Bookies know damaged entries of {ledgers(summary.inventory.damaged)}.",
                "Their other copies were not compared. A replicas check finds out, and marks what has to be repaired.",
            )
        case Verdict.SURPLUS if summary.inventory is not None:
            return Headline(
                Tone.INFO,
                f"No copy is missing; bookies hold copies of {ledgers(summary.inventory.surplus)} that nothing needs.",
                "They take up space until their bookies collect them. No data is lost.",
            )
        case Verdict.CLEAN:
            if summary.accepted.ledgers:
                return _only_accepted(summary)
            if not summary.is_every_ledger:
                checked = ledgers(summary.ledgers_checked)
                return Headline(Tone.INFO, f"{checked} checked, none with a finding.", "No copy of them is missing.")
            return Headline(
                Tone.GOOD, _NO_FINDING_TEXTS[summary.kind], f"{_counted(summary)} checked, none with a finding."
            )
        case _:
            return _found(summary)


def _faulty(counts: LintCounts) -> Headline:
    named = ", ".join(f"{label} {number:,}" for label, number in counts.faults.items())
    return Headline(
        Tone.WARN if counts.errors else Tone.INFO,
        "No copy is missing, and the metadata of some ledgers has faults.",
        f"Ledgers by fault: {named}. Nothing is marked because of a fault.",
    )


def _unreferenced(counts: ReferenceCounts) -> Headline:
    return Headline(
        Tone.INFO,
        f"Nothing in Pulsar refers to {ledgers(counts.unreferenced)}.",
        f"They take up {size(counts.unreferenced_stored_bytes)} on bookies. No data is lost.",
    )


def _dangling(lost: int) -> Headline:
    return Headline(
        Tone.BAD,
        f"Pulsar refers to {ledgers(lost)} that {_do(lost)} not exist.",
        "Their entries are lost. Repair cannot bring them back; only a copy from outside the cluster can.",
    )


def _only_accepted(summary: RunSummary) -> Headline:
    lost = summary.accepted.ledgers
    return Headline(
        Tone.INFO,
        f"No copy is missing, except of {ledgers(lost)} whose loss was accepted.",
        f"{_counted(summary)} checked. `bkheal dead-letters list --accepted` shows who accepted each loss, and why.",
    )


def _incomplete(summary: RunSummary) -> Headline:
    text, unseen = "Not every ledger was checked.", "Ledgers that were not read are unknown."
    if summary.is_read:
        checks = ", ".join(part.check for part in summary.parts if part.problem)
        text, unseen = f"Not every check is complete: {checks}.", "Every ledger was read."
    if not summary.severities:
        return Headline(Tone.WARN, text, f"{unseen} No problem was found in the rest.")
    found = _found(summary)
    tone = Tone.BAD if found.tone is Tone.BAD else Tone.WARN
    return Headline(tone, text, f"{unseen} In the rest: {found.text} {found.meaning}")


def _found(summary: RunSummary) -> Headline:
    found = {count.severity: count.ledgers for count in summary.severities}
    total = sum(found.values())
    worst = summary.worst
    lost, no_copy = found.get(Severity.LOST, 0), found.get(Severity.NO_LIVE_COPY, 0)
    if lost and summary.kind is RunKind.REFERENCES:
        return _dangling(lost)
    if lost:
        return Headline(
            Tone.BAD,
            f"{ledgers(lost)} {_have(lost)} lost entries.",
            "No bookie has them. Repair cannot bring them back; only a copy from outside the cluster can.",
        )
    if no_copy:
        return Headline(
            Tone.BAD,
            f"{ledgers(no_copy)} {_have(no_copy)} entries without a live copy.",
            "These entries cannot be read or repaired until a bookie that holds them returns.",
        )
    if worst is not None and worst <= Severity.BELOW_WRITE_QUORUM:
        short = sum(count for level, count in found.items() if level <= Severity.BELOW_WRITE_QUORUM)
        critical = found.get(Severity.CRITICAL, 0)
        meaning = "Every entry has at least one live copy, so all data can be read."
        if critical:
            meaning += (
                f" {ledgers(critical)} {_have(critical)} entries with a single copy: one more loss may lose data."
            )
        return Headline(Tone.WARN, f"{ledgers(short)} {_have(short)} too few copies. No data is lost.", meaning)
    if worst is Severity.METADATA_ONLY:
        name = agreeing(total, "names", "name")
        return Headline(
            Tone.INFO,
            f"No copy is missing; {ledgers(total)} {name} a missing bookie.",
            MEANINGS[Severity.METADATA_ONLY],
        )
    if worst is Severity.DRAIN:
        text = f"No copy is missing; {ledgers(total)} must still be moved from bookies that are being drained."
        return Headline(Tone.INFO, text, MEANINGS[Severity.DRAIN])
    text = (
        f"{ledgers(total)} {_have(total)} findings."
        if worst is None
        else f"No copy is missing; {ledgers(total)} should be spread better."
    )
    return Headline(Tone.INFO, text, MEANINGS[worst] if worst is not None else "")


def ledgers(count: int) -> str:
    """Return a number of ledgers, with the noun."""
    return numbered(count, "ledger")


def _have(count: int) -> str:
    return agreeing(count, "has", "have")


def _do(count: int) -> str:
    return agreeing(count, "does", "do")


def _counted(summary: RunSummary) -> str:
    return f"{ledgers(summary.counts.ledgers)} with {numbered(summary.counts.fragments, 'fragment')}"
