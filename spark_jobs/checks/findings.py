"""Columns of findings, the same for every check, and the kinds of findings. Importable without Spark."""

from __future__ import annotations

import enum
from typing import Final


class FindingKind(enum.Enum):
    """The subject of a finding."""

    MISSING_BOOKIE = "MISSING_BOOKIE"
    """A fragment names an unregistered bookie."""
    DRAINED_BOOKIE = "DRAINED_BOOKIE"
    """A fragment names a draining bookie, and all of its bookies are registered."""
    LOSS_ACCEPTED = "LOSS_ACCEPTED"
    """A fragment lost every copy of some entries, and an operator accepted this: reported, not counted, not marked."""
    MISPLACED = "MISPLACED"
    """The copies of some entry of a fragment are closer together than the placement policy allows."""
    UNKNOWN_PLACE = "UNKNOWN_PLACE"
    """A fragment has a member outside the topology, so its placement was not judged."""
    MISSING_ENTRIES = "MISSING_ENTRIES"
    """A registered bookie lacks entries of a fragment that it should hold."""
    DAMAGED_ENTRIES = "DAMAGED_ENTRIES"
    """A registered bookie has damaged copies of entries of a fragment and cannot serve them; it may lack others."""
    UNREFERENCED_LEDGER = "UNREFERENCED_LEDGER"
    """Nothing in Pulsar refers to a ledger of Pulsar. Its copies are complete, and take up space."""
    DANGLING_REFERENCE = "DANGLING_REFERENCE"
    """A node of Pulsar refers to a nonexistent ledger."""
    UNDECODABLE_REFERENCES = "UNDECODABLE_REFERENCES"
    """A node of the topic of a ledger cannot be decoded, so references to the ledger are unknown."""
    UNREAD_REFERENCE = "UNREAD_REFERENCE"
    """A topic's reference to its compacted ledger is stored in this ledger. The reference was not read, so the
    compacted ledger was not checked. This ledger itself is referenced.
    """
    OVER_REPLICATED_LEDGER = "OVER_REPLICATED_LEDGER"
    """Bookies hold entries of a closed ledger that its metadata does not place there. They take up space."""
    UNOWNED_LEDGER = "UNOWNED_LEDGER"
    """Bookies hold entries of a nonexistent ledger. They take up space."""
    KNOWN_DAMAGE = "KNOWN_DAMAGE"
    """A bookie reports damaged entries of a ledger, found by its scrub or a read and not replaced."""
    DANGLING_COOKIE = "DANGLING_COOKIE"
    """A bookie has a cookie, is not registered, and no ledger names it. The finding has no ledger; ``missing`` is the
    bookie."""
    UNREADABLE_METADATA = "UNREADABLE_METADATA"
    """A ledger's metadata cannot be read, so nothing is known about its copies."""
    OVERLAPPING_FRAGMENTS = "OVERLAPPING_FRAGMENTS"
    """This and the following kinds are faults of metadata, see ``bookie.model.metadata_faults``."""
    UNSORTED_FRAGMENTS = "UNSORTED_FRAGMENTS"
    NO_FRAGMENT = "NO_FRAGMENT"
    WRONG_ENSEMBLE_SIZE = "WRONG_ENSEMBLE_SIZE"
    WRONG_QUORUMS = "WRONG_QUORUMS"
    NO_LAST_ENTRY = "NO_LAST_ENTRY"
    UNKNOWN_FORMAT = "UNKNOWN_FORMAT"
    WRONG_FIELDS = "WRONG_FIELDS"
    DUPLICATE_MEMBER = "DUPLICATE_MEMBER"
    FRAGMENT_GAP = "FRAGMENT_GAP"
    LAST_ENTRY_TOO_LOW = "LAST_ENTRY_TOO_LOW"
    LENGTH_MISMATCH = "LENGTH_MISMATCH"
    NO_ACK_QUORUM = "NO_ACK_QUORUM"
    STUCK_RECOVERY = "STUCK_RECOVERY"


FINDING_DDL: Final = """
    kind string, ledger_id bigint, fragment_index int, fragment_first_entry_id bigint, fragment_last_entry_id bigint,
    is_last_fragment boolean, state string, missing_positions array<int>, missing array<string>, copies_min int,
    severity string, severity_rank int, entries bigint, bytes_estimate bigint, detail string,
    write_quorum int, ack_quorum int,
    tenant string, namespace string, topic string, component string, subscription string
"""
"""The columns, in order. Some are null, depending on the kind: a dangling cookie has no ledger, and an unreadable
ledger has no fragment, severity or missing bookie.

``fragment_last_entry_id`` is null if only the writer knows it. It is below the first entry for an empty fragment.
``missing_positions`` are ensemble positions, ascending; ``missing`` the bookies there, each once. ``severity`` is the
label of a ``bookie.model.severity.Severity`` and ``severity_rank`` its value: smaller is worse. ``entries`` counts the
fragment's entries, null if unknown. ``bytes_estimate`` is the payload to be copied, estimated from the ledger's mean
entry size; null unless the ledger is closed. The last five columns are those of ``bk_ledgers``: the owner of the ledger
in Pulsar, null if its custom metadata does not name it.
"""
