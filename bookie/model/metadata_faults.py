"""Faults of one ledger's metadata: kinds, meanings and advice. Pure.

A fault is reported and changes nothing. Metadata in conflict with a rule of docs/formats.md#metadata-rules cannot be
decoded, so the fault is the only verdict on such a ledger. The Spark pipeline computes the faults of readable metadata
in SQL; a property test checks that both give the same result.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

from bookie.model.ids import NO_ENTRY
from bookie.model.metadata import LedgerMetadata


class Weight(enum.StrEnum):
    """The weight of a fault."""

    ERROR = "error"
    """Entries may be unreadable, or have fewer copies than the write quorum."""
    WARNING = "warning"
    """No entry is in danger because of it, but something is wrong."""


class MetadataFault(enum.Enum):
    """A class of faults: its name in findings, its weight, its meaning, and what to do."""

    def __init__(self, label: str, weight: Weight, meaning: str, advice: str) -> None:
        self.label = label
        self.weight = weight
        self.meaning = meaning
        self.advice = advice

    OVERLAPPING_FRAGMENTS = (
        "OVERLAPPING_FRAGMENTS",
        Weight.ERROR,
        "two fragments begin at the same entry, so the bookies of these entries are ambiguous",
        "keep the node; find the program that wrote it, and restore the node from a backup of ZooKeeper",
    )
    UNSORTED_FRAGMENTS = (
        "UNSORTED_FRAGMENTS",
        Weight.ERROR,
        "a fragment begins before the one that precedes it, or below entry 0",
        "keep the node; find the program that wrote it, and restore the node from a backup of ZooKeeper",
    )
    NO_FRAGMENT = (
        "NO_FRAGMENT",
        Weight.ERROR,
        "the metadata has no fragment, so no bookie of the ledger is known",
        "restore the node from a backup of ZooKeeper, or delete the ledger if nothing refers to it",
    )
    WRONG_ENSEMBLE_SIZE = (
        "WRONG_ENSEMBLE_SIZE",
        Weight.ERROR,
        "a fragment has more or fewer bookies than the ensemble size E",
        "keep the node; the positions of entries cannot be computed until the node is restored from a backup",
    )
    WRONG_QUORUMS = (
        "WRONG_QUORUMS",
        Weight.ERROR,
        "E >= Qw >= Qa and Qw >= 1 does not hold",
        "keep the node; look at the settings of the client that created the ledger, and restore the node",
    )
    NO_LAST_ENTRY = (
        "NO_LAST_ENTRY",
        Weight.ERROR,
        "the ledger is closed, and its metadata has no last entry",
        "keep the node; restore it from a backup, since the end of the ledger is not known",
    )
    UNKNOWN_FORMAT = (
        "UNKNOWN_FORMAT",
        Weight.ERROR,
        "a format version that this release does not read, or no version",
        "use a release of bkheal that reads the format of the newest client; keep the node",
    )
    WRONG_FIELDS = (
        "WRONG_FIELDS",
        Weight.ERROR,
        "a required field is missing, or a field has a value that is not known",
        "look for a client of a newer release; keep the node",
    )
    DUPLICATE_MEMBER = (
        "DUPLICATE_MEMBER",
        Weight.ERROR,
        "a fragment names a bookie twice, so some entries have fewer copies than the write quorum",
        "drain the bookie (`bkheal drain start`), or copy the ledger; do not stop it before, it may have both copies",
    )
    FRAGMENT_GAP = (
        "FRAGMENT_GAP",
        Weight.ERROR,
        "the first fragment begins after entry 0, so no bookie is named for the entries before it",
        "find the program that removed the first fragment; if entries were lost, restore the node from a backup",
    )
    LAST_ENTRY_TOO_LOW = (
        "LAST_ENTRY_TOO_LOW",
        Weight.ERROR,
        "the ledger ends before its last fragment begins, so entries may be beyond its end",
        "compare with the bookies (`bkheal ledger` commands) before the ledger is deleted or trimmed",
    )
    LENGTH_MISMATCH = (
        "LENGTH_MISMATCH",
        Weight.WARNING,
        "the length is negative, or 0 with entries, or above 0 without entries",
        "nothing, if the entries are empty; estimates of bytes for this ledger are wrong",
    )
    NO_ACK_QUORUM = (
        "NO_ACK_QUORUM",
        Weight.WARNING,
        "the ack quorum is 0, so the client confirmed entries that no bookie had stored",
        "correct the settings of the client that created the ledger",
    )
    STUCK_RECOVERY = (
        "STUCK_RECOVERY",
        Weight.WARNING,
        "the ledger is in recovery, and its metadata has not changed for longer than `recovery_age_max_s`",
        "look for the client or worker that recovers it; `bkheal ledger recover` completes the recovery",
    )


Found = tuple[MetadataFault, int | None]
"""A fault, and the index of its fragment; None for a fault of the whole ledger."""


def faults(metadata: LedgerMetadata) -> Iterator[Found]:
    """Yield the faults of readable metadata, except ``STUCK_RECOVERY``, which needs the time of the last change."""
    for index, fragment in enumerate(metadata.fragments):
        if len(set(fragment.members)) < len(fragment.members):
            yield MetadataFault.DUPLICATE_MEMBER, index
    if metadata.fragments[0].first_entry_id > 0:
        yield MetadataFault.FRAGMENT_GAP, 0
    if metadata.ack_quorum == 0:
        yield MetadataFault.NO_ACK_QUORUM, None
    last, length = metadata.last_entry_id, metadata.length
    if last is None or length is None:
        return
    # A last fragment without entries is usual: the writer ended after a change of the ensemble.
    if last < metadata.last_fragment.first_entry_id - 1:
        yield MetadataFault.LAST_ENTRY_TOO_LOW, None
    if length < 0 or (length == 0) != (last <= NO_ENTRY):
        yield MetadataFault.LENGTH_MISMATCH, None


def is_stuck(changed_ms: int, now_ms: int, age_max_s: float) -> bool:
    """Whether a ledger has been in recovery for too long.

    Args:
        changed_ms: the time of its metadata's last change, epoch milliseconds by the clock of ZooKeeper.
        now_ms: the present, epoch milliseconds.
        age_max_s: longest permitted time of a recovery, in seconds.
    """
    return now_ms - changed_ms > age_max_s * 1000


REASONS: Final = (
    (MetadataFault.OVERLAPPING_FRAGMENTS, r"^impossible ledger metadata: fragment (-?\d+) does not follow \1$"),
    (MetadataFault.UNSORTED_FRAGMENTS, r"^impossible ledger metadata: fragment .* does not follow "),
    (MetadataFault.NO_FRAGMENT, r"^impossible ledger metadata: no fragment$"),
    (MetadataFault.WRONG_ENSEMBLE_SIZE, r"^impossible ledger metadata: fragment .* members, E="),
    (MetadataFault.WRONG_QUORUMS, r"^impossible ledger metadata: E="),
    (MetadataFault.NO_LAST_ENTRY, r"^closed ledger metadata without a last entry$"),
    (MetadataFault.UNKNOWN_FORMAT, r"^ledger metadata of format \d+, only|^ledger metadata without a format version$"),
    (
        MetadataFault.WRONG_FIELDS,
        r"^ledger metadata (lacks a required field|has an unknown digest|names )|^a key of the custom metadata ",
    ),
)
"""Patterns for the decoder's errors about refused metadata: the first matching pattern decides."""
